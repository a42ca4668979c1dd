"""What is known after each stage of learning from a table: prepared, chosen, learnt."""

from __future__ import annotations

from dataclasses import dataclass

import pandas

from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.tables.candidates import Fit
from kinfolk.tables.choosing import Training, Validation
from kinfolk.tables.columns import Columns
from kinfolk.tables.encoding import Encoder
from kinfolk.tables.families import Family
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Target
from kinfolk.typing import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table as learning sees it."""

    settings: Settings
    fingerprint: str  # of the table
    kinship_mark: str  # of the edges, if some were given
    row_count: int
    table: pandas.DataFrame  # rows with a target
    family: Family
    columns: Columns
    encoder: Encoder
    target: Target
    owner: Ints  # (rows,)
    X: Floats  # (rows, features)
    y: Floats  # (rows,)
    held_out: Bools  # (rows,)
    training: Training
    places: Floats | None
    notes: list[str]

    @property
    def tested(self) -> Ints:
        """The node of every test row."""
        return self.owner[self.held_out]


@dataclass(frozen=True, eq=False)
class Chosen:
    """The best strength of every way to learn."""

    network: Network  # all training rows
    validations: dict[str, Validation]  # by role
    control: Graph | None


@dataclass(frozen=True, eq=False)
class Learnt:
    """The answers, and the path of the tailored one."""

    fits: dict[str, Fit]  # by role
    along: list[Fit]  # the tailored one, along λ
