"""The main job: a table in, tailored models and a page to look at out.

>>> import numpy, pandas
>>> rng = numpy.random.default_rng(0)
>>> shops = pandas.DataFrame({"shop": numpy.repeat(list("abcd"), 20), "price": rng.normal(size=80)})
>>> shops["sales"] = numpy.repeat([1.0, 1.0, -1.0, -1.0], 20) * shops["price"] + 0.1 * rng.normal(size=80)
>>> run = learn(shops, node="shop", target="sales", progress=False)
>>> run.clusters.tolist()
[0, 0, 1, 1]
"""

from kinfolk.tables.learning import compare, learn
from kinfolk.tables.loading import load
from kinfolk.tables.reading import read_table
from kinfolk.tables.settings import Settings
from kinfolk.tables.table_run import TableRun

__all__ = ["Settings", "TableRun", "compare", "learn", "load", "read_table"]
