"""Data sets: real ones that come with the package, and the synthetic ones of the papers."""

from kinfolk.datasets.builtin import Dataset, load_us_counties
from kinfolk.datasets.digit_clients import (
    digit_sources,
    mixed_rotations,
    with_few_classes,
    writers,
    writers_by_attributes,
    writers_by_inversion,
    writers_by_rotation,
)
from kinfolk.datasets.folder import data_folder, looking_in
from kinfolk.datasets.image_clients import ImageClients
from kinfolk.datasets.leaf import load_leaf
from kinfolk.datasets.mnist import Digits, load_mnist
from kinfolk.datasets.reviews import load_reviews
from kinfolk.datasets.synthetic import (
    Mixture,
    Synthetic,
    block_regression,
    chain_regression,
    clustered_regression,
    mixture_regression,
    star_regression,
)
from kinfolk.datasets.tables import TABLES, NamedTable, named_table

__all__ = [
    "TABLES", "Dataset", "Digits", "ImageClients", "Mixture", "NamedTable", "Synthetic", "block_regression",
    "chain_regression", "clustered_regression", "data_folder", "digit_sources", "load_leaf", "load_mnist",
    "load_reviews", "load_us_counties", "looking_in", "mixed_rotations", "mixture_regression", "named_table",
    "star_regression", "with_few_classes", "writers", "writers_by_attributes", "writers_by_inversion",
    "writers_by_rotation",
]  # fmt: skip
