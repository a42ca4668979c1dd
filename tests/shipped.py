"""Every shipped algorithm on a network that suits it, made anew in every process: for tests of checkpoints."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from kinfolk import (
    DFL,
    IFCA,
    SCAFFOLD,
    BiGFL,
    FedAvg,
    FedCG,
    FedGD,
    FedProx,
    FedRelax,
    FeSEM,
    GTVMin,
    KerasModel,
    LinearModel,
    Local,
    Logistic,
    Network,
    PFedMe,
    Pooled,
    SquaredNorm,
    TorchLoss,
    TorchModel,
    public,
)
from kinfolk.algorithms.bigfl import CosineEmbedding, FullMatrix, GraphEmbedding
from kinfolk.algorithms.fedcg import TeacherStudent
from kinfolk.algorithms.gtvmin import Inexact
from kinfolk.algorithms.ifca import Uniform
from kinfolk.algorithms.local_work import Decay
from kinfolk.algorithms.torch_descent import TorchDescent
from kinfolk.testing import difficult_network


def small_module(outputs: int = 1) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, outputs))


def class_loss() -> TorchLoss:
    return TorchLoss(small_module(2), "cross-entropy")


def classifier() -> Any:
    import torch

    torch.manual_seed(1)
    return torch.nn.Linear(3, 2)


def keras_model() -> Any:
    import keras

    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])


def with_sets() -> Network:
    network = difficult_network()
    return network.with_public(public.standard_normal(network, 6, per_node=True))


SHIPPED: dict[str, tuple[Callable[[], Network], Callable[[], Any]]] = {
    "GTVMin": (difficult_network, lambda: GTVMin(lam=0.1)),
    "GTVMin smooth": (difficult_network, lambda: GTVMin(coupling=SquaredNorm(), steps="published")),
    "GTVMin direct": (difficult_network, lambda: GTVMin(coupling=SquaredNorm(), steps="direct")),
    "GTVMin inexact": (difficult_network, lambda: GTVMin(inexact=Inexact(0.1))),
    "GTVMin logistic": (lambda: difficult_network(classes=True), lambda: GTVMin(Logistic(ridge=0.1))),
    "GTVMin torch": (difficult_network, lambda: GTVMin(TorchLoss(small_module(), steps=3), steps="published")),
    "Local": (difficult_network, Local),
    "Pooled": (lambda: difficult_network(classes=True), lambda: Pooled(Logistic(ridge=0.1))),
    "Pooled by cluster": (difficult_network, lambda: Pooled(clusters=tuple(np.arange(24) % 2))),
    "FedAvg": (difficult_network, lambda: FedAvg(local_steps=3)),
    "FedAvg batches": (difficult_network, lambda: FedAvg(local_epochs=2, batch=2, optimiser="Adam", step_size=0.01)),
    "FedProx": (difficult_network, lambda: FedProx(local_steps=3, mu=0.5)),
    "SCAFFOLD": (difficult_network, lambda: SCAFFOLD(local_steps=3, batch=2)),
    "FeSEM": (difficult_network, lambda: FeSEM(model_count=2, local_steps=3)),
    "DFL": (difficult_network, lambda: DFL(step_size=0.02, local_steps=3, batch=2, mixing="laplacian")),
    "DFL tracking": (difficult_network, lambda: DFL(step_size=Decay(0.05), tracking=True)),
    "DFL torch": (difficult_network, lambda: DFL(TorchLoss(small_module()), tracking=True, batch=2)),
    "BiGFL": (difficult_network, lambda: BiGFL(batch=2, local_steps=2)),
    "BiGFL learnt": (
        difficult_network,
        lambda: BiGFL(phi="learn", lower=GraphEmbedding(FullMatrix()), warm_up=3, phi_every=2, phi_steps=3),
    ),
    "BiGFL torch": (
        difficult_network,
        lambda: BiGFL(
            TorchLoss(small_module()), phi="learn", upper=CosineEmbedding(2), warm_up=3, phi_every=4, phi_steps=2
        ),
    ),
    "FedCG": (lambda: difficult_network(classes=True), lambda: FedCG(class_loss(), layers=["2"], batch=2)),
    "FedCG teacher": (
        lambda: difficult_network(classes=True),
        lambda: FedCG(class_loss(), domains=2, discovery=TeacherStudent(module=classifier(), every=2), assign="soft"),
    ),
    "FedGD": (difficult_network, FedGD),
    "IFCA": (difficult_network, lambda: IFCA(model_count=2, initial=Uniform(-1.0, 1.0), starts=2)),
    "PFedMe": (difficult_network, PFedMe),
    "TorchDescent": (difficult_network, TorchDescent),
    "FedRelax linear": (difficult_network, lambda: FedRelax(LinearModel())),
    "FedRelax trees": (difficult_network, lambda: FedRelax(DecisionTreeRegressor(max_depth=3), recall=3)),
    "FedRelax forest": (with_sets, lambda: FedRelax(RandomForestRegressor(3, max_depth=2), order="colours")),
    "FedRelax classes": (lambda: difficult_network(classes=True), lambda: FedRelax(LogisticRegression())),
    "FedRelax kinds": (difficult_network, lambda: FedRelax(by_name)),
    "FedRelax torch": (difficult_network, lambda: FedRelax(TorchModel(small_module(), epochs=2, keep="optimiser"))),
    "FedRelax keras": (difficult_network, lambda: FedRelax(KerasModel(keras_model, epochs=1))),
    "FedRelax one class": (
        lambda: difficult_network(classes=True), lambda: FedRelax(DecisionTreeClassifier(max_depth=2))
    ),
}  # fmt: skip


def by_name(node: Any) -> Any:
    return LinearModel() if node % 2 else DecisionTreeRegressor(max_depth=2)


def options(name: str) -> dict[str, Any]:
    """How an algorithm is run; the direct solver needs everybody."""
    share = 1.0 if name == "GTVMin direct" else 0.6
    return {"rounds": 9, "stop": None, "participation": share, "seed": 4, "measure_every": 4, "progress": False}
