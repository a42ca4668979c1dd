"""Updating: new rows and new nodes join a finished run. Its choices are kept, its models are fitted again."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError, printable
from kinfolk.progress import progress_bar
from kinfolk.report.facts import Changes, Note, Role
from kinfolk.tables.extending import Given, aligned, extended, joined_edges, prepared_before
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.keeping import kept_intervals, kept_tuning
from kinfolk.tables.learning import run_of
from kinfolk.tables.own_code import code_files
from kinfolk.tables.prepared import Prepared, edges_table
from kinfolk.tables.reading import fingerprint
from kinfolk.tables.table_rows import worthwhile_threads
from kinfolk.tables.table_run import TableRun
from kinfolk.typing import Floats

Tables = pandas.DataFrame | Sequence[pandas.DataFrame]  # one table, or a table and the rows of its updates
CLEARLY = 3.0  # standard errors by which new rows are predicted worse than test rows
WORSE = 1.2  # ... and times the loss
KEPT_NOTES = ("member left out", "no trend")  # of the first fit, that are so still


def updated(
    run: TableRun, new_rows: pandas.DataFrame, *, edges: Any = None, table: Tables | None = None,
    table_edges: Any = None, trusted: Sequence[str] = (), progress: bool = True,
) -> TableRun:  # fmt: skip
    """See ``TableRun.update``."""
    began = time.perf_counter()
    given = _given(run, table, table_edges, trusted)
    before = prepared_before(run, given)
    new = aligned(new_rows, run, given)
    grown = dataclasses.replace(given, parts=(*given.parts, new), edges=_all_edges(given, edges))
    table = grown.table
    after = extended(before, new, grown.edges)
    design = dataclasses.replace(after.design, settings=dataclasses.replace(run.settings, rivals=False))
    after = dataclasses.replace(after, design=design, fingerprint=fingerprint(table), row_count=len(table))
    with progress_bar("updating", 0, enabled=progress) as bar, worthwhile_threads(after.rows):
        found = run_of(after, kept_tuning(run, after, bar), None, began)
    found.intervals = kept_intervals(run, after.rows.nodes)
    found.settings, found.given = run.settings, grown
    parts = (*(run.changes.parts if run.changes is not None else [run.made.rows]), len(new))
    found.changes, loss = _changes(run, found, before, after, grown.edges, parts)
    found.changes = dataclasses.replace(found.changes, seconds=round(time.perf_counter() - began, 2))
    found.remarks = _remarks(run, found, after, loss)
    return found


# ---------------------------------------------------------------------- what is there


def _given(run: TableRun, table: Tables | None, edges: Any, trusted: Sequence[str]) -> Given:
    """The table that the run was learnt from: kept since, or given now."""
    if table is None and run.given is not None:
        return run.given
    if table is None:
        raise InputError(
            "Expected the table that the run was learnt from, a folder keeps no rows: give it with table= (and its "
            "edges with table_edges=)."
        )
    if run.settings.has_objects:
        raise InputError(
            "Expected models that settings can name, this run had an object: update it in the session that made it, "
            "or fit again."
        )
    named = {Path(each).resolve() for each in trusted}
    for what, source in code_files(run.settings.to_toml()):
        if source not in named:
            raise InputError(
                f"Expected a {what} that kinfolk knows, that of this run comes from {str(source)!r}: read that file, "
                f"and if you trust it, add --trust {printable(shlex.quote(str(source)))} (in Python: "
                f"trusted=[{str(source)!r}])."
            )
    return Given.of(table, edges_table(edges))


def _all_edges(given: Given, more: Any) -> pandas.DataFrame | None:
    """The edges before, and those that came with new nodes."""
    found = edges_table(more)
    if found is None:
        return given.edges
    if given.edges is None:
        raise InputError("Expected no edges: the graph of this run came from elsewhere, so fit again to use edges.")
    return joined_edges([given.edges, found])


# ---------------------------------------------------------------------- what changed


def _changes(
    run: TableRun, found: TableRun, before: Prepared, after: Prepared, edges: pandas.DataFrame | None,
    parts: tuple[int, ...],
) -> tuple[Changes, Floats]:  # fmt: skip
    """What an update changed for whom; and the losses of the models before on the new rows."""
    fresh = slice(len(before.rows.rows.y), None)
    old, now = _encoded(run, after.rows.table, edges), _encoded(found, after.rows.table, edges)
    loss = after.rows.target.loss(old[fresh], after.rows.rows.y[fresh])
    tested = HeldOutErrors({"before": loss}, after.rows.rows.owner[fresh], after.rows.target)
    count, shown = len(after.rows.nodes), after.rows.target.shown
    number = {str(name): k for k, name in enumerate(run.graph.names)}
    known = run.nodes.reindex(after.rows.nodes)
    rows = np.array([float(run.train_rows[number[name]]) if name in number else np.nan for name in after.rows.nodes])
    nodes = pandas.DataFrame(
        {
            "rows_before": rows,
            "rows_new": np.bincount(tested.owner, minlength=count),
            "error_new": shown(tested.by_node(count)["before"].to_numpy()),
            "error_before": known["error_final"].to_numpy(),
            "change": _mean_change(after, old, now),
        },
        index=pandas.Index(after.rows.nodes, name="node"),
    )
    errors = float(shown(tested.mean("before"))), float(shown(run.errors.mean(Role.FINAL)))
    return Changes(nodes, parts, *errors, 0.0), loss


def _encoded(run: TableRun, table: pandas.DataFrame, edges: pandas.DataFrame | None) -> Floats:
    """Predictions as learning sees them; for nodes that a run does not know those of neighbours, or of one model."""
    if run.target.classes:
        return np.asarray(run.predict_proba(table, unknown="neighbours", edges=edges).to_numpy())
    predicted = run.predict(table, unknown="neighbours", edges=edges).to_numpy(dtype=np.float64)
    return np.asarray((predicted - run.target.centre) / run.target.spread)


def _mean_change(after: Prepared, old: Floats, now: Floats) -> Floats:
    """By how much predictions for a node's rows changed: in units of the target, or as a share of probability."""
    apart = np.abs(now - old)
    each = apart.sum(axis=1) / 2 if apart.ndim == 2 else after.rows.target.spread * apart
    count = np.bincount(after.rows.rows.owner, minlength=len(after.rows.nodes))
    return np.asarray(np.bincount(after.rows.rows.owner, each, minlength=len(after.rows.nodes)) / count)


