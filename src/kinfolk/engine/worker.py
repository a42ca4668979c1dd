"""SiteWorker: one site, one algorithm. Arrays in, arrays out; no engine in sight."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from kinfolk.engine.author_checks import check_declared, check_outbox, check_state
from kinfolk.engine.noise import NoisyOutbox
from kinfolk.engine.protocol import (
    Algorithm,
    Arrays,
    Inbox,
    Messages,
    Missing,
    Models,
    Outbox,
    Received,
    Request,
    Sends,
    SiteId,
    SiteSnapshot,
    Turn,
    axes_of,
)
from kinfolk.network.site import Site
from kinfolk.typing import Bools, Ints

ERROR, TESTED = "test error", "test rows"  # names of scalars: the sum of errors, and the number of rows
CHECKED_ROUNDS = 2  # what an author got wrong shows by then


class _Undo(NamedTuple):
    """What a round may have changed."""

    state: Any
    sent: Arrays
    rows: dict[str, tuple[Ints, Any]] | None  # state fields: old rows, where the state is changed in place
    sent_rows: dict[str, tuple[Ints, Any]] | None
    whole: bool  # False: the algorithm steps in place, and nothing was kept


class SiteWorker:
    """The program of one site: its state, what it last sent, and how to go back to before a round.

    Parameters
    ----------
    site : Site
        What this process may see.
    algorithm : Algorithm
        What is run.
    homes : array of int, shape (outside,)
        The site of every neighbour that lives elsewhere.
    sends : Sends or None
        What may leave a node, to which every outbox is held.
    undoable : bool
        Whether a round of an algorithm that steps in place must be undoable: it costs a copy of the state.
    noise : NoisyOutbox, optional
        Adds noise to what leaves the nodes.
    """

    def __init__(
        self,
        site: Site,
        algorithm: Algorithm[Any],
        homes: Ints,
        sends: Sends | None,
        *,
        undoable: bool,
        noise: NoisyOutbox | None = None,
    ) -> None:
        self.site, self.algorithm, self.homes, self.sends = site, algorithm, homes, sends
        self.undoable, self.noise = undoable, noise
        self.state: Any = None
        self.sent: Arrays = {}
        self._private = False  # whether the arrays of state and sent are ours alone, and may be changed in place
        self._undo: _Undo | None = None
        self._checked = 0

    def answer(self, request: Request) -> Messages | Missing:
        """Do what a request asks for."""
        if request.work == "step":
            return self.step(request)
        if request.work == "measure":
            return self.measure(request)
        if request.work == "finish":
            return self.finish(request)
        return self.begin(request)

    def begin(self, request: Request) -> Messages:
        """Round 0, or "resume": from the present state, for a problem that has changed since."""
        site = self.site if request.carries is None else replace(self.site, live=request.carries)
        turn, warm = request.turn, request.work == "resume"
        first = self.algorithm.resume(site, self.state, turn) if warm else self.algorithm.init(site, turn)
        self._checked = 0
        self.state, outbox = self._checked_answer(site, first, None, turn)
        self.sent, self._private, self._undo = outbox.neighbours, False, None
        return self._messages(outbox, self.site.nodes)

    def step(self, request: Request) -> Messages:
        """One exchange of a round: those present receive, compute and send."""
        here = self._as_of_round(request)
        inbox = self._inbox(request, here)
        if here.part is None:
            self._remember_all()
            new = self.algorithm.step(self.site, self.state, inbox, request.turn)
            self.state, outbox = self._checked_answer(here, new, self.sent, request.turn)
            self.sent, self._private = outbox.neighbours, False
        else:
            outbox = self._step_part(here, inbox, request.turn)
        return self._messages(outbox, here.nodes)

    def finish(self, request: Request) -> Messages | Missing:
        """Take up the state that the algorithm proposes; ``settle`` decides whether it stays."""
        if self.noise is not None:
            return Missing("a solution that uses what no node has sent is none with noise")
        inbox = self._inbox(request, self.site)
        proposed = self.algorithm.finish(self.site, self.state, inbox, request.effort)
        if proposed is None:
            return Missing("there is nothing to propose")
        self._undo = _Undo(self.state, self.sent, None, None, True)
        self.state, outbox = proposed
        self.sent, self._private = outbox.neighbours, False
        return self._messages(outbox, self.site.nodes)

    def measure(self, request: Request) -> Messages:
        """Scalars of every own node, from everybody's last messages, whoever was present."""
        inbox = self._inbox(request, self.site)
        scalars = dict(self.algorithm.measure(self.site, self.state, inbox))
        test = self.site.test
        if test is not None:
            errors = np.zeros(0)
            if len(test.y):
                errors = np.asarray(self._models(inbox).error(test.X, test.y, test.owner), dtype=np.float64)
            known = ~np.isnan(errors)
            scalars[ERROR] = np.bincount(test.owner[known], errors[known], self.site.node_count)
            scalars[TESTED] = np.bincount(test.owner[known], minlength=self.site.node_count)
        return Messages({}, {}, self.site.nodes, scalars, 0)

    def models(self, request: Request) -> Models:
        """The models of the own nodes. They stay here."""
        return self._models(self._inbox(request, self.site))

    def _models(self, inbox: Inbox) -> Models:
        return self.algorithm.models(self.site, self.state, inbox)

    # ------------------------------------------------------------------ a round counts when everybody has answered

    def settle(self, keep: bool) -> bool:
        """Keep what the round did, or go back to before it; False if that is not possible."""
        undo, self._undo = self._undo, None
        if keep or undo is None:
            return True
        if not undo.whole:
            return False
        if undo.rows is None or undo.sent_rows is None:
            self.state, self.sent, self._private = undo.state, undo.sent, False
            return True
        for name, (where, rows) in undo.rows.items():
            getattr(self.state, name)[where] = rows
        for name, (where, rows) in undo.sent_rows.items():
            self.sent[name][where] = rows
        return True

    def save(self, *, copy: bool) -> SiteSnapshot:
        """The present state; a copy unless nobody goes on from here."""
        if not copy:
            return SiteSnapshot(self.state, self.sent)
        return SiteSnapshot(_copied(self.state), {name: rows.copy() for name, rows in self.sent.items()})

    def load(self, snapshot: SiteSnapshot) -> None:
        """Go on from a state, which is then ours."""
        self.state, self.sent, self._private, self._undo = snapshot.state, snapshot.sent, False, None

    def _remember_all(self) -> None:
        if self._undo is not None:  # a later exchange of the same round
            return
        if not self.algorithm.steps_in_place:
            self._undo = _Undo(self.state, self.sent, None, None, whole=True)
        elif self.undoable:
            sent = {name: rows.copy() for name, rows in self.sent.items()}
            self._undo = _Undo(_copied(self.state), sent, None, None, whole=True)
        else:
            self._undo = _Undo(None, {}, None, None, whole=False)

    def _remember_rows(self, nodes: Ints, edges: Ints) -> None:
        if self._undo is not None:
            return
        rows = {}
        for name, axis in axes_of(self.state).items():
            where = nodes if axis == "node" else edges
            rows[name] = (where, getattr(self.state, name)[where])
        self._undo = _Undo(None, {}, rows, {name: (nodes, rows[nodes]) for name, rows in self.sent.items()}, True)

    # ------------------------------------------------------------------ where some are away

    def _as_of_round(self, request: Request) -> Site:
        """The site as this round sees it."""
        if request.carries is None:
            return self.site
        return self.site.as_of_round(_among(self.site.nodes, request.turn.active), request.carries)

    def _step_part(self, here: Site, inbox: Inbox, turn: Turn) -> Outbox:
        """Step those present: they get copies of their rows of the state, and the new rows are written back."""
        assert here.part is not None
        nodes, edges = here.part.nodes, here.part.edges
        axes = axes_of(self.state)
        own = {name: getattr(self.state, name)[nodes if axis == "node" else edges] for name, axis in axes.items()}
        new = self.algorithm.step(here, type(self.state)(**own), inbox, turn)
        new_state, outbox = self._checked_answer(here, new, self.sent, turn)
        if not self._private:
            self.state, self.sent = _copied(self.state), {name: rows.copy() for name, rows in self.sent.items()}
            self._private = True
        self._remember_rows(nodes, edges)
        for name, axis in axes.items():
            rows = getattr(new_state, name)
            if axis == "node":
                getattr(self.state, name)[nodes] = rows
            elif here.live is None:
                getattr(self.state, name)[edges] = rows
            else:
                getattr(self.state, name)[edges[here.live]] = rows[here.live]
        for name, rows in outbox.neighbours.items():
            self.sent[name][nodes] = rows
        return outbox

    def _checked_answer(self, here: Site, answer: Any, before: Arrays | None, turn: Turn) -> tuple[Any, Outbox]:
        """What an algorithm returned: in the first rounds it is looked at closely, what leaves a node always.

        This is the one place where messages leave an algorithm, and where they get noise.
        """
        if self._checked < CHECKED_ROUNDS:
            self._checked += 1
            check_state(self.algorithm, here, answer, None if before is None else self.state)
            check_outbox(self.algorithm, here, answer[1], before)
        state, outbox = answer
        if self.sends is not None:
            check_declared(self.algorithm, outbox, self.sends)
        if self.noise is not None:
            outbox = self.noise(outbox, np.arange(here.node_count) if here.part is None else here.part.nodes, turn)
        return state, outbox

    # ------------------------------------------------------------------ what is received, and what is sent

    def _inbox(self, request: Request, here: Site) -> Inbox:
        """A row of every neighbour elsewhere, NaN from those who are away, and what the coordinator replied."""
        name = type(self.algorithm).__name__
        neighbours, sent = self._gathered(request), self.sent
        each = request.to_each
        if here.part is not None:
            place, there = self._places(here, request.turn.active)
            neighbours = {name: _spread(rows, place, there) for name, rows in neighbours.items()}
            each = {name: rows[here.part.nodes] for name, rows in each.items()}
            sent = {name: rows[here.part.nodes] for name, rows in sent.items()}
        return Inbox(
            Received(neighbours, f"the neighbours in {name}"),
            Received(request.to_all, f"the coordinator of {name}"),
            Received(each, f"the coordinator of {name}"),
            sent,
        )

    def _gathered(self, request: Request) -> dict[str, Any]:
        """The rows of all neighbours elsewhere, in the order of ``site.outside``."""
        if not len(self.homes):
            return {name: rows[:0] for name, rows in self.sent.items()}
        parts = [request.inbox[home] for home in self._routes]
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if self._order is None:
            return whole
        return {name: rows[self._order] for name, rows in whole.items()}

    @cached_property
    def _order(self) -> Ints | None:
        """How rows that come site by site are put into the order of ``site.outside``; None: they are."""
        by_site = np.argsort(self.homes, kind="stable")
        return None if (np.diff(by_site) > 0).all() else np.argsort(by_site)

    def _places(self, here: Site, active: Ints) -> tuple[Ints, Bools]:
        """Where the round's outside nodes stand among the site's, and which of them are elsewhere and present."""
        outside = self.site.outside
        place = np.minimum(np.searchsorted(outside, here.outside), max(len(outside) - 1, 0))
        there = _among(here.outside, active)
        there &= (outside[place] == here.outside) if len(outside) else False
        return place, there

    @cached_property
    def _routes(self) -> dict[SiteId, Ints]:
        return routes_of(self.site, self.homes)

    @cached_property
    def _all_routes(self) -> tuple[Ints, list[tuple[SiteId, slice]]]:
        """The rows that are sent, site by site, and whose they are."""
        ends = np.cumsum([0, *(len(rows) for rows in self._routes.values())])
        slices = [(home, slice(ends[k], ends[k + 1])) for k, home in enumerate(self._routes)]
        return np.concatenate([np.empty(0, dtype=np.int64), *self._routes.values()]), slices

    def _messages(self, outbox: Outbox, senders: Ints) -> Messages:
        neighbours: dict[SiteId, Arrays] = {}
        if len(self.homes):
            rows, slices = self._all_routes
            gathered = {name: values[rows] for name, values in self.sent.items()}
            neighbours = {home: {name: values[part] for name, values in gathered.items()} for home, part in slices}
        row_bytes = sum(values[:1].nbytes for values in self.sent.values())
        return Messages(neighbours, outbox.coordinator, senders, {}, row_bytes)


