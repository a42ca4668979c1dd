"""Cluster recovery: what the theory promises, and what a solution shows."""

from kinfolk.recovery.conditions import ClusterRecovery, Cut, Recovery, guaranteed_recovery
from kinfolk.recovery.constancy import ConstantAbove, constant_above
from kinfolk.recovery.found import found_clusters
from kinfolk.recovery.variation import VariationBound, variation_bound

__all__ = [
    "ClusterRecovery",
    "ConstantAbove",
    "Cut",
    "Recovery",
    "VariationBound",
    "constant_above",
    "found_clusters",
    "guaranteed_recovery",
    "variation_bound",
]
