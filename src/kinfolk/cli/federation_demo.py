"""A federation on this machine: the counties of 1980 at four sites, one of which is killed and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from rich.console import Console

from kinfolk.checks import InputError
from kinfolk.cli.federating import check_installed, live_status, print_outcome, show_sent
from kinfolk.cli.printing import print_exact
from kinfolk.datasets import load_us_counties
from kinfolk.engine.files import write_output
from kinfolk.engine.locking import running_in
from kinfolk.network.graph import Graph

# States by the number that their counties' FIPS codes begin with (US Census Bureau).
REGIONS: Mapping[str, tuple[int, ...]] = {
    "northeast": (9, 23, 25, 33, 34, 36, 42, 44, 50),
    "midwest": (17, 18, 19, 20, 26, 27, 29, 31, 38, 39, 46, 55),
    "south": (1, 5, 10, 11, 12, 13, 21, 22, 24, 28, 37, 40, 45, 47, 48, 51, 54),
    "west": (2, 4, 6, 8, 15, 16, 30, 32, 35, 41, 49, 53, 56),
}
FEATURES = {"log_college": "number", "log_homeownership": "number", "log_income": "number"}
MARK = ".kinfolk-demo"
ROUNDS = 60
KILLED, AFTER = "west", 5  # the site that is killed, and the round after which
WAITING = 60.0  # seconds for a site to write its models


def demonstrate(out: Path, rounds: int = ROUNDS) -> None:
    """Invite four sites, start a process for each, run, and kill one on the way."""
    check_installed()
    from kinfolk.federation.agreement import Agreement
    from kinfolk.federation.flower.processes import free_port
    from kinfolk.federation.operating import invitation_for, make_federation, operate

    folder, console = out / "coordinator", Console()
    _clear(out, folder)
    counties = load_us_counties()
    tables = region_tables(counties.frame)
    agreement = Agreement(
        "counties", f"127.0.0.1:{free_port()}", tuple(tables), counties.target, FEATURES, counties.node,
        compare=("pooled",), rounds=rounds, tolerance=1e-3,
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    _write(_edges(counties.graph), out / "edges.csv")
    make_federation(folder, agreement, out / "edges.csv")
    for name, table in tables.items():
        _write(table, out / f"{name}.csv")
        invitation_for(folder, name, out / f"{name}.invite", days=1)
        print_exact(f"{name}: {len(table):,} counties, invited")
    with contextlib.ExitStack() as stack, live_status(folder, console) as look:
        sites = _Sites(out, stack)
        for name in tables:
            sites.start(name)

        def follow(status: Any) -> None:
            look(status)
            sites.disturb(status)

        operate(folder, look=follow)
        sites.wait()
    if sites.killed:
        print_exact(f"Site {KILLED!r} was killed after round {AFTER} and started again: nothing was lost.")
    print_outcome(folder, console)
    console.print()
    print_exact(f"What left the site {KILLED!r} ({out / KILLED / 'left.csv'} has every message):")
    show_sent(out / KILLED)


def _clear(out: Path, folder: Path) -> None:
    """Remove what a demo before has left, and nothing else."""
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / MARK).exists():
        raise InputError(f"Expected a new folder, {str(out)!r} has other files: choose another with --out.")
    if running_in(folder) is not None:
        raise InputError(f"Expected that no demo runs in {str(out)!r}, one does: wait, or choose another with --out.")
    names = [f"{name}{end}" for name in REGIONS for end in ("", ".csv", ".invite", ".log")]
    for path in (out / name for name in (*names, "edges.csv", folder.name)):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def region_tables(frame: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """The rows of every census region."""
    state = frame.index.str[:2].astype(int)
    return {name: frame[state.isin(numbers)].drop(columns=["lat", "lon"]) for name, numbers in REGIONS.items()}


def _edges(graph: Graph) -> pandas.DataFrame:
    """The edges, and a row with one name for a county without a neighbour."""
    pairs = graph.to_frame()
    lone = [graph.names[k] for k in np.flatnonzero(graph.degrees == 0).tolist()]
    return pandas.concat([pairs, pandas.DataFrame({pairs.columns[0]: lone})])


def _write(table: pandas.DataFrame, path: Path) -> None:
    write_output(path, table.to_csv(index=False).encode(), lambda file: True)


class _Sites:
    """The processes of the sites; they end with this one."""

    def __init__(self, out: Path, stack: contextlib.ExitStack) -> None:
        self.out, self._stack, self.killed = out, stack, False
        self.programs: dict[str, Any] = {}

    def start(self, name: str) -> None:
        """Start the process of a site, as its owner would."""
        from kinfolk.federation.flower.processes import Program

        words = [
            sys.executable, "-m", "kinfolk", "site", "join", str(self.out / f"{name}.invite"), "--yes",
            "--data", str(self.out / f"{name}.csv"), "--folder", str(self.out / name), "--record",
        ]  # fmt: skip
        self.programs[name] = self._stack.enter_context(Program(words, self.out, self.out / f"{name}.log"))

    def disturb(self, status: Any) -> None:
        """Kill a site with -9 once the run is under way, and start it again."""
        if not self.killed and status.run == "tailored" and status.last["round"] >= AFTER:
            self.killed = True
            os.kill(self.programs[KILLED].pid, signal.SIGKILL)
            self.start(KILLED)

    def wait(self) -> None:
        """Wait until all have written their models."""
        for program in self.programs.values():
            program.wait(WAITING)
