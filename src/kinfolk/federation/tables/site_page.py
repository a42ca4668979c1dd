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
from kinfolk.report.facts import Role
from kinfolk.report.site import SHARES, Outcome, SiteFacts
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.members.linear_fit import LinearFit

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


def site_facts(party: LocalParty, outcome: Outcome, federation: str, site: str, folder: Path) -> SiteFacts:
    """What the page of a site shows; ``folder``: of the site, with what has left it."""
    rows, target, errors = party.rows, party.rows.target, party.tested
    assert errors is not None
    has_test = len(rows.test.y) > 0
    here = {name: float(target.shown(errors.mean(name))) for name in errors.rows} if has_test else {}
    held_out = _held_out(party)
    return SiteFacts(
        federation, site, rows.settings.target, target.kind, outcome, party.weights, here, _nodes(party, errors),
        held_out, LEVEL if "low" in held_out else None, _coefficients(party), sent_in_all(folder),
    )  # fmt: skip


def _nodes(party: LocalParty, tested: HeldOutErrors) -> pandas.DataFrame:
    rows, count = party.rows, len(party.rows.nodes)
    by_node = tested.by_node(count)
    errors = {f"error_{name}": rows.target.shown(by_node[name].to_numpy()) for name in by_node}
    sizes = {
        "train_rows": np.bincount(rows.training.owner, minlength=count),
        "test_rows": np.bincount(rows.test.owner, minlength=count),
    }
    return pandas.DataFrame({**sizes, **errors}, index=pandas.Index(rows.nodes, name="node"))


def _held_out(party: LocalParty) -> pandas.DataFrame:
    """The held-out rows, with what the ensemble predicts."""
    rows, target = party.rows, party.rows.target
    found = party.predicted[Role.FINAL]
    out = {
        "row": rows.table.index[rows.held_out], "node": np.array(rows.nodes, dtype=object)[rows.test.owner],
        "target": rows.table[rows.settings.target][rows.held_out].to_numpy(), "predicted": target.decode(found),
    }  # fmt: skip
    if target.classes:
        return pandas.DataFrame({**out, "probability": found.max(axis=1)})
    out["target"] = target.decode(rows.test.y)
    if party.intervals is not None:
        low, high = party.intervals.interval(out["predicted"], rows.test.owner, LEVEL)
        out |= {"low": target.lower_end(low), "high": high}
    return pandas.DataFrame(out)


def _coefficients(party: LocalParty) -> pandas.DataFrame:
    """The tailored models: a row for every node, of several classes for every node and class."""
    rows, fitted = party.rows, party.finals.get("tailored")
    if not isinstance(fitted, LinearFit):
        return pandas.DataFrame()
    w, classes = fitted.scores.w, rows.target.classes
    names = [
        f"{node}: {classes[score]}" if len(w) > 1 else node for node in rows.nodes for score in range(len(w))
    ]  # fmt: skip
    columns = [*rows.encoder.get_feature_names_out(), "intercept"]
    return pandas.DataFrame(np.moveaxis(w, 0, 1).reshape(len(names), -1), index=names, columns=columns)
