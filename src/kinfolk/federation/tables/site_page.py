"""The facts of a site's own page, from the job that it has finished; nothing of it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import WireError
from kinfolk.federation.ledger import sent_in_all
from kinfolk.federation.tables.kept import LEVEL
from kinfolk.federation.tables.site_job import SiteJob
from kinfolk.report.facts import Role
from kinfolk.report.site import SHARES, Outcome, SiteFacts
from kinfolk.tables.members.slopes import LinearFit

TEXTS = {"verdict": str, "judgement": str, "methods": list, "notes": list}


def outcome_of(about: Mapping[str, Any], arrays: Arrays) -> Outcome:
    """What a coordinator tells in the end, checked; its words are shown, and nothing else is done with them."""
    sound = set(about) == set(TEXTS) and all(isinstance(about[name], kind) for name, kind in TEXTS.items())
    sound = sound and all(isinstance(each, str) for name in ("methods", "notes") for each in about[name])
    shape = len(about["methods"]) if sound else 0, len(SHARES)
    if not sound or arrays["errors"].shape != shape[:1] or arrays["quantiles"].shape != shape:
        raise WireError("Expected how learning together has ended, got something else.")
    quantiles = tuple(tuple(each) for each in arrays["quantiles"].tolist())
    methods, notes = tuple(about["methods"]), tuple(about["notes"])
    return Outcome(about["verdict"], about["judgement"], methods, tuple(arrays["errors"].tolist()), quantiles, notes)


def site_facts(job: SiteJob, outcome: Outcome, federation: str, site: str, folder: Path) -> SiteFacts:
    """What the page of a site shows; ``folder``: of the site, with what has left it."""
    table, target, errors = job.table, job.table.target, job.tested.errors
    has_test = len(table.test.y) > 0
    here = {name: float(target.shown(errors.mean(name))) for name in errors.rows} if has_test else {}
    rows = _rows(job)
    return SiteFacts(
        federation, site, table.settings.target, target.kind, outcome, job.weights, here, _nodes(job), rows,
        LEVEL if "low" in rows else None, _coefficients(job), sent_in_all(folder),
    )  # fmt: skip


def _nodes(job: SiteJob) -> pandas.DataFrame:
    table, count = job.table, len(job.table.nodes)
    by_node = job.tested.errors.by_node(count)
    errors = {f"error_{name}": table.target.shown(by_node[name].to_numpy()) for name in by_node}
    sizes = {
        "train_rows": np.bincount(table.training.owner, minlength=count),
        "test_rows": np.bincount(table.test.owner, minlength=count),
    }
    return pandas.DataFrame({**sizes, **errors}, index=pandas.Index(table.nodes, name="node"))


def _rows(job: SiteJob) -> pandas.DataFrame:
    """The held-out rows, with what the blend predicts."""
    table, target = job.table, job.table.target
    tested = table.held_out & ~np.isnan(table.rows.y)
    found = job.tested.predicted[Role.FINAL]
    out = {
        "row": table.table.index[tested], "node": np.array(table.nodes, dtype=object)[table.test.owner],
        "target": table.table[table.settings.target][tested].to_numpy(), "predicted": target.decode(found),
    }  # fmt: skip
    if target.classes:
        return pandas.DataFrame({**out, "probability": found.max(axis=1)})
    out["target"] = target.decode(table.test.y)
    if job.intervals is not None:
        low, high = job.intervals.interval(out["predicted"], table.test.owner, LEVEL)
        out |= {"low": target.lower_end(low), "high": high}
    return pandas.DataFrame(out)


def _coefficients(job: SiteJob) -> pandas.DataFrame:
    """The tailored models: a row for every node, of several classes for every node and class."""
    table, fitted = job.table, job.models.get("tailored")
    if not isinstance(fitted, LinearFit):
        return pandas.DataFrame()
    w, classes = fitted.scores.w, table.target.classes
    names = [
        f"{node}: {classes[score]}" if len(w) > 1 else node for node in table.nodes for score in range(len(w))
    ]  # fmt: skip
    columns = [*table.encoder.get_feature_names_out(), "intercept"]
    return pandas.DataFrame(np.moveaxis(w, 0, 1).reshape(len(names), -1), index=names, columns=columns)
