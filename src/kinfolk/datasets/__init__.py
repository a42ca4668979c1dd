"""Data sets: real ones that come with the package, and the synthetic ones of the papers."""

from kinfolk.datasets.builtin import Dataset, load_us_counties
from kinfolk.datasets.mnist import Digits, load_mnist
from kinfolk.datasets.synthetic import (
    Synthetic,
    block_regression,
    chain_regression,
    clustered_regression,
    star_regression,
)

__all__ = [
    "Dataset", "Digits", "Synthetic", "block_regression", "chain_regression", "clustered_regression", "load_mnist",
    "load_us_counties", "star_regression",
]  # fmt: skip
