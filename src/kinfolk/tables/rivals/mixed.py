"""Mixed models of statsmodels: a random intercept for every node, or random slopes as well."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from kinfolk.checks import LearningError, first_line
from kinfolk.tables.rivals.rival import Rival, at_most, has_groups, needed
from kinfolk.tables.rivals.sums import normal_equations
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target
from kinfolk.typing import Floats, Ints

MOST_NODES = 2_000
MOST_WORK = 5_000_000  # rows × (random effects)², what one look at the likelihood costs


def one(X: Floats) -> Floats:
    """What a random intercept multiplies."""
    return np.ones((len(X), 1))


def one_and_features(X: Floats) -> Floats:
    """What random effects multiply: a random intercept and a slope for every feature."""
    return np.column_stack([np.ones(len(X)), X])


def predict(effects: Callable[[Floats], Floats], training: Rows, asked: Rows, target: Target, count: int) -> Floats:
    """Predictions of a mixed model with independent random effects, fitted by REML."""
    kept = independent_columns(training.X)
    fixed, new = (one_and_features(rows.X[:, kept]) for rows in (training, asked))
    random, new_random = (effects(rows.X[:, kept]) for rows in (training, asked))
    module = needed("statsmodels.regression.mixed_linear_model")
    model = module.MixedLM(training.y, fixed, training.owner, random)
    diagonal = module.MixedLMParams.from_components(np.ones(fixed.shape[1]), np.eye(random.shape[1]))
    found = _fit(model, diagonal)
    rest = training.y - fixed @ found.fe_params
    by_node = random_effects(random, rest, training.owner, np.asarray(found.cov_re) / found.scale, count)
    out: Floats = new @ found.fe_params + np.einsum("rj,rj->r", new_random, by_node[asked.owner])
    return out


def _fit(model: Any, free: Any) -> Any:
    """The model, fitted, without the warnings that variances at zero bring; or a sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model.fit(free=free, method="bfgs")
    except (np.linalg.LinAlgError, ValueError) as error:
        raise LearningError(f"Expected statsmodels to fit a mixed model, it failed: {first_line(error)}.") from error


def random_effects(Z: Floats, rest: Floats, owner: Ints, covariance: Floats, count: int) -> Floats:
    """The best linear predictions (I + D ZᵀZ)⁻¹ D Zᵀ r of every node (nodes, effects); zero without rows.

    Parameters
    ----------
    Z : array of float, shape (rows, effects)
        What the effects multiply.
    rest : array of float, shape (rows,)
        What the fixed effects leave.
    owner : array of int, shape (rows,)
        The node of every row.
    covariance : array of float, shape (effects, effects)
        D, in units of the variance of the noise; it may be singular.
    count : int
        Number of nodes.

    Returns
    -------
    array of float, shape (count, effects)
        The effects.
    """
    gram, moment = normal_equations(Z, rest, owner, count)
    pulled = np.linalg.solve(np.eye(Z.shape[1]) + covariance @ gram, (moment @ covariance)[..., None])
    return np.asarray(pulled[..., 0], dtype=np.float64)


def independent_columns(X: Floats) -> Ints:
    """Numbers of columns that, with a constant, the others are sums of.

    >>> len(independent_columns(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])))
    1
    """
    centred = X - X.mean(axis=0)
    size = np.sqrt((centred**2).sum(axis=0))
    triangle, order = scipy.linalg.qr(centred / np.where(size > 1e-9, size, np.inf), mode="r", pivoting=True)
    rank = int((np.abs(np.diag(triangle)) > 1e-8).sum())
    return np.sort(order[:rank]).astype(np.int64)


def _node_count(training: Rows) -> int:
    return len(np.unique(training.owner))


SIZES = (has_groups, at_most(MOST_NODES, "nodes", _node_count))
INTERCEPT = Rival(
    "mixed intercept", "mixed model with a random intercept", partial(predict, one), ("number",),
    (*SIZES, at_most(MOST_WORK, "rows", lambda training: len(training.y))), "statsmodels",
)  # fmt: skip
SLOPES = Rival(
    "mixed slopes", "mixed model with random intercept and slopes", partial(predict, one_and_features), ("number",),
    (*SIZES, at_most(MOST_WORK, "rows × squared effects", lambda each: len(each.y) * (each.X.shape[1] + 1) ** 2)),
    "statsmodels",
)  # fmt: skip
