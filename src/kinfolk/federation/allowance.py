"""How often a site answers: the bounds that its owner has agreed to, and a count of what has been used of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from kinfolk.checks import InputError
from kinfolk.federation.files import read_json, replace_file

COUNTED = "runs.json"  # in the folder of a site
REQUESTS = 10  # for every round: exchanges, a measurement, and rounds that are made again without a site


@dataclass(frozen=True)
class Allowance:
    """How often a site may be asked.

    Parameters
    ----------
    rounds : int
        Of a run, at most.
    runs : int
        At most, since the owner has agreed; they are counted in the folder of the site.
    """

    rounds: int
    runs: int

    def begin(self, run: bytes, site: str, folder: Path) -> None:
        """Count a run; refuse one too many. One that is begun anew is another, whatever a coordinator calls it."""
        path = folder / COUNTED
        known = list(read_json(path).get("runs", []))
        if len(known) >= self.runs:
            raise InputError(
                f"Expected {self.runs:,} runs at most, as the owner of site {site!r} has agreed to, got one more: send "
                "a new invitation."
            )
        replace_file(path, json.dumps({"runs": [*known, run.hex()]}).encode())

    def check(self, round_: int, number: int, site: str) -> None:
        """Refuse a request of a round, or with a number, beyond what was agreed on.

        >>> Allowance(rounds=20, runs=1).check(20, 60, "north")
        >>> Allowance(rounds=20, runs=1).check(21, 60, "north")
        Traceback (most recent call last):
        ...
        kinfolk.checks.InputError: Expected 20 rounds at most, as the owner of site 'north' has agreed to, got more: send a new invitation.
        """  # noqa: E501
        if round_ > self.rounds or number > REQUESTS * (self.rounds + 1):
            raise InputError(
                f"Expected {self.rounds:,} rounds at most, as the owner of site {site!r} has agreed to, got more: send "
                "a new invitation."
            )


def forget_runs(folder: Path) -> None:
    """The owner has agreed anew: what was counted before no longer counts."""
    (folder / COUNTED).unlink(missing_ok=True)
