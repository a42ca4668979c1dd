"""Models: what a node ends up with."""

from kinfolk.models.linear import LinearModels

__all__ = ["LinearModels"]
