"""A coordinator in a process of its own: ``python coordinator_process.py FOLDER PORT NAME [ROUND]``.

With a round, it is killed in that round. Otherwise it runs to the end and writes the history.
"""

import os
import signal
import sys
from pathlib import Path

from federated import federation_of
from kinfolk import fit
from kinfolk.federation.sockets import SocketPost
from shipped import SHIPPED, options


def main(folder: str, port: str, name: str, killed: str = "") -> None:
    make_network, make_algorithm = SHIPPED[name]

    def watch(row, snapshot):
        if killed and row["round"] == int(killed):
            os.kill(os.getpid(), signal.SIGKILL)

    with SocketPost(int(port)) as post:
        federation = federation_of(make_network(), 3, post, folder=Path(folder))
        run = fit(federation.gather(), make_algorithm(), engine=federation, callbacks=[watch], **options(name))
    run.history.drop(columns=["seconds", "seconds_per_round"]).to_csv(Path(folder) / "history.csv")


if __name__ == "__main__":
    main(*sys.argv[1:])
