"""Data sets: real ones that come with the package."""

from kinfolk.datasets.builtin import Dataset, load_us_counties

__all__ = ["Dataset", "load_us_counties"]
