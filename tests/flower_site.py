"""One site of a federation over Flower, in a process of its own: ``python flower_site.py FOLDER SITE COUNT WAY``.

Its model of FedRelax is its own choice. The folder has the contact of the federation, the keys that sites sign in with,
and gets the folders of the sites.
"""

import json
import sys
from pathlib import Path

from sklearn.tree import DecisionTreeRegressor

from federated import rows_of, site_names
from kinfolk import FedRelax, LinearModel
from kinfolk.federation.flower.certificates import Contact
from kinfolk.federation.flower.processes import stopped_by_signals
from kinfolk.federation.flower.site import serve
from kinfolk.federation.service import SiteService
from kinfolk.testing import difficult_network

MODELS = [LinearModel(), DecisionTreeRegressor(max_depth=2), LinearModel(ridge=0.5), DecisionTreeRegressor(max_depth=3)]


def service_at(root: Path, site: int, count: int) -> SiteService:
    """A site with its rows, its model, and its folder."""
    name, algorithm = site_names(count)[site], FedRelax(MODELS[site], lam=0.2)
    return SiteService(name, rows_of(difficult_network(), count)[name], root / "sites" / name, algorithm)


def main(folder: str, site: str, count: str, way: str) -> None:
    root = Path(folder)
    contact = Contact(**json.loads((root / "contact.json").read_text()))
    service = service_at(root, int(site), int(count))
    with stopped_by_signals() as stop:
        print("ready", flush=True)
        serve(service, contact, root / "keys" / service.name, stop, way=way, tell=print)
    service.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
