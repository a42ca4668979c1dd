"""Running: what is stored of a run, on one table and across sites; private names are in one function each.

All that names parts of the job across sites stands under "across sites", so that it can follow renames. The rest uses
what is public.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk import learn

LEVEL = 0.9  # of intervals
ASKED, UNSEEN = 20, 5  # rows that are predicted; the first of them also as rows of a node that was never seen
PACKAGES = ("numpy", "scipy", "scikit-learn", "numba")
Result = dict[str, Any]


def asked_rows(table: pandas.DataFrame) -> pandas.DataFrame:
    """Twenty rows of a table, from its first to its last."""
    return table.iloc[np.linspace(0, len(table) - 1, ASKED).round().astype(int)].reset_index(drop=True)


# ---------------------------------------------------------------------- one table


def one_table(table: pandas.DataFrame, edges: Any = None, **settings: Any) -> Result:
    """Learn from a table; what is stored of it."""
    return of_table(learn(table, edges=edges, progress=False, **settings), table)


def of_table(run: Any, table: pandas.DataFrame) -> Result:
    """What is stored of a run on a table."""
    rows = asked_rows(table)
    new = rows[:UNSEEN].assign(**{run.settings.node: "a node that was never seen"})
    values = {name: entry.value for name, entry in run.entries.items() if len(entry.value)}
    found = _compared(run) | {"values": values, "weights": run.weights.to_dict()} | of_blend(run, rows)
    ask = run.predict_proba if run.target.classes else run.predict
    return found | {"unseen": _columns(ask(new, unknown="neighbours")), "information": versions()}


def of_blend(blend: Any, rows: pandas.DataFrame) -> Result:
    """Predictions of a blend: probabilities of classes, else numbers with widths of intervals."""
    if blend.target.classes:
        return {"predictions": _columns(blend.predict_proba(rows))}
    found: Result = {"predictions": blend.predict(rows)}
    if blend.intervals is not None:
        ends = blend.predict(rows, interval=LEVEL)
        found["widths"] = ends["high"] - ends["low"]
    return found


def _compared(run: Any) -> Result:
    """The comparison and the judgement, which runs of both kinds have."""
    board = run.leaderboard[["error", "validated"]].astype(float)
    return {
        "leaderboard": [{"name": name, **row} for name, row in board.to_dict(orient="index").items()],
        "judgement": {each.name: getattr(run.judgement, each.name) for each in dataclasses.fields(run.judgement)},
        "gains": run.nodes["gain"].to_numpy()[:ASKED],
        "graph": {"edges": run.graph.edge_count, "weight": float(run.graph.weights.sum())},
    }


def _columns(found: Any) -> Any:
    """A data frame by column, as plain lists; all else as it is."""
    return found.to_dict(orient="list") if isinstance(found, pandas.DataFrame) else found


def of_update(run: Any, new_rows: pandas.DataFrame, table: pandas.DataFrame) -> Result:
    """What is stored of a run that was updated: that of any run, and what has changed."""
    after = run.update(new_rows, progress=False)
    changes = after.changes
    known = {"error_new": changes.error_new, "error_before": changes.error_before, "nodes": _columns(changes.nodes)}
    return of_table(after, table) | {"changes": known}


def of_estimator(model: Any, X: pandas.DataFrame, y: Any) -> Result:
    """What is stored of an estimator of scikit-learn: there is no test."""
    model.fit(X, y)
    rows, entries = asked_rows(X), model.blend_.entries
    found: Result = {
        "validated": {name: entry.error for name, entry in entries.items()},
        "values": {name: entry.value for name, entry in entries.items() if len(entry.value)},
        "weights": model.blend_.weights.to_dict(),
    }
    if hasattr(model, "classes_"):
        probabilities = model.predict_proba(rows).T
        found["predictions"] = dict(zip(map(str, model.classes_), probabilities, strict=True))
    else:
        ends = model.predict_interval(rows, LEVEL)
        found |= {"predictions": model.predict(rows), "widths": ends[:, 1] - ends[:, 0]}
    return found | {"information": versions()}


def versions() -> Result:
    """The packages on which the last digits depend: nothing that is compared."""
    return {"versions": {name: importlib.metadata.version(name) for name in PACKAGES}}


# ---------------------------------------------------------------------- across sites


class Called:
    """The post in memory: it calls the services in this process, and counts."""

    def __init__(self, services: Mapping[str, Any]) -> None:
        self.services, self.exchanges, self.bytes = services, 0, 0

    def ask(self, blobs: Mapping[str, bytes], most: Mapping[str, int], seconds: float) -> dict[str, bytes]:
        """Call every service."""
        self.exchanges += 1
        found = {name: self.services[name].answer(blob) for name, blob in blobs.items()}
        self.bytes += sum(map(len, blobs.values())) + sum(map(len, found.values()))
        return found


def services_of(tables: Mapping[str, pandas.DataFrame], folder: Path) -> dict[str, Any]:
    """The service of every site."""
    from kinfolk.federation.tables.service import TableService

    return {name: TableService(name, table, folder / name) for name, table in tables.items()}


def learnt_together(post: Called, edges: Any, secure: bool, settings: Mapping[str, Any]) -> Any:
    """The run of the coordinator."""
    from kinfolk.federation.tables.federated_job import learn_together
    from kinfolk.tables import Settings

    return learn_together(post, list(post.services), Settings.of(settings), edges=edges, secure=secure)


def chosen_together(run: Any) -> Result:
    """The values and the weights that a coordinator knows, and the members that were left out."""
    values = {name: each.value for name, each in run.validations.items() if len(each.value)}
    return {"values": values, "weights": run.weights, "information": {"left_out": run.left_out}}


def predicted_at(service: Any, rows: pandas.DataFrame) -> pandas.DataFrame:
    """Predictions by the service of a site, a column for every quantity: ``predicted`` and ``width``, or the classes.

    A service tells classes, no probabilities: these come from its blend with a target that leaves them as they are.
    """
    blend = service.blend
    if blend.target.classes:
        found = dataclasses.replace(blend, target=_Undecoded()).predict(rows)
        return pandas.DataFrame(found, index=rows.index, columns=list(blend.target.classes))
    if blend.intervals is None:
        return pandas.DataFrame({"predicted": service.predict(rows)}, index=rows.index)
    ends = service.predict(rows, interval=LEVEL)
    return pandas.DataFrame({"predicted": ends[blend.columns.target], "width": ends["high"] - ends["low"]})


class _Undecoded:
    """In place of a target: predictions stay what learning sees."""

    @staticmethod
    def decode(predicted: Any) -> Any:
        """The same."""
        return predicted


def home_of(nodes: pandas.Series, count: int) -> pandas.Series:
    """The site of every row: nodes in the order of their names, in so many parts."""
    names = sorted(nodes.astype(str).unique())
    return nodes.astype(str).map({name: f"site {k * count // len(names)}" for k, name in enumerate(names)})


def across_sites(
    table: pandas.DataFrame, sites: int, edges: Any = None, secure: bool = False, **settings: Any
) -> Result:
    """Cut a table by node into sites that learn together; what is stored of it. The sites predict."""
    rows = asked_rows(table)
    home, asked = (home_of(each[settings["node"]], sites) for each in (table, rows))
    tables = {name: part.reset_index(drop=True) for name, part in table.groupby(home)}
    with tempfile.TemporaryDirectory() as folder:
        services = services_of(tables, Path(folder))
        post = Called(services)
        try:
            run = learnt_together(post, edges, secure, settings)
            found = _compared(run) | chosen_together(run)  # the judgement asks the sites
            predicted = pandas.concat([predicted_at(services[name], part) for name, part in rows.groupby(asked)])
        finally:
            for service in services.values():
                service.close()
    predicted = predicted.loc[rows.index]
    if "predicted" in predicted:
        found["predictions"] = predicted["predicted"]
        found |= {"widths": predicted["width"]} if "width" in predicted else {}
    else:
        found["predictions"] = _columns(predicted)
    found["information"] |= {"exchanges": post.exchanges, "bytes": post.bytes} | versions()
    return found
