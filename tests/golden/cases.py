"""The cases: simulated tables, small and of every kind, and real ones; each with settings of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from sklearn.neighbors import KNeighborsRegressor

from golden.running import Result, across_sites, of_estimator, of_update, one_table
from kinfolk import TailoredClassifier, TailoredRegressor, learn
from kinfolk.datasets import named_table

SHARED = Path(__file__).parents[3] / "shared" / "data"  # beside this repository
FOLDERS = {"hospitals": "heart_disease", "schools": "school", "stations": "fmi_weather"}  # of tables that are there
LINEAR = ("pooled", "alone", "intercepts", "slopes", "tailored", "wide")
FEDERATED = ("pooled", "slopes", "tailored", "wide")  # that sites and one table learn alike
KINDS: dict[str, dict[str, Any]] = {
    "number": {}, "two": {}, "three": {}, "count": {"task": "count"}, "quantile": {"task": "quantile", "quantile": 0.8},
}  # fmt: skip


# ---------------------------------------------------------------------- tables


def simulated(
    kind: str, nodes: int = 12, rows: int = 15, *, places: bool = False, times: bool = False, seed: int = 0
) -> pandas.DataFrame:
    """Shops with slopes of their own, smooth on a map or in two groups; a column with gaps, and one of categories."""
    rng = np.random.default_rng(seed)
    x, y, count = np.sort(rng.random(nodes)), rng.random(nodes), nodes * rows
    slope = 3 * x - 1 if places else np.where(np.arange(nodes) % 2, 1.5, -0.5)
    table = pandas.DataFrame({"shop": np.repeat([f"shop {k:02d}" for k in range(nodes)], rows)})
    if places:
        table = table.assign(x=np.repeat(x, rows), y=np.repeat(y, rows))
    if times:
        table["day"] = np.tile(pandas.date_range("2026-01-01", periods=rows).strftime("%Y-%m-%d"), nodes)
    table = table.assign(
        price=rng.normal(5, 2, size=count), size=rng.normal(size=count), kind=rng.choice(["a", "b", "c"], count)
    )
    score = np.repeat(slope, rows) * (table["price"] - 5) / 2 + 0.5 * table["size"] + (table["kind"] == "a")
    score += 0.03 * np.tile(np.arange(rows), nodes) if times else 0.0
    table["sales"] = _drawn(kind, score.to_numpy(), rng)
    table.loc[rng.random(count) < 0.05, "size"] = np.nan
    return table


def _drawn(kind: str, score: Any, rng: np.random.Generator) -> Any:
    """A target of some kind."""
    noise = rng.gumbel(size=(len(score), 3))
    if kind == "two":
        return np.where(score + noise[:, 0] - noise[:, 1] > 0.3, "high", "low")
    if kind == "three":
        scores = np.stack([score, -score, np.zeros(len(score))], axis=1)
        return np.array(["high", "low", "middle"])[np.argmax(scores + noise, axis=1)]
    if kind == "count":
        return rng.poisson(np.exp(1 + 0.4 * score))
    return score + (rng.standard_t(2, size=len(score)) if kind == "quantile" else 0.5 * rng.normal(size=len(score)))


def chain(nodes: int) -> list[tuple[str, str]]:
    """Edges from shop to shop but one, so that neighbours are of the same group."""
    return [(f"shop {k:02d}", f"shop {k + 2:02d}") for k in range(nodes - 2)] + [("shop 00", "shop 01")]


def counties_of(state: str) -> Result:
    """The demo's counties of one state: one row for every node, so that whole nodes are held out."""
    known = named_table("counties")
    inside = known.edges["head"].str.endswith(state) & known.edges["tail"].str.endswith(state)
    table = known.frame[known.frame["county"].str.endswith(state)].reset_index(drop=True)
    return one_table(table, edges=known.edges[inside], **known.options)


def real(name: str, sites: int = 0, **settings: Any) -> Result:
    """A real data set with the options that suit it; none of its rows are stored."""
    known = named_table(name, data_folder())
    table, options = known.frame.reset_index(drop=True), {**known.options, **settings}
    if sites:
        return across_sites(table, sites, edges=known.edges, **options)
    return one_table(table, edges=known.edges, **options)


def data_folder() -> Path:
    """Where data sets are that do not come along: KINFOLK_DATA, or beside this repository."""
    return Path(os.environ.get("KINFOLK_DATA") or SHARED)


# ---------------------------------------------------------------------- what a case is


