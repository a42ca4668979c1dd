"""An estimator of the user's own as a member: it learns from all rows in one place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier

from kinfolk.checks import InputError
from kinfolk.report.facts import Role
from kinfolk.tables.members.member import Access, Member, RowMember, TrainingSet, Value
from kinfolk.tables.own_code import code_file, from_file, given_name
from kinfolk.tables.rivals import CHEAP, OTHERS
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import LEAST_MEAN, Target
from kinfolk.typing import Floats


def with_node(rows: Rows) -> Floats:
    """The features of a row, its place, and the number of its node."""
    place = [] if rows.place is None else [rows.place]
    return np.column_stack([rows.X, *place, rows.owner])


@dataclass(frozen=True, eq=False)
class OwnFit:
    """A fitted estimator."""

    estimator: Any
    target: Target

    def predict(self, rows: Rows) -> Floats:
        """Predict rows."""
        Z = with_node(rows)
        if not self.target.classes:
            found = np.asarray(self.estimator.predict(Z), dtype=np.float64)
            return np.maximum(found, LEAST_MEAN) if self.target.kind == "count" else found
        out = np.zeros((len(Z), len(self.target.classes)))
        out[:, self.estimator.classes_.astype(np.int64)] = self.estimator.predict_proba(Z)
        return out

    def predict_new_nodes(self, rows: Rows) -> Floats | None:
        """Nodes that were never seen have no number: those nearby predict."""
        return None


class OwnEstimator(RowMember):
    """A model with ``fit`` and ``predict``: it sees features, places and the number of the node."""

    access: Access = "rows of all"

    def __init__(self, estimator: Any, name: str | None = None) -> None:
        self.estimator, self.name = estimator, name or type(estimator).__name__

    def check(self, target: Target) -> None:
        """Refuse what cannot predict such a target."""
        if not hasattr(self.estimator, "fit") or not hasattr(self.estimator, "predict"):
            raise InputError(f"Expected members by name or models with fit and predict, got {self.name}.")
        if bool(is_classifier(self.estimator)) != target.classifies:
            wanted = "classifier" if target.classifies else "regressor"
            raise InputError(f"Expected a {wanted} as a member for this target, got {self.name}.")

    def values(self, training: TrainingSet) -> Sequence[Value]:
        """There is nothing to choose."""
        return [()]

    def fits(self, training: TrainingSet, values: Sequence[Value]) -> Iterator[OwnFit]:
        """A fresh copy of the estimator, fitted."""
        for _ in values:
            fitted = clone(self.estimator).fit(with_node(training.rows), training.rows.y)
            yield OwnFit(fitted, training.target)


def own_members(named: Sequence[str], given: Sequence[Any], known: Sequence[str], target: Target) -> dict[str, Member]:
    """The members that are not known by name: objects, and ``file.py:Name``; a type is made with its defaults.

    Each is a ``Member``, or an estimator.
    """
    found: dict[str, Member] = {}
    objects = {given_name(each): each for each in given}
    taken = {*known, *Role, *(rival.name for rival in (*CHEAP, *OTHERS))}
    for name in (name for name in named if name not in known):
        if name not in objects and code_file(name) is None:
            raise InputError(
                f"Expected members among {', '.join(known)}, or file.py:Name, got {name!r}: a list replaces the usual "
                "members, +file.py:Name adds one to them."
            )
        member = objects[name] if name in objects else from_file(name, "a member", list(known))
        member = member() if isinstance(member, type) else member
        if not isinstance(member, Member):
            member = OwnEstimator(member, name.rpartition(":")[2].strip())
            member.check(target)
        if member.name in taken:
            raise InputError(f"Expected members with names of their own, got {member.name!r} twice: rename one.")
        taken.add(member.name)
        found[name] = member
    return found
