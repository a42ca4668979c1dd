"""Cross-validation over parties: how members do on training rows that they had not learnt from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from kinfolk.tables.design import Design
from kinfolk.tables.members.member import Member, RowMember, Value
from kinfolk.tables.party import Answer, Call, Losses, Parties, Party, Scene
from kinfolk.typing import Floats


@dataclass(frozen=True, eq=False)
class Validation:
    """How a member did on training rows that it had not learnt from, all parties together."""

    name: str
    member: Member
    values: Sequence[Value]
    errors: Floats  # (values, folds) mean losses; NaN where a value was no longer tried
    shares: Floats  # (folds,) how much each fold counts: by its rows, and later ones more where folds are times

    @cached_property
    def means(self) -> Floats:
        """(values,) mean losses."""
        return np.asarray(np.where(np.isnan(self.errors), np.inf, self.errors) @ self.shares)

    @property
    def best(self) -> int:
        """The number of the value with the smallest error: this is where λ is chosen."""
        return int(np.argmin(self.means))

    @property
    def value(self) -> Value:
        """The value with the smallest error."""
        return self.values[self.best]

    @property
    def error(self) -> float:
        """The smallest error."""
        return float(self.means[self.best])


class Kept(NamedTuple):
    """What a run before has chosen for a member: nothing else is tried."""

    values: Sequence[Value]  # the last is the one; those before led there
    errors: Floats  # (1, folds) what it had in the cross-validation of that run
    shares: Floats  # (folds,) how much each fold counted


class CrossValidation:
    """The members that have been tuned so far, and those who have the rows.

    Parameters
    ----------
    design : Design
        What is learnt from.
    parties : Parties
        Who has the rows.
    kept : mapping of str to Kept
        What a run before has chosen, by member.
    """

    def __init__(self, design: Design, parties: Parties, kept: Mapping[str, Kept]) -> None:
        self.design, self.parties, self.kept = design, parties, kept
        self.found: dict[str, Validation] = {}
        self.scene: Scene  # which nodes may be kin
        self.drawn: Scene | None = None  # the same at random
        self.pooled_models: Floats = np.empty(0)  # (parts, values, scores, p) where they are linear

    @property
    def ridge(self) -> float:
        """The ridge term that suits common slopes beside node intercepts, where there are some, or pooled ones."""
        found = self.found.get("intercepts")
        by_nodes = found is not None and found.member.parameters[-1] == "ridge" and len(found.member.parameters) > 1
        return float(found.value[-1] if found is not None and by_nodes else self.found["pooled"].value[0])

    def inputs(self, member: Member) -> dict[str, int]:
        """The values of the members that feed one; node models only where they suit better than the pooled one."""
        known = [name for name in ("pooled", *member.inputs) if name in self.found]
        if "slopes" in known and not self.found["slopes"].error < self.found["pooled"].error:
            known.remove("slopes")
        return {name: self.found[name].best for name in known}

    def grid(self, member: Member, values: Sequence[Value] | None) -> Sequence[Value] | None:
        """The values to try, or the one that is kept."""
        return self.kept[member.name].values[-1:] if member.name in self.kept else values

    def validate(
        self, member: RowMember, values: Sequence[Value] | None = None, *, control: bool = False
    ) -> Validation:
        """Let a member learn from the rows of each party; on the random graph, if that is asked for."""
        chosen = self.inputs(member)
        values = self.grid(member, member.grid(self.design, list(chosen)) if values is None else values)
        name = f"control {member.name}" if control else member.name
        scene = self.drawn if control else None
        call = Call(Party.validate, name=name, values=values, member=member, chosen=chosen, scene=scene)
        return self.judged(member, self.parties.ask(call)[0], values, name)

    def judged(
        self, member: Member, answer: Answer[Losses], values: Sequence[Value] | None, name: str = ""
    ) -> Validation:
        """The validation that sums of losses make."""
        tried = answer.total.values if values is None else values
        if member.name in self.kept:
            return Validation(name or member.name, member, tried, *self.kept[member.name][1:])
        losses = answer.total.losses / self.design.held
        return Validation(name or member.name, member, tried, losses, self.design.shares)