def routes_of(site: Site, homes: Ints) -> dict[SiteId, Ints]:
    """For every other site that neighbours live at: the own nodes that have an edge to it."""
    count = site.node_count
    crossing = (site.head < count) != (site.tail < count)
    inner = np.minimum(site.head, site.tail)[crossing]
    home = homes[np.maximum(site.head, site.tail)[crossing] - count]
    rows = {int(each): np.unique(inner[home == each]) for each in np.unique(homes)}
    return {each: own[np.argsort(site.nodes[own])] for each, own in rows.items()}  # as the receiver counts them


def _among(nodes: Ints, active: Ints) -> Bools:
    """Which nodes are active; ``active`` ascends."""
    place = np.minimum(np.searchsorted(active, nodes), max(len(active) - 1, 0))
    return active[place] == nodes if len(active) else np.zeros(len(nodes), dtype=bool)


def _copied(state: Any) -> Any:
    """The same state in arrays of its own; objects in them are shared, as they are never changed."""
    return type(state)(*(np.array(values) for values in state))


def _spread(rows: Any, place: Ints, there: Bools) -> Any:
    """The rows of those who are there; NaN (or zero, where there is no NaN) for the others."""
    nothing = np.nan if np.issubdtype(rows.dtype, np.inexact) else 0
    out = np.full((len(there), *rows.shape[1:]), nothing, dtype=rows.dtype)
    out[there] = rows[place[there]]
    return out
