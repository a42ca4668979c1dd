"""Choices that are kept: values, members and weights of a run, for a table that has grown."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kinfolk.algorithms import GTVMin
from kinfolk.checks import InputError
from kinfolk.engine.fit import fit
from kinfolk.engine.run import Run
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.progress import Bar
from kinfolk.report.facts import Role
from kinfolk.tables.choosing import Choice, passed_on, tailored_candidate, wanted_members
from kinfolk.tables.entry import Entry
from kinfolk.tables.intervals import Intervals
from kinfolk.tables.journal import Journal
from kinfolk.tables.members.member import Member
from kinfolk.tables.members.together import ROUGH, RunFit, Together, outputs
from kinfolk.tables.prepared import Prepared
from kinfolk.tables.study import Study
from kinfolk.tables.table_run import TableRun
from kinfolk.tables.validation import Validation
from kinfolk.typing import Bools, Floats, Ints

STEEP = 1e12  # a step at which the dual prox is the slope of the coupling


@dataclass(frozen=True, eq=False)
class KeptChoice(Choice):
    """The choices of a run, for other rows: nothing is cross-validated, and GTV minimisation starts from its answer."""

    before: TableRun

    @classmethod
    def of(cls, before: TableRun, prepared: Prepared, bar: Bar) -> KeptChoice:
        """The choices of ``before`` for the rows of ``prepared``."""
        study = Study.of(prepared, Journal(), bar)
        pooled, alone = (_kept(Together(each), before.entries[each.role.value]) for each in prepared.family.baselines())
        study = study.with_base(pooled)
        tailored = tailored_candidate(study, pooled, alone)
        if tailored.converges:
            tailored = dataclasses.replace(tailored, values=(before.entries[Role.TAILORED].value[0],))
        members = {each.name: each for each in wanted_members(prepared, study.whole, tailored)[0]}
        validations = {"pooled": pooled}
        for name, entry in before.entries.items():
            if entry.fitted is None or name == Role.POOLED or (name == Role.ALONE and entry.part == "baseline"):
                continue
            if name not in members:
                raise InputError(f"Expected rows that the member {name!r} can learn from, got others: fit again.")
            validations[name] = _kept(members[name], entry)
            study = passed_on(study, validations, members[name])
        return cls(study, validations, alone, tailored, {}, before)

    @cached_property
    def control(self) -> None:
        """None: what was drawn at random has no part in choices that are kept."""
        return None

    @cached_property
    def weights(self) -> dict[str, float]:
        """Those of the run before."""
        return {str(name): float(weight) for name, weight in self.before.weights.items()}

    @cached_property
    def path_runs(self) -> list[Run]:
        """The tailored models at the λ that was chosen; a method that does not come to rest walks there again."""
        if self.tailored.converges:
            return [run for run in self.tailored_fit.runs[:1] if isinstance(run, Run)]
        entry = self.before.entries[Role.TAILORED]
        network = outputs(self.study.whole, False, self.tailored.linear)[0]
        values = entry.values[: entry.best + 1, 0].tolist() if self.tailored.warm_start else [entry.value[0]]
        return [list(self.tailored.runs(network, values, ROUGH))[-1]]

    @cached_property
    def intervals(self) -> Intervals | None:
        """Those of the run before; a node that it did not know has the widths of nodes never seen."""
        kept = self.before.intervals
        if kept is None:
            return None
        number = _numbers_before(self.before, self.prepared.names)
        return dataclasses.replace(
            kept,
            scale=np.where(number >= 0, kept.scale[number], float(np.median(kept.scale))),
            seen=(number >= 0) & kept.seen[number],
            usual=np.where(number >= 0, kept.usual[number], 0.0),
        )

    def start(self, network: Network, algorithm: Any, output: int) -> Run | None:
        """GTV minimisation from the parameters before; new nodes from the mean of their neighbours."""
        fitted = self.before.entries[Role.TAILORED].fitted
        if not isinstance(algorithm, GTVMin) or not isinstance(fitted, RunFit) or fitted.scores is None:
            return None
        blank = fit(network, algorithm, rounds=0, stop=None, progress=False)
        number = _numbers_before(self.before, self.prepared.names)
        w = spread_out(network.graph, np.where(number[:, None] >= 0, fitted.scores.w[output][number], np.nan))
        steep, site = np.full(network.graph.edge_count, STEEP), network.site
        apart = site.difference(w, w[:0])
        u = algorithm.coupling.dual_prox(STEEP * apart, steep, algorithm.lam * site.weights)
        return blank.with_state(blank.state._replace(w=w, w_bar=w.copy(), u=u))


def spread_out(graph: Graph, w: Floats) -> Floats:
    """Parameters of all nodes: where they are not known, the mean of known neighbours, or of all.

    >>> spread_out(Graph(4, [[0, 1]]), np.array([[1.0], [np.nan], [3.0], [np.nan]])).ravel().tolist()
    [1.0, 1.0, 3.0, 2.0]
    """
    known: Bools = np.asarray(~np.isnan(w).any(axis=1))
    if known.all():
        return w
    if not known.any():
        return np.zeros_like(w)
    total, count = np.zeros_like(w), np.zeros(len(w))
    for mine, other in ((graph.head, graph.tail), (graph.tail, graph.head)):
        told = known[other]
        np.add.at(total, mine[told], w[other[told]])
        np.add.at(count, mine[told], 1.0)
    near = np.divide(total, count[:, None], out=np.tile(w[known].mean(axis=0), (len(w), 1)), where=count[:, None] > 0)
    return np.where(known[:, None], w, near)


def _kept(member: Member, entry: Entry) -> Validation:
    """The value that was chosen, with its error in cross-validation."""
    best = slice(entry.best, entry.best + 1)
    return Validation(member, [entry.value], entry.errors[best], entry.shares, 0, np.empty(0), entry.error)


def _numbers_before(before: TableRun, names: list[str]) -> Ints:
    """The number that every node had in a run (nodes,); −1 where it had none."""
    number = {str(name): k for k, name in enumerate(before.graph.names)}
    return np.array([number.get(name, -1) for name in names], dtype=np.int64)
