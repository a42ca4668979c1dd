"""More than two classes: one multinomial regression for all, with an intercept per node for every class."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from kinfolk.tables.members.linear_fit import LinearFit
from kinfolk.tables.members.member import Access, RowMember, TrainingSet, Value
from kinfolk.tables.members.scores import LinearScores
from kinfolk.typing import Floats, Ints

STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
ITERATIONS = 300
NEVER = -30.0  # the score of a class that no row has


class ClassIntercepts(RowMember):
    """Slopes and node intercepts are drawn towards zero with one strength."""

    name = "intercepts"
    access: Access = "rows of all"
    parameters = ("ridge",)

    def values(self, training: TrainingSet) -> Sequence[Value]:
        """Strengths."""
        return [(strength,) for strength in STRENGTHS]

    def fits(self, training: TrainingSet, values: Sequence[Value]) -> Iterator[LinearFit]:
        """One regression for each strength."""
        Z = _with_dummies(training.rows.X, training.rows.owner, training.node_count)
        seen = np.unique(training.rows.y)
        for (strength,) in values:
            if len(seen) == 1:  # nothing to tell apart
                yield LinearFit(LinearScores(_only(int(seen[0]), training), training.target, "softmax"))
                continue
            model = LogisticRegression(C=1 / strength, max_iter=ITERATIONS)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # one that stops early is as good as it is
                model.fit(Z, training.rows.y)
            yield LinearFit(LinearScores(_coefficients(model, training), training.target, "softmax"))


def _with_dummies(X: Floats, owner: Ints, node_count: int) -> scipy.sparse.csr_array:
    rows = np.arange(len(owner))
    dummies = scipy.sparse.csr_array((np.ones(len(owner)), (rows, owner)), shape=(len(owner), node_count))
    return scipy.sparse.hstack([scipy.sparse.csr_array(X), dummies]).tocsr()


def _only(number: int, training: TrainingSet) -> Floats:
    """Coefficients that predict one class."""
    w = np.zeros((len(training.target.classes), training.node_count, training.rows.X.shape[1] + 1))
    w[:, :, -1] = NEVER
    w[number, :, -1] = 0.0
    return w


def _coefficients(model: LogisticRegression, training: TrainingSet) -> Floats:
    """(classes, nodes, features + 1): common slopes, and the intercept of every node."""
    width, count = training.rows.X.shape[1], training.node_count
    w = np.zeros((len(training.target.classes), count, width + 1))
    w[:, :, -1] = NEVER
    seen = model.classes_.astype(np.int64)
    coefficients, intercepts = model.coef_, model.intercept_
    if len(seen) == 2:  # scikit-learn then keeps one row, for the second
        coefficients, intercepts = np.vstack([-coefficients, coefficients]) / 2, np.r_[-intercepts, intercepts] / 2
    w[seen, :, :-1] = coefficients[:, None, :width]
    w[seen, :, -1] = intercepts[:, None] + coefficients[:, width:]
    return w
