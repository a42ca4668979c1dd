"""The coordinator of a job over tables, as a process of its own: it kills itself where it is told to.

python table_coordinator_process.py FOLDER PORT SETTINGS MOMENT COUNT

MOMENT is ``never``, ``before`` or ``after``: before or after the COUNT-th exchange of this process is on the disk.
"""

import json
import os
import signal
import sys
from pathlib import Path

from kinfolk.federation.carrier import Record
from kinfolk.federation.recalling import RecallingPost
from kinfolk.federation.sockets import SocketPost
from kinfolk.federation.tables.federated_job import learn_together
from kinfolk.tables import Settings

if __name__ == "__main__":
    folder, port, chosen, moment, count = sys.argv[1:]
    add, left = Record.add, [int(count)]

    def adding(self, asked, answers):
        left[0] -= 1
        if moment == "before" and not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        add(self, asked, answers)
        if moment == "after" and not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    Record.add = adding
    names = ["site 0", "site 1"]
    with SocketPost(int(port)) as post:
        recalling = RecallingPost(post, names, Path(folder))
        run = learn_together(recalling, names, Settings.of(json.loads(chosen)), job=recalling.job)
        nodes = run.nodes.to_numpy(dtype=float).tobytes().hex()
        found = [run.leaderboard["error"].tolist(), run.weights, run.judgement.text, nodes]
        (Path(folder) / "result.json").write_text(json.dumps(found))
        recalling.close()
