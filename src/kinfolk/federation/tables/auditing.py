"""A job about tables as a site has recorded it, for an audit: what each place would read with other rows at one node.

Attacked are the sums and the numbers of nodes that are told of rows directly (sums and squares of columns, derivatives,
products, curvatures, how the models of nodes differ), and the final fits in lanes. Sums of losses, and what is told of
held-out rows in the end, are not. Rows are those that learning sees, encoded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.algorithms.newton import SUMMED_OVER_SITE
from kinfolk.checks import InputError
from kinfolk.engine.noise import Noise
from kinfolk.engine.protocol import Arrays
from kinfolk.federation.audit import COORDINATOR, RELAY, Effort, RecordedRun, Views, finite, records_of
from kinfolk.federation.joining import Join
from kinfolk.federation.keys import SiteKey
from kinfolk.federation.lanes import bundle_expected, unbundled
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import algorithm_of, peek
from kinfolk.federation.tables.answering import TableAnswers
from kinfolk.federation.tables.remembering import RECORDED, questions_of
from kinfolk.federation.tables.site_table import Answer, SiteTable
from kinfolk.federation.tables.works import WORKS, read_question
from kinfolk.network.data import Data
from kinfolk.tables.rows import Rows
from kinfolk.typing import Floats, Ints

BEGINNING = ("describe", "count", "totals", "scale", "encode")
QUICK = Effort(starts=1, evaluations=12)  # a job takes longer to repeat than a run
ATTACKED = ("derivatives", "kin sums", "kin", "traces")


@dataclass(frozen=True, eq=False)
class RecordedJob:
    """A job of a site as it was recorded: what it was asked about its rows, and the final fits in lanes.

    Parameters
    ----------
    name : str
        Of the site.
    table : SiteTable
        Its rows, encoded and split as they were.
    asked : sequence of (str, dict)
        Questions about rows, with their arrays.
    lanes : sequence of (bytes, sequence of bytes)
        Of every final fit, how it was joined, and what was asked.
    key : SiteKey
        Of the site, which opens the letters that it received.
    masked : bool
        Whether sums are masked, so that of this site the coordinator reads none.
    """

    name: str
    table: SiteTable
    asked: Sequence[tuple[str, Arrays]]
    lanes: Sequence[tuple[bytes, Sequence[bytes]]]
    key: SiteKey
    masked: bool = False
    noise: Noise | None = None  # there is none where tables are learnt from
    effort: Effort = QUICK

    @classmethod
    def read(cls, name: str, folder: Path, mark: str, answers: TableAnswers) -> RecordedJob:
        """The last job in the folder of a site; ``mark``: of the table and the agreement that it was made with."""
        path = folder / RECORDED
        found = records_of(path) if path.is_file() else []
        begun, questions = questions_of(found)
        if begun is None:
            raise InputError(
                f"Expected a job that was recorded in {str(folder)!r}, found none: take part with --record."
            )
        if begun.mark != mark:
            raise InputError(f"Expected the rows that site {name!r} has taken part with, got others: pass that table.")
        asked: list[tuple[str, Arrays]] = []
        bundles: dict[bytes, list[bytes]] = {}
        for content in questions:
            kind, key = peek(content)
            if kind == "lanes":
                bundles.setdefault(key.run, []).append(content)
                continue
            work, about, arrays = read_question(content, key, answers.sizes)
            if work in BEGINNING:
                answers.answered(work, about, arrays)
            elif work in (*ATTACKED, "alone"):
                asked.append((work, arrays))
        last = next(reversed(bundles.values()), [])
        return cls(name, answers.job.table, asked, _lanes(last), SiteKey.at(folder))

    @cached_property
    def _order(self) -> Ints:
        """Training rows as they stand at their nodes."""
        return np.argsort(self.table.training.owner, kind="stable")

    @cached_property
    def rows(self) -> SiteRows:
        """The training rows, and those held out, encoded."""
        table, count = self.table, len(self.table.nodes)
        data, test = (Data.from_rows(each.X, each.y, each.owner, count) for each in (table.training, table.test))
        return SiteRows(table.nodes, table.encoder.get_feature_names_out(), data, test if len(test.y) else None)

    @property
    def classes(self) -> bool:
        """Whether the target is a class."""
        return bool(self.table.target.classes)

    @property
    def units(self) -> tuple[Any, Any] | None:
        """Where rows are, and how wide: they are scaled."""
        return 0.0, 1.0

    def with_masks(self) -> RecordedJob:
        """The same where sums are masked."""
        return replace(self, masked=True)

    @property
    def held_out_alone(self) -> list[str]:
        """Nodes of which one row is held out: the error that is told of them is that of the row."""
        held = np.bincount(self.table.test.owner, minlength=len(self.table.nodes))
        return [str(self.table.nodes[k]) for k in np.flatnonzero(held == 1).tolist()]

    @property
    def reading_sites(self) -> Ints:
        """How many other sites read messages of each node, in the first of the fits."""
        runs = self._runs(self.table)
        return runs[0].reading_sites if runs else np.zeros(len(self.table.nodes), dtype=np.int64)

    def views(self, rows: SiteRows, node: int, noise: Noise | None) -> Views:
        """What every place would have read of a node (its row number)."""
        table = self._with(rows)
        parts: dict[str, list[Floats]] = {COORDINATOR: [], RELAY: []}
        if not self.masked:
            X, y = table.training.X, table.training.y
            parts[COORDINATOR] += [X.sum(axis=0), y.sum(keepdims=True), (X**2).sum(axis=0), (y**2).sum(keepdims=True)]
        for work, arrays in self.asked:
            parts[COORDINATOR] += self._told(table, work, arrays, node)
        for run in self._runs(table):
            for place, values in run.views(run.rows, node, None).items():
                parts.setdefault(place, []).append(values)
        return {place: finite(np.concatenate(part)) for place, part in parts.items() if part}

    def guesses(self, place: str, observed: Floats, known: Floats, count: int) -> list[Floats]:
        """What sums of columns tell: those of the rows that are not known, which are taken for equal."""
        if place != COORDINATOR or self.masked:
            return []
        width = len(self.rows.features) + 1
        return [(observed[:width] - known.sum(axis=0)) / count]

    def _with(self, rows: SiteRows) -> SiteTable:
        """The table with other training rows, in the places of those that it has."""
        table, given = copy.copy(self.table), self.table.training
        X, y = np.empty_like(given.X), np.empty_like(given.y)
        X[self._order], y[self._order] = rows.data.X, rows.data.y
        table.training = Rows(X, y, given.owner)
        table.__dict__.pop("part_data", None)
        return table

    def _told(self, table: SiteTable, work: str, arrays: Arrays, node: int) -> list[Floats]:
        """What an answer tells: all of what is summed over the site, or what is told of the node."""
        if work == "alone":
            table.leave_out(arrays["without"])
            return []
        if WORKS[work].summed and self.masked:
            return []
        works: dict[str, Callable[..., Answer]] = {
            "derivatives": table.derivatives, "kin sums": table.kin_sums, "kin": table.kin, "traces": table.traces
        }  # fmt: skip
        _, found = works[work](**{name: values if values.ndim else values.item() for name, values in arrays.items()})
        gives = WORKS[work].gives
        return [np.ravel(_of_node(values, gives[name].axes, node)) for name, values in found.items()]

    def _runs(self, table: SiteTable) -> list[RecordedRun]:
        """The final fits, with the rows of a table."""
        out = []
        for joined, requests in self.lanes:
            join = Join.decode(joined, list(table.nodes))
            rows = table.part(join.part).with_features(join.features)
            hidden = SUMMED_OVER_SITE if self.masked else ()
            out.append(RecordedRun(self.name, joined, algorithm_of(join.spec), rows, self.key, requests, hidden=hidden))
        return out


def _of_node(values: Any, axes: Sequence[str], node: int) -> Any:
    return np.take(values, node, axis=axes.index("nodes")) if "nodes" in axes else values


def _lanes(bundles: Sequence[bytes]) -> list[tuple[bytes, list[bytes]]]:
    """Of every lane, how it was joined, and what was asked."""
    joined: dict[int, bytes] = {}
    requests: dict[int, list[bytes]] = {}
    for content in bundles:
        letters: Mapping[int, bytes] = unbundled(content, bundle_expected({}, len(content)))[1]
        for lane, letter in letters.items():
            if peek(letter)[0] == "join":
                joined[lane] = letter
            else:
                requests.setdefault(lane, []).append(letter)
    return [(joined[lane], requests[lane]) for lane in sorted(joined) if lane in requests]
