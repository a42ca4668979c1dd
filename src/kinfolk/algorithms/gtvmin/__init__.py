"""GTV minimisation: the algorithm, its certificate, and quicker ways to the same answer."""

from kinfolk.algorithms.gtvmin.algorithm import GTVMin, Inexact

__all__ = ["GTVMin", "Inexact"]
