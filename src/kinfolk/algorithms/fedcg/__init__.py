"""FedCG: domains discovered, joined by a graph network; ``algorithm`` has the box."""

from kinfolk.algorithms.fedcg.algorithm import FedCG
from kinfolk.algorithms.fedcg.classifiers import TeacherStudent
from kinfolk.algorithms.fedcg.discovery import Discovery, GivenDomains
from kinfolk.algorithms.fedcg.mixed import MixedClients
from kinfolk.algorithms.fedcg.models import DomainModels
from kinfolk.algorithms.fedcg.per_node import ClassMeans, ClientWeights
from kinfolk.modules.domain_graph import DomainGraph

__all__ = [
    "ClassMeans", "ClientWeights", "Discovery", "DomainGraph", "DomainModels", "FedCG", "GivenDomains",
    "MixedClients", "TeacherStudent",
]  # fmt: skip