@dataclass(frozen=True)
class Case:
    """Something that is run again: what it is, how, and whether it is quick."""

    about: str
    run: Callable[[], Result]
    quick: bool = True
    needs: str | None = None  # a data set that does not come along
    as_one: Callable[[], Result] | None = None  # the same rows, and members, as one table
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> str | None:
        """The folder that is absent, if one is."""
        folder = FOLDERS.get(self.needs or "")
        return None if folder is None or (data_folder() / folder).is_dir() else folder


def table_case(
    about: str, kind: str, size: tuple[int, int] = (12, 15), *, edges: Any = None, quick: bool = True, **options: Any
) -> Case:
    """A simulated table."""
    made, settings = _made(kind, size, options)
    return Case(about, lambda: one_table(made(), edges=edges, **settings), quick, settings=settings)


def site_case(
    about: str, kind: str, sites: int, size: tuple[int, int], *, edges: Any = None, secure: bool = False,
    quick: bool = True, **options: Any,
) -> Case:  # fmt: skip
    """The same across sites; with the usual members, one table has those that it shares with sites."""
    made, settings = _made(kind, size, options)
    shared = {**settings, "members": [name for name in settings.get("members", FEDERATED) if name in FEDERATED]}
    return Case(
        about, lambda: across_sites(made(), sites, edges, secure, **settings), quick,
        as_one=lambda: one_table(made(), edges=edges, **shared), settings=settings,
    )  # fmt: skip


def _made(kind: str, size: tuple[int, int], options: dict[str, Any]) -> tuple[Callable[[], Any], dict[str, Any]]:
    """How to make a table, and the settings."""
    places, timed, seed = options.pop("places", False), "time" in options, options.pop("data", 0)
    settings = {"node": "shop", "target": "sales", **KINDS[kind], **options}
    return partial(simulated, kind, *size, places=places, times=timed, seed=seed), settings


# ---------------------------------------------------------------------- cases that are not one call of learn


def marked_with_own_member() -> Result:
    """Test rows that a column marks, and an estimator of scikit-learn beside members of kinfolk."""
    table = simulated("number", 10, 16, places=True, seed=3)
    table["test"] = np.where(np.arange(len(table)) % 5 == 2, "test", "train")
    members = ["pooled", "tailored", KNeighborsRegressor(5)]
    return one_table(table, node="shop", target="sales", test="test", members=members)


def updated() -> Result:
    """New rows of nodes that are known, and those of a new node, join a run."""
    table = simulated("number", 12, 16, places=True, seed=4)
    later = (np.arange(len(table)) % 16 >= 13) | (table["shop"] == "shop 07")
    first, new = table[~later].reset_index(drop=True), table[later].reset_index(drop=True)
    return of_update(learn(first, node="shop", target="sales", members=LINEAR, progress=False), new, table)


def regressor() -> Result:
    """The estimator of scikit-learn for numbers, with all members."""
    table = simulated("number", 10, 15, places=True, seed=5)
    model = TailoredRegressor("shop", coords=("x", "y"), folds=2)
    return of_estimator(model, table.drop(columns="sales"), table["sales"])


def classifier() -> Result:
    """The same for classes, with edges."""
    table = simulated("two", 10, 15, seed=6)
    model = TailoredClassifier("shop", edges=chain(10), folds=2, members=LINEAR)
    return of_estimator(model, table.drop(columns="sales"), table["sales"])


# ---------------------------------------------------------------------- all of them

