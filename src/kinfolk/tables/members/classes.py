"""More than two classes: one multinomial regression for all, with an intercept per node for every class."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from kinfolk.tables.members.member import Member, Needs, Sample, Value
from kinfolk.tables.members.scores import LinearScores
from kinfolk.tables.members.slopes import LinearFit
from kinfolk.typing import Floats, Ints

STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
ITERATIONS = 300
NEVER = -30.0  # the score of a class that no row has


class ClassIntercepts(Member):
    """Slopes and node intercepts are drawn towards zero with one strength."""

    name = "intercepts"
    needs: Needs = "rows of all"
    parameters = ("ridge",)

    def values(self, sample: Sample) -> Sequence[Value]:
        """Strengths."""
        return [(strength,) for strength in STRENGTHS]

    def fits(self, sample: Sample, values: Sequence[Value]) -> Iterator[LinearFit]:
        """One regression for each strength."""
        Z = _with_dummies(sample.rows.X, sample.rows.owner, sample.node_count)
        seen = np.unique(sample.rows.y)
        for (strength,) in values:
            if len(seen) == 1:  # nothing to tell apart
                yield LinearFit(LinearScores(_only(int(seen[0]), sample), sample.target, "softmax"))
                continue
            model = LogisticRegression(C=1 / strength, max_iter=ITERATIONS)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # one that stops early is as good as it is
                model.fit(Z, sample.rows.y)
            yield LinearFit(LinearScores(_coefficients(model, sample), sample.target, "softmax"))


def _with_dummies(X: Floats, owner: Ints, node_count: int) -> scipy.sparse.csr_array:
    rows = np.arange(len(owner))
    dummies = scipy.sparse.csr_array((np.ones(len(owner)), (rows, owner)), shape=(len(owner), node_count))
    return scipy.sparse.hstack([scipy.sparse.csr_array(X), dummies]).tocsr()


def _only(number: int, sample: Sample) -> Floats:
    """Coefficients that predict one class."""
    w = np.zeros((len(sample.target.classes), sample.node_count, sample.rows.X.shape[1] + 1))
    w[:, :, -1] = NEVER
    w[number, :, -1] = 0.0
    return w


def _coefficients(model: LogisticRegression, sample: Sample) -> Floats:
    """(classes, nodes, features + 1): common slopes, and the intercept of every node."""
    width, count = sample.rows.X.shape[1], sample.node_count
    w = np.zeros((len(sample.target.classes), count, width + 1))
    w[:, :, -1] = NEVER
    seen = model.classes_.astype(np.int64)
    coefficients, intercepts = model.coef_, model.intercept_
    if len(seen) == 2:  # scikit-learn then keeps one row, for the second
        coefficients, intercepts = np.vstack([-coefficients, coefficients]) / 2, np.r_[-intercepts, intercepts] / 2
    w[seen, :, :-1] = coefficients[:, None, :width]
    w[seen, :, -1] = intercepts[:, None] + coefficients[:, width:]
    return w
