"""A site that learns from a table, as a process of its own: it kills itself where it is told to.

python table_site_process.py NAME TABLE FOLDER PORT MOMENT COUNT PREDICTIONS

MOMENT is ``never``, ``before`` or ``after``: before or after the COUNT-th question of this process is on the disk.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pandas

from kinfolk.federation.sockets import serve
from kinfolk.federation.tables.service import TableService
from kinfolk.federation.tables.site_journal import SiteJournal


def killed(moment: str, count: int) -> None:
    """Die at a moment."""
    keep, left = SiteJournal.keep, [count]

    def keeping(self, question, answer):
        left[0] -= 1
        if moment == "before" and not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        keep(self, question, answer)
        if moment == "after" and not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    SiteJournal.keep = keeping


if __name__ == "__main__":
    name, path, folder, port, moment, count, out = sys.argv[1:]
    killed(moment, int(count))
    table = pandas.read_csv(path)
    service = TableService(name, table, Path(folder))
    serve(service, ("127.0.0.1", int(port)))
    np.save(out, service.predict(table))
    service.close()