FEW = ("pooled", "slopes", "tailored")
ONE = {"folds": 2, "lam": 1.0}  # quick across sites
TABLES: dict[str, Case] = {
    "numbers-rows": table_case("numbers, rows of every node, a map, all members", "number", places=True),
    "numbers-similarity": table_case("numbers, kin by similarity, all members", "number", (12, 20), folds=2),
    "numbers-gtvmin": table_case(
        "numbers, given edges, neighbours become equal", "number", edges=chain(12), method="gtvmin",
        members=("pooled", "alone", "tailored"),
    ),
    "numbers-nodes": table_case(
        "numbers, whole nodes, a map, all members", "number", (20, 10), places=True, hold="nodes", folds=3
    ),
    "numbers-regions": table_case(
        "numbers, regions of a map", "number", (30, 8), places=True, hold="regions", members=LINEAR
    ),
    "numbers-times": table_case("numbers, later times, all members", "number", (10, 40), time="day"),
    "numbers-tree": table_case("numbers, trees by FedRelax", "number", places=True, model="tree"),
    "two-classes-rows": table_case("two classes, a map, all members", "two", (12, 20), places=True, folds=2),
    "two-classes-times": table_case(
        "two classes, later times, given edges", "two", (10, 30), edges=chain(10), time="day", members=LINEAR
    ),
    "three-classes-rows": table_case("three classes, by similarity, all members", "three", (12, 20), folds=2),
    "three-classes-nodes": table_case(
        "three classes, whole nodes, a map", "three", (16, 12), places=True, hold="nodes", members=LINEAR, folds=2
    ),
    "counts-rows": table_case("counts, a map, all members", "count", places=True, folds=2),
    "counts-regions": table_case(
        "counts, regions of a map", "count", (24, 8), places=True, hold="regions", members=LINEAR, lam=1.0
    ),
    "quantile-rows": table_case("a quantile, by similarity", "quantile", (12, 20), members=LINEAR, folds=2),
    "quantile-times": table_case(
        "a quantile, later times, a map", "quantile", (10, 30), places=True, time="day", members=(*FEW, "recent"),
        lam=1.0,
    ),
    "own-member": Case("numbers, marked rows, a member of one's own", marked_with_own_member),
    "updated": Case("numbers, a run with new rows and a new node", updated),
    "regressor": Case("the estimator for numbers, all members", regressor),
    "classifier": Case("the estimator for classes", classifier),
    "counties-of-ohio": Case("a part of the demo's table: one row for every node", partial(counties_of, "OH")),
}  # fmt: skip
SITES: dict[str, Case] = {
    "sites-numbers": site_case(
        "numbers over 3 sites, a map, the usual members", "number", 3, (9, 14), places=True, folds=2
    ),
    "sites-times": site_case(
        "numbers over 2 sites, later times, given edges", "number", 2, (6, 30), edges=chain(6), time="day", members=FEW
    ),
    "sites-two-classes": site_case(
        "two classes over 3 sites", "two", 3, (9, 16), places=True, members=FEDERATED, **ONE
    ),
    "sites-three-classes": site_case("three classes over 2 sites", "three", 2, (6, 20), members=FEW, **ONE),
    "sites-counts": site_case("counts over 2 sites", "count", 2, (8, 15), places=True, members=FEDERATED, **ONE),
    "sites-quantile": site_case("a quantile over 2 sites", "quantile", 2, (6, 20), members=FEW, **ONE),
    "sites-similarity": site_case("numbers over 2 sites, by similarity", "number", 2, (8, 15), members=FEW, folds=2),
    "sites-nodes": site_case(
        "numbers over 3 sites, whole nodes", "number", 3, (12, 10), places=True, hold="nodes", test=0.25,
        members=FEDERATED, **ONE,
    ),
    "sites-secure": site_case(
        "numbers over 3 sites, sums are masked", "number", 3, (9, 14), places=True, secure=True, members=FEDERATED,
        **ONE,
    ),
}  # fmt: skip
FULL: dict[str, Case] = {
    "numbers-ifca": table_case(
        "numbers, clusters, which need no graph", "number", (16, 20), places=True, method="ifca", members=FEW,
        quick=False,
    ),
    "numbers-fedrelax": table_case(
        "numbers, linear models by FedRelax", "number", places=True, method="fedrelax", members=FEW, quick=False
    ),
    "quantile-nodes": table_case(
        "a quantile, whole nodes, a map, all members", "quantile", (16, 12), places=True, hold="nodes", quick=False
    ),
    "counts-times": table_case("counts, later times, all members", "count", (10, 30), time="day", quick=False),
    "sites-two-classes-auto": site_case(
        "two classes over 2 sites, λ is chosen, the usual members", "two", 2, (8, 20), places=True, quick=False
    ),
    "sites-three-classes-auto": site_case(
        "three classes over 2 sites, λ is chosen", "three", 2, (6, 20), members=FEW, folds=2, quick=False
    ),
    "sites-counts-auto": site_case(
        "counts over 2 sites, λ is chosen", "count", 2, (8, 20), places=True, members=FEDERATED, folds=2, quick=False
    ),
    "sites-quantile-auto": site_case(
        "a quantile over 2 sites, λ is chosen", "quantile", 2, (6, 20), members=FEW, folds=2, quick=False
    ),
    "counties": Case("the demo: US counties of 1980", partial(real, "counties"), quick=False),
    "hospitals": Case("heart disease at four hospitals", partial(real, "hospitals"), False, "hospitals"),
    "schools": Case("exam scores at 139 schools", partial(real, "schools"), False, "schools"),
    "stations": Case("tomorrow at weather stations", partial(real, "stations"), False, "stations"),
    "sites-hospitals": Case(
        "heart disease at four hospitals, each a site", partial(real, "hospitals", 4, members=FEDERATED), False,
        "hospitals", partial(real, "hospitals", members=FEDERATED), {"members": FEDERATED},
    ),
}  # fmt: skip
CASES = TABLES | SITES | FULL
