"""GTV minimisation: the algorithm, its certificate, and quicker ways to the same answer."""

from kinfolk.algorithms.gtvmin.algorithm import GTVMin
from kinfolk.algorithms.gtvmin.updates import Inexact

__all__ = ["GTVMin", "Inexact"]
