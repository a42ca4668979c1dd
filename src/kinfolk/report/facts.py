"""The facts of a run on a table, as plain data. They are made in ``tables`` and put into words in ``words``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pandas

from kinfolk.engine.saved_run import Account
from kinfolk.network.graph import Graph
from kinfolk.typing import Floats, Ints


class Role(StrEnum):
    """The names in the comparison that every run has; members and rivals have names of their own."""

    FINAL = "final"  # the blend of all members
    TAILORED = "tailored"
    ALONE = "alone"
    POOLED = "pooled"
    CONTROL = "control"  # the blend on graphs and places drawn at random


SHOWN_ROLES = (Role.TAILORED, Role.ALONE, Role.POOLED)  # shown node by node beside the blend
Part = Literal["final", "member", "baseline", "control", "rival"]  # that a line of the leaderboard plays
Verdict = Literal["helps", "no clear difference", "does not help", "not judged"]  # the last: of own members alone
Unit = Literal["nodes", "rows", "times"]


def probability_by(name: str) -> str:
    """The column of held-out rows with the probability that a method has for the class that the blend predicts.

    >>> probability_by("tailored")
    'probability by tailored'
    """
    return f"probability by {name}"


@dataclass(frozen=True)
class Judgement:
    """Whether learning together helps: the models that predict against the better baseline, on held-out rows."""

    verdict: Verdict
    against: Role  # the better baseline on the test rows
    alone_is_possible: bool  # whether some tested node has training rows
    gain: float  # per cent less error than the baseline, and its 95 % interval; None if there is none
    low: float | None
    high: float | None
    visible: float | None  # per cent: the smallest gain that would show in four of five such tests
    rows_needed: int | None  # about how many test rows would show a gain of 5 per cent
    unit: Unit | None  # whose luck the interval is about: blocks of nodes, rows, or blocks of times; None without one
    units: int
    block: int  # nodes or times in a block, at most
    few_times: int | None  # how many times are tested, if too few to include their luck
    nearer: float  # per cent of the held-out rows on which the prediction is nearer than the baseline's
    farther: float  # ... and farther
    better: tuple[float, float] | None  # about how many nodes are better off, per cent from and to; None: unknown
    worse: tuple[str, ...]  # nodes that are worse off, at most one in ten of them wrongly named in expectation
    control: float | None  # the gain on a random graph, where the gain is clear
    own: tuple[str, ...] = ()  # the members, if all are the user's own: what these gain is not told to come from others

    @property
    def text(self) -> str:
        """The judgement in words."""
        from kinfolk.report.words import judgement

        return judgement(self)


@dataclass(frozen=True)
class ClassScores:
    """What is known about probabilities on held-out rows; plain data."""

    log_loss: float
    auc: float | None  # mean over classes, each against the others; None if one class alone was tested
    calibration: list[tuple[float, float, int]]  # mean probability, share that was right, and count, bin by bin
    counts: list[dict[str, Any]]  # for each class: rows, predicted, right
    rare: list[Any]  # classes with few test rows


@dataclass(frozen=True)
class Note:
    """Something that a user should know about how a table was read: its kind, and what fills its sentence."""

    kind: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GraphOrigin:
    """Where the graph came from."""

    kind: Literal["edges", "complete", "coordinates", "similarity"]
    neighbours: int = 0  # that each node chose
    columns: tuple[str, ...] = ()  # with coordinates
    leaves: str = ""  # what had to leave a node to find similar ones, as the measure declares it


@dataclass(frozen=True)
class Made:
    """How a run was made: versions, the table, and the time it took."""

    kinfolk: str
    python: str
    numpy: str
    fingerprint: str  # of the table
    rows: int  # of the table
    seconds: float


@dataclass(frozen=True, eq=False)
class LamPath:
    """The tailored models along λ."""

    lams: Floats  # (values,) ascending
    chosen: int
    errors: Floats  # (values,) in cross-validation, in the units of the leaderboard
    spread: Floats  # (values,) standard error over folds
    groups: Ints  # (values, nodes)
    signature: Floats  # (values, nodes, numbers) coefficients, or predictions, in few numbers
    names: tuple[str, ...]  # of these numbers
    coefficients: bool  # whether they are coefficients


@dataclass(frozen=True, eq=False)
class Changes:
    """What the last update of a run changed. Errors are in the units of the leaderboard."""

    nodes: pandas.DataFrame  # by node: rows_before, rows_new, error_new, error_before, change; see ``updating.py``
    parts: tuple[int, ...]  # rows of the table that was first fitted, and of every update
    error_new: float  # of the models before, on the new rows: they had seen none of them
    error_before: float  # of the models before, on the test rows
    seconds: float  # that the update took

    @property
    def new_rows(self) -> int:
        """Rows that were learnt from in addition."""
        return int(self.nodes["rows_new"].sum())

    @property
    def new_nodes(self) -> list[str]:
        """Nodes that the models before did not know."""
        return [str(name) for name in self.nodes.index[self.nodes["rows_before"].isna()]]


@dataclass(frozen=True, eq=False)
class RunFacts:
    """All that the page reads of a run on a table."""

    settings: Any  # what was asked for
    columns: Any  # what each column is
    target: Any  # the target, as learning sees it
    features: list[str]  # names of the encoded features
    graph: Graph  # who may be kin
    origin: GraphOrigin  # where the graph came from
    places: Floats | None  # positions of the nodes (nodes, 2), if they are known
    models: Any  # the tailored models
    account: Account  # the run of the tailored models, without its rows
    nodes: pandas.DataFrame  # one row per node
    leaderboard: pandas.DataFrame  # one row per role
    judgement: Judgement  # whether learning together helps
    path: LamPath  # the tailored models along λ
    class_scores: ClassScores | None  # how good probabilities are; None for other targets
    predictions: pandas.DataFrame  # one row per held-out row: node, target, and what everything predicts
    edges: pandas.DataFrame  # one row per edge
    history: pandas.DataFrame  # the run of the tailored models, by round
    notes: list[str]  # what a user should know
    made: Made  # how the run was made
    changes: Changes | None  # what the last update changed; None for a run that was not updated


def on_globe(coords: tuple[str, ...]) -> bool:
    """Whether coordinates are latitude and longitude, by their names."""
    return bool(coords) and coords[0].lower().startswith("lat")
