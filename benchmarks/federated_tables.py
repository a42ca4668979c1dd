"""The main job across four sites against one table: are the same values chosen, and are the errors the same?

    python benchmarks/federated_tables.py --data FOLDER [TABLE ...]      hospitals, stations, schools, counties

Tables are cut by node into four sites: counties by census region, others by name. Members are those that need no rows
of others. One line of a table for each: it goes to docs/how-to/federated-tables.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk import learn
from kinfolk.datasets.tables import named_table
from kinfolk.engine.protocol import Missing
from kinfolk.federation.tables.federated_job import learn_together
from kinfolk.federation.tables.service import TableService
from kinfolk.tables import Settings

TABLES = ("hospitals", "stations", "schools", "counties")
MEMBERS = "pooled,slopes,tailored,wide"
SITES = 4
REGIONS = {
    "Northeast": "CT ME MA NH RI VT NJ NY PA",
    "Midwest": "IL IN MI OH WI IA KS MN MO NE ND SD",
    "South": "DE FL GA MD NC SC VA DC WV AL KY MS TN AR LA OK TX",
}
HEAD = "| data | nodes | exchanges | MB | blend | tailored | λ | largest difference of errors | same judgement |"


class Called:
    """Carries blobs by calling services in this process, and counts."""

    def __init__(self, services: Mapping[str, TableService]) -> None:
        self.services, self.exchanges, self.bytes = services, 0, 0

    def ask(self, blobs: Mapping[str, bytes], most: Mapping[str, int], seconds: float) -> dict[str, bytes | Missing]:
        """Call every service."""
        self.exchanges += 1
        found = {name: self.services[name].answer(blob) for name, blob in blobs.items()}
        self.bytes += sum(map(len, blobs.values())) + sum(map(len, found.values()))
        return dict(found)


def home_of(name: str, names: list[str]) -> dict[str, str]:
    """The site of every node."""
    if name != "counties":
        return {node: f"site {k * SITES // len(names)}" for k, node in enumerate(names)}
    region = {state: site for site, states in REGIONS.items() for state in states.split()}
    return {node: region.get(node[-2:], "West") for node in names}


def compared(name: str, folder: str | None) -> str:
    """One line: learn together, learn from the whole table, compare."""
    table = named_table(name, folder)
    options: dict[str, Any] = {**table.options, "members": MEMBERS}
    settings = Settings.of(options)
    nodes = table.frame[settings.node].astype(str)
    home = nodes.map(home_of(name, sorted(nodes.unique())))
    parts = {site: rows.reset_index(drop=True) for site, rows in table.frame.groupby(home)}
    with tempfile.TemporaryDirectory() as place:
        services = {site: TableService(site, rows, Path(place) / site) for site, rows in parts.items()}
        post, began = Called(services), time.process_time()
        run = learn_together(post, list(services), settings, edges=table.edges)
        text, seconds = run.judgement.text, time.process_time() - began
        for service in services.values():
            service.close()
    whole = learn(table.frame, edges=table.edges, progress=False, **options)
    board, other = run.leaderboard, whole.leaderboard
    apart = np.abs(board["error"] / other.loc[board.index, "error"].astype(float) - 1).max()
    chosen = all(
        np.allclose(each.value, whole.entries[member].value, rtol=1e-9) for member, each in run.validations.items()
    )
    print(pandas.concat({"sites": board["error"], "one table": other.loc[board.index, "error"]}, axis=1))
    print(
        f"{name}: {seconds:.0f} CPU seconds for all sites; values {'the same' if chosen else 'DIFFER'}\n{text}",
        flush=True,
    )
    errors = [f"{board['error'][line]:.5g} ({other['error'][line]:.5g})" for line in ("final", "tailored")]
    same = "yes" if text == whole.judgement.text else "no"
    cells = [name, f"{run.graph.node_count:,}", f"{post.exchanges}", f"{post.bytes / 1e6:.0f}", *errors]
    cells += [f"{run.validations['tailored'].value[0]:.3g}{'' if chosen else ' (differs)'}", f"{apart:.0e}", same]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a line for every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=TABLES)
    parser.add_argument("--data", default=None)
    given = parser.parse_args()
    lines = [compared(name, given.data) for name in given.tables or TABLES]
    print(HEAD, "| --- |" + " ---: |" * 7 + " --- |", *lines, sep="\n")


if __name__ == "__main__":
    main()
