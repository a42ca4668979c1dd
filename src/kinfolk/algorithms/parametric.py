"""What algorithms that learn parameters share: labels are checked, models are parameters, gradients are measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Algorithm, Arrays, Inbox, Models, S
from kinfolk.network.problem import Problem
from kinfolk.network.site import Site
from kinfolk.objective.node_loss import NodeLoss
from kinfolk.typing import Floats, Ints


class ParametricAlgorithm(Algorithm[S]):
    """For algorithms with a ``loss`` and a state with parameters ``w`` (nodes, parameters)."""

    loss: NodeLoss
    needs_slope: ClassVar[bool] = False  # whether the loss must be smooth

    @property
    def carries_statistics(self) -> bool:
        """Whether parameters may include running statistics, which local work renews."""
        return False

    def check(self, problem: Problem) -> None:
        """Refuse a loss that the algorithm cannot work with."""
        if self.needs_slope and not self.loss.smooth:
            raise InputError(
                f"Expected a smooth loss for {type(self).__name__}, got {type(self.loss).__name__}: use GTVMin "
                "(a large lam gives one model per component), Local, or a smooth loss such as Huber with a small delta."
            )

    def check_data(self, site: Site) -> None:
        """Refuse labels outside the range of the loss, and running statistics that nobody would carry."""
        self.loss.check_data(site.data)
        if site.test is not None:
            self.loss.check_data(site.test)
        if not self.carries_statistics and site.local_losses(self.loss).renews_statistics:
            raise InputError(
                f"Expected a module without running statistics for {type(self).__name__}, got one that has some, as "
                "batch normalisation has: normalise by GroupNorm or LayerNorm, or average models, as FedAvg does."
            )
        sizes = site.data.sizes[site.data.sizes > 0]
        if len(sizes):
            self.loss.check_training(site.data, self.smallest_batch(sizes))

    def smallest_batch(self, sizes: Ints) -> int:
        """The fewest rows that a model is trained on at any node, of which ``sizes`` has the numbers of rows."""
        return int(sizes.min())

    def models(self, site: Site, state: Any, inbox: Inbox) -> Models:
        """The parameters as models."""
        models: Models = self.loss.models(state.w)
        return models

    def width(self, problem: Problem) -> int:
        """Number of parameters of a node's model."""
        return self.loss.width(problem.feature_count)


def check_step_size(algorithm: ParametricAlgorithm[Any], step_size: float | None) -> None:
    """A step size where the curvature of the loss has no bound from which one follows."""
    if step_size is None and not np.isfinite(algorithm.loss.most_curvature):
        raise InputError(
            f"The 'step_size' parameter of {type(algorithm).__name__} must be a number > 0 for "
            f"{type(algorithm.loss).__name__}, whose curvature has no bound. Got None instead."
        )


def squares(values: Floats) -> Floats:
    """‖v_i‖² of every row."""
    return np.asarray(np.einsum("ij,ij->i", values, values))


def gradient_measure(site: Site, loss: NodeLoss, w: Floats) -> Arrays:
    """Loss and squared gradients per node, for algorithms that minimise a sum of local losses."""
    losses = site.local_losses(loss)
    return {
        "loss": losses.value(w),
        "start": losses.resting,
        "size": squares(losses.descent(w)),
    }


def ratio(part: float, whole: float) -> float:
    """part / whole, with 0 / 0 = 0; NaN propagates.

    >>> ratio(0.0, 0.0), ratio(1.0, 4.0), ratio(1.0, 0.0)
    (0.0, 0.25, inf)
    """
    if part == 0:
        return 0.0
    return part / whole if whole != 0 else float("inf")


def gradient_summary(totals: Mapping[str, float]) -> dict[str, float]:
    """Objective Σ L_i, and the size of the gradient against its size at the start."""
    return {"objective": totals["loss"], "residual": ratio(np.sqrt(totals["size"]), np.sqrt(totals["start"]))}


def relative_change(new: Floats, old: Floats) -> float:
    """‖new − old‖ / ‖new‖: the residual of algorithms that only know how far they have moved."""
    return ratio(length(new - old), length(new))


def length(v: Floats) -> float:
    """‖v‖ of a long vector, without a product: its threads would go on spinning for 40 ms, on a core that torch needs.

    >>> length(np.array([3.0, 4.0]))
    5.0
    """
    return float(np.sqrt(np.square(v).sum()))
