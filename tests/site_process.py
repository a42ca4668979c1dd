"""One site of a federation, in a process of its own: ``python site_process.py FOLDER SITE COUNT PORT NAME...``.

It takes its part of the network of each shipped algorithm in turn, and serves until the coordinator ends that one.
"""

import sys
from pathlib import Path

from federated import rows_of, site_names
from kinfolk.federation.service import SiteService
from kinfolk.federation.sockets import serve
from shipped import SHIPPED


def main(folder: str, site: str, count: str, port: str, *names: str) -> None:
    for k, name in enumerate(names):
        make_network, make_algorithm = SHIPPED[name]
        me = site_names(int(count))[int(site)]
        rows = rows_of(make_network(), int(count))[me]
        service = SiteService(me, rows, Path(folder) / str(k) / me, make_algorithm())
        print("ready", flush=True)
        serve(service, ("127.0.0.1", int(port)), patience=120.0)
        service.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
