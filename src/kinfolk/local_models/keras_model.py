"""Models of Keras 3 as local models of FedRelax.

A node minimises Σ_r weight_r ℓ(f(x_r), target_r) / Σ_r weight_r, with own rows counting 1 and rows labelled by
neighbour j counting rate_i A_ij, from where it stood a round before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from scipy.special import softmax

from kinfolk.checks import AtLeast, InputError, LearningError, Positive, check_parameters, first_line
from kinfolk.local_models.discrepancies import Discrepancy, SquaredProbabilities, SymmetricCrossEntropy
from kinfolk.local_models.weighted_rows import TrainingSets
from kinfolk.network.problem import Problem
from kinfolk.typing import Floats

if TYPE_CHECKING:
    from kinfolk.local_models.keras_training import KerasFit, TrainingSetup


@dataclass(frozen=True, eq=False)
class KerasModel:
    """A model of Keras at every node, cloned and drawn anew for each; needs ``pip install "kinfolk[keras]"``.

    Parameters
    ----------
    model : keras.Model or callable
        A Keras model for rows of features, or a function without arguments that makes one. If it is compiled, its
        loss and optimiser are used, and ``loss``, ``logits``, ``optimiser`` and ``step_size`` are not.
    loss : {"squared", "cross-entropy"}
        ``"squared"``, with outputs of shape (rows, 1); or ``"cross-entropy"``, with (rows, classes).
    logits : bool
        Whether outputs for classes are logits; otherwise they are probabilities, as after a softmax.
    optimiser : str
        A name that Keras knows.
    step_size : float
        Its step.
    epochs : int
        How often a node goes through its rows in a round; with full batches, the number of steps.
    batch : int, optional
        Rows in a step; None for all.
    keep : {"nothing", "parameters"}
        Whether ``"parameters"`` go on from round to round, or ``"nothing"``.

    >>> import os
    >>> os.environ["KERAS_BACKEND"] = "torch"
    >>> import keras
    >>> from kinfolk import FedRelax, Network, fit, graphs
    >>> network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])], public=[[1.0]])
    >>> line = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> run = fit(network, FedRelax(KerasModel(line, optimiser="sgd", step_size=0.1, epochs=30), lam=1.0), rounds=8)
    >>> run.predict([[1.0], [1.0]], node=[0, 1]).round(1)
    array([0.3, 0.7])
    """

    model: Any
    loss: Literal["squared", "cross-entropy"] = "squared"
    logits: bool = False
    optimiser: str = "adam"
    step_size: Annotated[float, Positive()] = 0.01
    epochs: Annotated[int, AtLeast(1)] = 100
    batch: Annotated[int, AtLeast(1)] | None = None
    keep: Literal["nothing", "parameters"] = "parameters"

    merges: ClassVar[bool] = False  # layers that draw, or look at several rows, cannot be distinguished from others

    @property
    def classifies(self) -> bool:
        """Whether it predicts probabilities of classes."""
        return self._setup.loss_name in _training().CATEGORICAL

    # ------------------------------------------------------------------ before round 1

    def check(self) -> None:
        """Refuse parameters out of range, what is no model, and losses that cannot learn from probabilities."""
        check_parameters(self)
        if self._setup.loss_name in _training().HARD_LABELS_ONLY:
            raise InputError(
                "Expected a Keras model compiled with categorical_crossentropy for classes, as neighbours send "
                f"probabilities, got {self._setup.loss_name}."
            )

    def learns(self, discrepancy: Discrepancy) -> bool:
        """Whatever has rows for squared errors or cross-entropy."""
        return not isinstance(discrepancy, SquaredProbabilities | SymmetricCrossEntropy)

    def _refuse(self, name: str, expected: str) -> None:
        value = getattr(self, name)
        raise InputError(f"The '{name}' parameter of KerasModel must be {expected}. Got {value!r} instead.")

    # ------------------------------------------------------------------ models

    @cached_property
    def _given(self) -> Any:
        """The model as it was given, or made once."""
        training = _training()
        made = self.model if isinstance(self.model, training.keras.Model) or not callable(self.model) else self.model()
        if not isinstance(made, training.keras.Model):
            self._refuse("model", "a Keras model, or a function without arguments that makes one")
        return made

    @cached_property
    def _setup(self) -> TrainingSetup:
        """What the model was compiled with, or else the parameters."""
        training = _training()
        compiled: TrainingSetup | None = training.setup_of(self._given)
        if compiled is not None:
            return compiled
        if self.loss not in training.LOSSES:
            self._refuse("loss", "one of 'squared', 'cross-entropy'")
        try:
            optimiser = training.keras.optimizers.get(self.optimiser)
        except ValueError:
            self._refuse("optimiser", "the name of an optimiser of Keras")
        optimiser.learning_rate = self.step_size
        out: TrainingSetup = training.TrainingSetup(
            training.LOSSES[self.loss](self.logits), training.keras.optimizers.serialize(optimiser)
        )
        return out

    def _drawn(self, features: int, seed: int) -> Any:
        """A new model, its weights drawn from a seed."""
        training = _training()
        with training.drawing_from(seed):
            given = isinstance(self.model, training.keras.Model)
            model = training.keras.models.clone_model(self.model) if given else self.model()
            if not model.built:
                model.build((None, features))
        return model

    @cached_property
    def _workers(self) -> dict[int, Any]:
        return {}

    def _worker(self, features: int) -> Any:
        """A model to lend to one node after another."""
        if features not in self._workers:
            self._workers[features] = self._drawn(features, seed=0)
        return self._workers[features]

    def model_of(self, fit: KerasFit, features: int) -> Any:
        """The model of a node with that many features: ``model.model_of(run.models[node], features)``."""
        model = self._drawn(features, seed=0)
        model.set_weights(list(fit.arrays.values()))
        return model

    # ------------------------------------------------------------------ as a local model

    def remarks(self, problem: Problem) -> list[str]:
        """None."""
        return []

    def fit_nodes(self, sets: TrainingSets) -> list[KerasFit | None]:
        """Train one node after another."""
        return [self._fit(sets, int(node)) for node in sets.nodes]

    def _fit(self, sets: TrainingSets, node: int) -> KerasFit | None:
        training, weighted = _training(), sets.rows(node, merged=False)
        if not len(weighted.weight):
            return None
        seed, before, features = sets.seed(node), sets.before[node], weighted.X.shape[1]
        model = self._worker(features)
        try:
            new = before is None or self.keep == "nothing"
            start = training.as_fit(self._drawn(features, seed)) if new else before
            model.set_weights(list(start.arrays.values()))
            self._setup.compile(model)
            training.train(model, weighted, self.epochs, self.batch, seed)
        except Exception as error:  # whatever Keras raises, the node is named and the run is kept
            what = first_line(error)
            raise LearningError(f"Node {sets.site.names[node]!r} could not be fitted ({what}).") from error
        out: KerasFit | None = training.as_fit(model)
        return out

    def predict_nodes(self, fitted: Sequence[KerasFit], X: Sequence[Floats], classes: Floats | None) -> list[Floats]:
        """The outputs, or for classes the probabilities."""
        return [self._predict(fit, rows) for fit, rows in zip(fitted, X, strict=True)]

    def _predict(self, fit: KerasFit, X: Floats) -> Floats:
        model = self._worker(X.shape[1])
        model.set_weights(list(fit.arrays.values()))
        predicted: Floats = _training().predict(model, X)
        if self.classifies:
            shares: Floats = softmax(predicted, axis=1) if self._setup.gives_logits else predicted
            return shares
        return predicted[:, 0] if predicted.ndim == 2 and predicted.shape[1] == 1 else predicted


def _training() -> Any:
    """How models of Keras are trained; Keras is imported here."""
    try:
        from kinfolk.local_models import keras_training
    except ImportError as error:
        raise InputError('Expected keras for KerasModel: install it with pip install "kinfolk[keras]".') from error
    return keras_training
