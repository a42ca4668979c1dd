"""Algorithms: one file per method of the papers, and the baselines that stand beside them."""

from kinfolk.algorithms.baselines import Local, Pooled
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fedgd import FedGD
from kinfolk.algorithms.gtvmin import GTVMin, Inexact
from kinfolk.algorithms.ifca import IFCA
from kinfolk.algorithms.pfedme import PFedMe
from kinfolk.algorithms.torch_descent import TorchDescent

__all__ = [
    "IFCA", "FedAvg", "FedGD", "GTVMin", "Inexact", "Local", "PFedMe", "Pooled", "TorchDescent",
]  # fmt: skip
