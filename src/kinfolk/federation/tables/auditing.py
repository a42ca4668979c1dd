"""A table job as a site has recorded it, for an audit: what each place would have read with other rows at one node.

The recorded requests are answered again, with those rows and by the code that has answered them. Attacked is every
response that is computed from training rows: sums and squares of columns, moments, deviations, derivatives, every step
of mixed models and of models on graphs, and what boundary nodes send to neighbouring sites. Responses about predictions
(losses, errors, residuals, test sums) are not. Rows are those that learning sees, encoded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kinfolk.checks import InputError
from kinfolk.engine.noise import Noise
from kinfolk.engine.protocol import Arrays
from kinfolk.federation.audit import COORDINATOR, MOST_COMPARED, RELAY, Effort, Views, finite, records_of
from kinfolk.federation.keys import OVERHEAD, Peer, Sealer, SiteKey
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import peek
from kinfolk.federation.tables.handlers import SiteHandlers
from kinfolk.federation.tables.packing import arguments, from_triangles, to_triangles
from kinfolk.federation.tables.queries import QUERIES, opened, read_query
from kinfolk.federation.tables.site_journal import RECORDED, Begun, questions_of
from kinfolk.network.data import Data
from kinfolk.report.privacy_words import AUDIT_NEIGHBOUR
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.table_rows import TableRows
from kinfolk.typing import Floats, Ints

READING = ("describe", "measure", "scale", "encode")
START = "validate pooled"  # tells the models that later fits start from
PREDICTIONS = ("validate", "errors", "residuals", "spread", "test", "gains")  # how queries about predictions begin
WITHOUT_ROWS = ("introduce", "exchange keys", "finish")
ELIMINATION = ("begin graph", "step graph")  # not asked where sums are masked
QUICK = Effort(starts=1, evaluations=12)  # a job takes longer to repeat than a run
NOWHERE = np.empty(0, dtype=np.int64)


class Border(NamedTuple):
    """The boundary nodes of a batch of fits, and which of them each neighbouring site reads, by their own numbers."""

    nodes: Ints
    readers: Mapping[str, Ints]  # by the name of the site; that of a neighbouring site is not known by elimination

    @classmethod
    def of(cls, graph: Arrays, peers: Mapping[int, Peer]) -> Border:
        """From the request that began the batch."""
        nodes, foreign = graph.get("boundary", NOWHERE), graph.get("foreign", NOWHERE)
        if not len(foreign):
            return cls(nodes, {AUDIT_NEIGHBOUR: nodes} if len(nodes) else {})
        here, there = graph["links"].T
        return cls(
            nodes, {peers[site].name: nodes[np.unique(here[foreign[there] == site])] for site in np.unique(foreign)}
        )


class RecordedQuery(NamedTuple):
    """A query as it was asked, in which message, and the border of the batch that it is about."""

    name: str
    about: Mapping[str, Any]
    arrays: Arrays
    number: int
    border: Border


class OpenSealer(Sealer):
    """Opens messages of other sites; those to them are kept as they are, for an audit."""

    sent: list[tuple[str, bytes]]

    def seal(self, site: int, number: int, content: bytes) -> bytes:
        """Keep a message; what is returned has its length when it is encrypted."""
        self.sent.append((self.peers[site].name, content))
        return bytes(OVERHEAD + len(content))


@dataclass(frozen=True, eq=False)
class RecordedJob:
    """A table job of a site as it was recorded: its rows, and what it was asked about them.

    Parameters
    ----------
    name : str
        Of the site.
    handlers : SiteHandlers
        They have read the table, and have encoded and split its rows as in the job.
    queries : sequence of RecordedQuery
        All queries that are attacked, and those that they build on, in order.
    masked : bool
        Whether sums are masked, so that of this site the coordinator reads none.
    unread : sequence of str
        Queries whose responses nobody reads.
    """

    name: str
    handlers: SiteHandlers
    queries: Sequence[RecordedQuery]
    masked: bool = False
    unread: Sequence[str] = ()
    noise: Noise | None = None  # there is none where tables are learnt from
    effort: Effort = QUICK

    @classmethod
    def read(cls, name: str, folder: Path, mark: str, handlers: SiteHandlers) -> RecordedJob:
        """Read the last job in the folder of a site.

        Parameters
        ----------
        name : str
            Of the site.
        folder : Path
            Its folder.
        mark : str
            Of the table and the agreement that the job has to have been made with.
        handlers : SiteHandlers
            That have answered nothing yet: they read the table as they did in the job.
        """
        path = folder / RECORDED
        begun, messages = questions_of(records_of(path) if path.is_file() else [])
        if begun is None:
            raise InputError(
                f"Expected a job that was recorded in {str(folder)!r}, found none: take part with --record."
            )
        if begun.mark != mark:
            raise InputError(f"Expected the rows that site {name!r} has taken part with, got others: pass that table.")
        queries: list[RecordedQuery] = []
        graphs: dict[str, Arrays] = {}  # with which batches began
        for message in messages:
            for query, content in opened(message).queries:
                about, arrays = read_query(query, content, handlers.sizes)
                number, batch = peek(message)[1].number, str(about.get("batch", ""))
                if query.startswith("begin"):
                    graphs[batch] = arrays
                if query == "exchange keys":
                    handlers.sealer = _sealer(SiteKey.at(folder), name, begun, about)
                elif query in READING:
                    handlers.answered(query, about, arrays, number)
                elif query == START or not query.startswith((*PREDICTIONS, *WITHOUT_ROWS)):
                    peers = {} if handlers.sealer is None else handlers.sealer.peers
                    border = Border.of(graphs.get(batch, {}), peers)
                    queries.append(RecordedQuery(query, about, arrays, number, border))
        return cls(name, handlers, queries)

    @property
    def table(self) -> TableRows:
        """The rows of the site, encoded and split."""
        return self.handlers.learning.rows

    @cached_property
    def _order(self) -> Ints:
        """Training rows as they stand at their nodes."""
        return np.argsort(self.table.training.owner, kind="stable")

    @cached_property
    def rows(self) -> SiteRows:
        """The training rows, and the test rows, encoded."""
        table, count = self.table, len(self.table.nodes)
        data, test = (Data.from_rows(each.X, each.y, each.owner, count) for each in (table.training, table.test))
        return SiteRows(table.nodes, table.encoder.get_feature_names_out(), data, test if len(test.y) else None)

    @property
    def classes(self) -> bool:
        """Whether the target is a class."""
        return bool(self.table.target.classes)

    @property
    def units(self) -> tuple[Any, Any] | None:
        """Centre and width of all columns: they are scaled."""
        return 0.0, 1.0

    def with_masks(self) -> RecordedJob:
        """The same job where sums are masked: then nobody asks for the responses of boundary nodes either."""
        return replace(self, masked=True, unread=ELIMINATION)

    @property
    def held_out_alone(self) -> list[str]:
        """Nodes of which one row is held out: the error that is told of them is that of the row."""
        held = np.bincount(self.table.test.owner, minlength=len(self.table.nodes))
        return [str(self.table.nodes[k]) for k in np.flatnonzero(held == 1).tolist()]

    def _readers(self, node: int) -> set[str]:
        """The sites that read what a node sends, in any batch."""
        return {site for each in self.queries for site, own in each.border.readers.items() if node in own}

    @property
    def reading_sites(self) -> Ints:
        """How many other sites read what each node sends, as far as this site is told."""
        return np.array([len(self._readers(node)) for node in range(len(self.table.nodes))], dtype=np.int64)

    # ------------------------------------------------------------------ repeating the job

    def views(self, rows: SiteRows, node: int, noise: Noise | None) -> Views:
        """What every place would have read of a node (its row number) with other rows; requests stay as they were."""
        handlers = copy.copy(self.handlers)
        handlers.party = LocalParty(self._with(rows))
        handlers.sealer = copy.copy(handlers.sealer)
        parts: dict[str, list[Floats]] = {COORDINATOR: [], RELAY: [], **{site: [] for site in self._readers(node)}}
        if not self.masked:
            X, y = handlers.learning.rows.training.X, handlers.learning.rows.training.y
            parts[COORDINATOR] += [X.sum(axis=0), y.sum(keepdims=True), (X**2).sum(axis=0), (y**2).sum(keepdims=True)]
        for query in self.queries:
            for place, values in self._read(handlers, query, node):
                parts[place].append(np.ravel(values).astype(np.float64))
        return {place: finite(np.concatenate(part)) for place, part in parts.items() if part}

    def guesses(self, place: str, observed: Floats, known: Floats, count: int) -> list[Floats]:
        """What sums of columns tell: those of the rows that are not known, which are taken for equal."""
        if place != COORDINATOR or self.masked:
            return []
        width = len(self.rows.features) + 1
        return [(observed[:width] - known.sum(axis=0)) / count]

    def _with(self, rows: SiteRows) -> TableRows:
        """The table with other training rows, in the places of those that it has."""
        X, y = self.table.rows.X.copy(), self.table.rows.y.copy()
        places = np.flatnonzero(self.table.train)[self._order]
        X[places], y[places] = rows.data.X, rows.data.y
        return replace(self.table, rows=self.table.rows._replace(X=X, y=y))

    def _read(self, handlers: SiteHandlers, query: RecordedQuery, node: int) -> Iterator[tuple[str, Floats]]:
        """Answer a query again: who reads what of a node."""
        party, width = handlers.learning, self.rows.data.feature_count + 1
        if query.name == START:  # what is predicted plays no part
            given = arguments(query.name, query.about, query.arrays, self.table.settings, self.table.target)[1]
            party.source(given["name"], given["values"], None, given["models"], "", {}, None)
            return
        sent: list[tuple[str, bytes]] = []
        if isinstance(handlers.sealer, OpenSealer):
            handlers.sealer.sent = sent
        _, found = handlers.answered(query.name, query.about, query.arrays, query.number)
        yield RELAY, np.array([sum(np.asarray(values).nbytes for values in found.values())])
        declared, border = QUERIES[query.name].response, query.border.nodes
        if node in border and any("boundary pairs" in each.axes for each in declared.values()):
            found = {**found, **_own_equations(found, int(np.flatnonzero(border == node)[0]), len(border), width)}
        for name, values in found.items():
            hidden = declared[name].reader == "neighbours" or (declared[name].reader == "sum" and self.masked)
            if not hidden and query.name not in self.unread:
                yield COORDINATOR, _of_node(values, declared[name].axes, node)
        for site, content in sent:
            own = query.border.readers[site]
            yield site, np.frombuffer(content).reshape(-1, len(own), width)[:, own == node]
        if "move" in query.arrays and node in query.border.nodes:
            # A neighbouring site is told the pull at its own nodes: with one neighbour elsewhere, the model of that.
            batch = party.batches[str(query.about["batch"])]
            yield AUDIT_NEIGHBOUR, batch.w[query.arrays["size"] == 1.0, node]


def _sealer(key: SiteKey, name: str, begun: Begun, about: Mapping[str, Any]) -> OpenSealer:
    """Opens what other sites sent in a job, with the keys that were exchanged."""
    peers = enumerate(Peer(site, bytes.fromhex(each["key"])) for site, each in about["sites"].items())
    return OpenSealer(key, name, begun.job, {number: peer for number, peer in peers if peer.name != name})


def _of_node(values: Any, axes: Sequence[str], node: int) -> Floats:
    """What an array tells of a node: its own numbers if it has some, else all; of many, some."""
    array = np.asarray(values)
    told = np.ravel(np.take(array, node, axis=axes.index("nodes")) if "nodes" in axes else array)
    return told[np.unique(np.linspace(0, len(told) - 1, min(len(told), MOST_COMPARED)).astype(np.int64))]


def _own_equations(found: Arrays, place: int, count: int, width: int) -> Arrays:
    """What responses of boundary nodes tell of one of them, in the units of its rows.

    The inverse of a node's own response is X'X, and with it where the node goes is X'y, up to what does not depend on
    its rows: so nothing is lost, and an attack has simple equations.
    """
    own = from_triangles(found["matrix"][:, _own_pairs(place, width, count * width)])
    inverse = np.linalg.pinv(own, hermitian=True)
    vector = np.einsum("fjk,fk->fj", inverse, found["vector"][:, place])
    return {"matrix": to_triangles(np.asarray(inverse, dtype=np.float64)), "vector": vector}


def _own_pairs(place: int, width: int, size: int) -> Ints:
    """Where the upper triangle of a (size, size) matrix has that of the block of one boundary node.

    >>> _own_pairs(1, 2, 4).tolist()  # rows begin at 0, 4, 7, 9
    [7, 8, 9]
    """
    row, column = (each + place * width for each in np.triu_indices(width))
    return np.asarray(row * size - row * (row - 1) // 2 + column - row)
