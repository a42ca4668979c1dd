"""Data sets: real ones that come with the package, and the synthetic ones of the papers."""

from kinfolk.datasets.builtin import Dataset, load_us_counties
from kinfolk.datasets.folder import data_folder, looking_in
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
    "TABLES", "Dataset", "Digits", "Mixture", "NamedTable", "Synthetic", "block_regression", "chain_regression",
    "clustered_regression", "data_folder", "load_mnist", "load_reviews", "load_us_counties", "looking_in",
    "mixture_regression", "named_table", "star_regression",
]  # fmt: skip
