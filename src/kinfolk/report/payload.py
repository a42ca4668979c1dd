"""What the page knows about a run, packed: numbers as short as they may be, so that the file stays small."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from kinfolk.report.colours import GROUPS, SYMBOLS
from kinfolk.report.facts import LamPath, Role, RunFacts, probability_by
from kinfolk.report.groups import steady_groups
from kinfolk.report.positions import positions
from kinfolk.report.words import title
from kinfolk.typing import Floats

STEPS = 65_534  # that a number is rounded to, over its range; the next one stands for none
SOME_ROWS = 100  # held-out rows whose prediction is taken apart
ERRORS = ("error_alone", "error_pooled", "error_tailored", "error_final")


def payload(run: RunFacts) -> dict[str, Any]:
    """All that the scripts of the page draw."""
    spots = positions(run)
    return {
        "nodeTitle": str(run.columns.node),
        "names": [str(name) for name in run.nodes.index],
        "x": packed(spots[:, 0], "f4"),
        "y": packed(spots[:, 1], "f4"),
        "head": packed(run.edges["head"], "u4"),
        "tail": packed(run.edges["tail"], "u4"),
        "weight": packed(run.edges["weight"], "f4"),
        "flow": packed(run.edges["flow"], "f4"),
        "nodes": {name: packed(run.nodes[name], "f4") for name in (*ERRORS, "gain", "gain_error")}
        | {name: packed(run.nodes[name], "u4") for name in ("train_rows", "test_rows", "group")},
        "blend": _blend(run),
        "path": _path(run.path),
        "colours": GROUPS,
        "symbols": SYMBOLS,
    }


def _blend(run: RunFacts) -> dict[str, Any]:
    """What every member predicts for some held-out rows: numbers, or the probability of the class that is predicted."""
    classifies = run.target.classifies
    used = run.leaderboard[run.leaderboard["weight"].fillna(0.0) > 0]
    step = max(len(run.predictions) // SOME_ROWS, 1)
    some = run.predictions.iloc[::step][:SOME_ROWS]
    return {
        "titles": [title(str(name)) for name in used.index],
        "weights": [float(weight) for weight in used["weight"]],
        "nodes": [f"{row}, {node}" for row, node in zip(some["row"], some["node"], strict=True)],
        "classes": some[Role.FINAL].map(str).tolist() if classifies else None,
        "truth": some["target"].map(str if classifies else float).tolist(),
        "predicted": [
            [float(f"{value:.6g}") for value in some[probability_by(name) if classifies else name]]
            for name in used.index
        ],
    }


def _path(path: LamPath) -> dict[str, Any]:
    return {
        "lams": [float(f"{lam:.4g}") for lam in path.lams],
        "chosen": int(path.chosen),
        "errors": [_or_none(error) for error in path.errors],
        "spread": [_or_none(spread) for spread in path.spread],
        "groups": packed(steady_groups(path), "u2"),
        "names": [str(name) for name in path.names],
        "numbers": [rounded(path.signature[:, :, k]) for k in range(len(path.names))],
        "coefficients": bool(path.coefficients),
    }


def _or_none(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None


def packed(values: Any, kind: str) -> dict[str, str]:
    """An array as text: its type, and its bytes in base 64.

    >>> packed([1, 2, 258], "u2")
    {'type': 'u2', 'data': 'AQACAAIB'}
    """
    array = np.ascontiguousarray(np.asarray(values), dtype="<" + kind)
    return {"type": kind, "data": base64.b64encode(array.tobytes()).decode("ascii")}


def rounded(values: Floats) -> dict[str, Any]:
    """An array in two bytes per number: the value is low + step · number, and the largest number means none."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    step = (high - low) / STEPS or 1.0
    with np.errstate(invalid="ignore"):
        number = np.where(np.isfinite(values), np.round((values - low) / step), STEPS + 1)
    return {"low": low, "step": step, **packed(number, "u2")}
