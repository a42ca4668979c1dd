"""One site of a federation over Flower, in a process of its own: ``python flower_site.py FOLDER SITE COUNT WAY``.

The folder has the contact of the federation, the keys that sites sign in with, and gets the folders of the sites.
"""

import json
import sys
from pathlib import Path

from federated import rows_of, site_names
from kinfolk.federation.flower.certificates import Contact
from kinfolk.federation.flower.processes import stopped_by_signals
from kinfolk.federation.flower.site import serve
from kinfolk.federation.service import SiteService
from kinfolk.testing import difficult_network


def main(folder: str, site: str, count: str, way: str) -> None:
    root, name = Path(folder), site_names(int(count))[int(site)]
    contact = Contact(**json.loads((root / "contact.json").read_text()))
    service = SiteService(name, rows_of(difficult_network(), int(count))[name], root / "sites" / name)
    with stopped_by_signals() as stop:
        print("ready", flush=True)
        serve(service, contact, root / "keys" / name, stop, way=way, tell=print)
    service.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
