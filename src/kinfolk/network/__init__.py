"""Who sees what: a graph, the data of its nodes, and the sites that hold them."""

from kinfolk.network.data import Data
from kinfolk.network.graph import Graph
from kinfolk.network.network import Network
from kinfolk.network.problem import Problem
from kinfolk.network.public import PublicPoints
from kinfolk.network.site import Site

__all__ = ["Data", "Graph", "Network", "Problem", "PublicPoints", "Site"]
