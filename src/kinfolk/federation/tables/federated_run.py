"""FederatedRun: what the coordinator knows when sites have learnt together. The models stay at the sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas

from kinfolk.federation.tables.requests import RemoteParties
from kinfolk.network.graph import Graph
from kinfolk.report.facts import Judgement, Note, Role
from kinfolk.report.words import note_text
from kinfolk.tables.cross_validation import Validation
from kinfolk.tables.design import Design
from kinfolk.tables.held_out import TestErrors
from kinfolk.tables.job import Tuning
from kinfolk.tables.judging import judge
from kinfolk.tables.node_gains import node_gains


@dataclass(eq=False)
class FederatedRun:
    """What came of learning together, as far as a coordinator may know it: numbers per node, no rows, no models.

    Attributes
    ----------
    tuning : Tuning
        What cross-validation has chosen.
    errors : TestErrors
        Errors of the test rows, as sums by node.
    parties : RemoteParties
        The sites.
    gone : dict of str to str
        Sites that did not answer, so that all began anew without them, and why.
    """

    tuning: Tuning
    errors: TestErrors
    parties: RemoteParties
    gone: dict[str, str] = field(default_factory=dict)

    @property
    def design(self) -> Design:
        """Columns, encoder, target, nodes."""
        return self.tuning.design

    @property
    def graph(self) -> Graph:
        """Which nodes may be kin."""
        return self.tuning.cv.scene.graphs[-1]

    @property
    def validations(self) -> dict[str, Validation]:
        """How members did on rows that they had not learnt from, and the values that were chosen."""
        return {**self.tuning.validations, Role.ALONE.value: self.tuning.alone}

    @property
    def weights(self) -> dict[str, float]:
        """The weight of every member of the ensemble."""
        return self.tuning.weights

    @property
    def left_out(self) -> dict[str, str]:
        """Members that are skipped, and why."""
        return self.tuning.left_out

    @property
    def exchanges(self) -> int:
        """Messages to every site."""
        return self.parties.number

    @cached_property
    def leaderboard(self) -> pandas.DataFrame:
        """The ensemble, its members, baselines and control: weight, error in cross-validation, error of test rows."""
        shown = self.design.target.shown
        kept = [name for name in self.errors.methods if self.alone_is_possible or name != Role.ALONE]
        rows = {name: self._line(name) | {"error": float(shown(self.errors.mean(name)))} for name in kept}
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("name")

    def _line(self, name: str) -> dict[str, Any]:
        found = self.validations.get(name)
        error = np.nan if found is None else float(self.design.target.shown(found.error))
        value = () if found is None else found.value
        return {"weight": self.weights.get(name), "value": value, "validated": error}

    @property
    def alone_is_possible(self) -> bool:
        """Whether some tested node has training rows."""
        return self.design.local_models_possible

    @cached_property
    def judgement(self) -> Judgement:
        """Whether learning together helps."""
        baselines = [Role.ALONE, Role.POOLED] if self.alone_is_possible else [Role.POOLED]
        return judge(self.errors, self.graph, baselines, not self.alone_is_possible)

    @cached_property
    def nodes(self) -> pandas.DataFrame:
        """One row per node: its site's rows, errors in the units of the leaderboard, and gains, shrunk."""
        errors, shown = self.errors.by_node(), self.design.target.shown
        gain, error = node_gains(self.errors, Role.FINAL, self.judgement.against, self.graph.node_count)
        columns = {f"error_{name}": shown(errors[name].to_numpy()) for name in self.errors.methods}
        rows = {"train_rows": self.design.train_rows, "test_rows": self.errors.sizes}
        index = pandas.Index(self.design.names, name="node")
        return pandas.DataFrame({**rows, **columns, "gain": gain, "gain_error": error}, index=index)

    @property
    def facts(self) -> list[Note]:
        """What a user should know, as data."""
        found = [Note("member left out", {"member": name, "why": why}) for name, why in self.left_out.items()]
        found += [Note("site left out", {"site": name, "why": why}) for name, why in self.gone.items()]
        if Role.CONTROL not in self.errors.methods:
            found.append(Note("no control"))
        return [*self.design.notes, *found]

    @property
    def notes(self) -> list[str]:
        """The same in words."""
        return [note_text(note) for note in self.facts]

    def __repr__(self) -> str:
        size = f"{len(self.parties.names)} sites, {self.graph.node_count:,} nodes, {self.exchanges} exchanges"
        return f"FederatedRun({size}; learning together: {self.judgement.verdict})"
