"""Cluster recovery: what the theory promises, and what a solution shows."""

from kinfolk.theory.conditions import ClusterRecovery, Cut, Recovery, guaranteed_recovery
from kinfolk.theory.constancy import ConstantAbove, constant_above
from kinfolk.theory.found import found_clusters
from kinfolk.theory.variation import VariationBound, variation_bound

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
