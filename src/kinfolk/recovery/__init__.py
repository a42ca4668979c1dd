"""Cluster recovery: what the theory promises, and what a solution shows."""

from kinfolk.recovery.conditions import ClusterRecovery, Cut, Recovery, guaranteed_recovery
from kinfolk.recovery.constancy import ConstantAbove, constant_above
from kinfolk.recovery.found import found_clusters

__all__ = [
    "ClusterRecovery",
    "ConstantAbove",
    "Cut",
    "Recovery",
    "constant_above",
    "found_clusters",
    "guaranteed_recovery",
]