def _remarks(run: TableRun, found: TableRun, after: Prepared, loss: Floats) -> list[Note]:
    """What holds of the run, and what an update leaves open."""
    assert found.changes is not None
    kept = [note for note in run.remarks if note.kind in KEPT_NOTES and note not in after.design.notes]
    news = [Note("updated", {"count": len(found.changes.parts) - 1})]
    if found.intervals is not None and not found.intervals.seen.all():
        news.append(Note("intervals of new nodes", {"count": int((~found.intervals.seen).sum())}))
    if found.errors.times is not None:
        news.append(Note("test before new rows"))
    learnt = set(after.rows.rows.owner[-len(loss) :]) & set(found.errors.owner)
    if learnt and after.rows.folding.kind == "nodes":
        news.append(Note("tested nodes learnt", {"count": len(learnt)}))
    if _drifted(run.errors.rows[Role.FINAL], loss):
        news.append(Note("drift"))
    dropped = ("no control",)
    return [*(note for note in found.remarks if note.kind not in dropped), *kept, *news]


def _drifted(tested: Floats, new: Floats) -> bool:
    """Whether the models before predicted new rows clearly worse than test rows.

    >>> _drifted(np.ones(50), np.full(50, 4.0)), _drifted(np.ones(50), np.ones(50))
    (True, False)
    """
    error = np.sqrt(tested.var() / len(tested) + new.var() / len(new))
    return bool(new.mean() > WORSE * tested.mean() and new.mean() - tested.mean() > CLEARLY * error)
