"""Does a member keep the promises that the ensemble relies on? The body of ``kinfolk.testing.check_member``."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.local_models.stored_reader import Reader as StoredReader
from kinfolk.tables.cross_validation import CrossValidation, Validation
from kinfolk.tables.job import tune
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.members.member import Access, Member, RowMember, Value
from kinfolk.tables.members.own import OwnEstimator
from kinfolk.tables.members.saving import ESTIMATOR, KINDS, Reader, fitted_files, kind_of
from kinfolk.tables.party import OneParty
from kinfolk.tables.prepared import Prepared, prepare
from kinfolk.tables.rows import Rows
from kinfolk.tables.settings import Settings
from kinfolk.typing import Floats

NODES, ROWS = 8, 12  # of each node; the last node has test rows only
SOME = ("pooled", "intercepts", "slopes")  # members that feed others
KINDS_OF_TARGETS: dict[str, dict[str, Any]] = {
    "numbers": {"test": "held"},
    "classes": {"test": "held", "task": "classification"},
    "later times": {"test": 0.3, "time": "time"},
}
SAME = 1e-9  # relative, for the same work done twice
NEARLY = 1e-3  # of the deviation of targets, for fits that stop at a tolerance


class Learnt(NamedTuple):
    """A member that was tuned, and who has the rows."""

    party: LocalParty
    cv: CrossValidation
    found: Validation
    fitted: Any  # with the best value, to all training rows
    test: Rows
    predicted: Floats  # of the test rows


def check(member: Member) -> None:
    """Check a member with all kinds of targets that it supports."""
    _check_declared(member)
    reasons = {}
    for kind in KINDS_OF_TARGETS:
        prepared = _prepared(kind)
        reasons[kind] = _unsupported(member, prepared)
        if reasons[kind] is None:
            _check_kind(member, kind, prepared)
    assert None in reasons.values(), f"{member.name} supports no kind of target: {reasons['numbers']}"


def simulated_table(kind: str) -> pandas.DataFrame:
    """Rows of eight nodes at places, the last of which has no training rows."""
    rng = np.random.default_rng(0)
    owner, time = np.repeat(np.arange(NODES), ROWS), np.tile(np.arange(float(ROWS)), NODES)
    time[owner == NODES - 1] = ROWS - 1
    place, slopes = rng.normal(size=(NODES, 2)), np.array([1.0, -1.0]) + 0.5 * rng.normal(size=(NODES, 2))
    X = rng.normal(size=(len(owner), 2))
    y = (X * slopes[owner]).sum(axis=1) + place[owner, 0] + 0.5 * rng.normal(size=len(owner))
    target = np.where(y > 0, "yes", "no") if kind == "classes" else y
    return pandas.DataFrame({
        "node": [f"node {k}" for k in owner], "x": place[owner, 0], "y": place[owner, 1], "a": X[:, 0], "b": X[:, 1],
        "time": time, "held": time % 4 == 3, "target": target,
    })  # fmt: skip


def _prepared(kind: str, *, other_test: bool = False) -> Prepared:
    """The table, ready to learn from; with other targets of test rows, if that is asked for."""
    options = {"features": ("a", "b"), "coords": ("x", "y"), "folds": 2, "lam": 1.0, **KINDS_OF_TARGETS[kind]}
    table, settings = simulated_table(kind), Settings("node", "target", members=SOME, **options)
    prepared = prepare(table, settings)
    if not other_test:
        return prepared
    held = prepared.rows.held_out
    table.loc[held, "target"] = table.loc[held, "target"].to_numpy()[::-1]
    return prepare(table, settings)


def _learnt(member: Member, prepared: Prepared) -> Learnt:
    """Tune the members that feed others, then this one, and let it predict the test rows."""
    party = LocalParty(prepared.rows)
    cv = tune(OneParty(party), prepared.design, members=SOME).cv
    if isinstance(member, RowMember):
        chosen = cv.inputs(member)
        values = member.grid(prepared.design, list(chosen))
        values = member.values(party.training_set(prepared.rows.whole, chosen)) if values is None else values
        assert len(values), f"{member.name} has no values to try"
    found = member.tuned(cv)
    party.finals.pop(member.name, None)
    fitted, test = party.final(member.name, found.best), prepared.rows.test
    return Learnt(party, cv, found, fitted, test, fitted.predict(test))


def _unsupported(member: Member, prepared: Prepared) -> str | None:
    try:
        if isinstance(member, OwnEstimator):
            member.check(prepared.design.target)
    except InputError as error:
        return str(error)
    return member.unsupported_reason(prepared.design)


# ---------------------------------------------------------------------- promises


def _check_declared(member: Member) -> None:
    name = getattr(member, "name", None)
    assert isinstance(name, str), f"{type(member).__name__} declares no name"
    assert name, f"{type(member).__name__} declares an empty name"
    known = get_args(Access)
    assert getattr(member, "access", None) in known, f"{name} must declare access as one of {', '.join(known)}"
    for field in ("parameters", "inputs"):
        words = getattr(member, field)
        texts = isinstance(words, tuple) and all(isinstance(word, str) for word in words)
        assert texts, f"{name} must declare {field} as a tuple of str"


def _check_kind(member: Member, kind: str, prepared: Prepared) -> None:
    who, learnt = f"{member.name} ({kind})", _learnt(member, prepared)
    values = learnt.found.values
    sizes = {len(value) if _is_value(value) else -1 for value in values}
    wanted = f"{who} must try tuples of floats, one for each of its {len(member.parameters)} parameters"
    assert sizes == {len(member.parameters)}, wanted
    assert np.isfinite(learnt.found.error), f"{who} has no finite error in cross-validation"
    _check_shape(who, learnt, learnt.predicted)
    new = learnt.fitted.predict_new_nodes(learnt.test)
    if new is not None:
        assert new.shape == learnt.predicted.shape, f"{who} predicts new nodes with shape {new.shape}"
        assert np.isfinite(new).all(), f"{who} predicts new nodes with numbers that are not finite"
    again = _learnt(member, prepared).predicted
    repeats = f"{who} predicts otherwise when it is fitted again: draw from training.seed, or set random_state"
    assert _same(again, learnt.predicted), repeats
    other = _learnt(member, _prepared(kind, other_test=True)).predicted
    assert _same(other, learnt.predicted), f"{who} predicts test rows otherwise if their targets change: a leak"
    if isinstance(member, RowMember):
        _check_fits(who, member, learnt)
    _check_saved(who, member, learnt)


def _is_value(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(number, float) for number in value)


def _same(one: Floats, other: Floats, scale: float = SAME) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=SAME, atol=scale, equal_nan=True))


def _check_shape(who: str, learnt: Learnt, predicted: Floats) -> None:
    """Numbers (rows,) or probabilities (rows, classes); NaN only at a node without training rows."""
    classes, trained = len(learnt.cv.design.target.classes), learnt.cv.design.train_rows > 0
    shape = (len(learnt.test.y), classes) if classes else (len(learnt.test.y),)
    assert predicted.shape == shape, f"{who} must predict with shape {shape}, got {predicted.shape}"
    finite = np.asarray(np.isfinite(predicted.reshape(len(predicted), -1)).all(axis=1))
    assert finite[trained[learnt.test.owner]].all(), f"{who} must predict finite numbers at nodes with training rows"
    sums = predicted[finite].sum(axis=1) if classes else np.ones(1)
    assert np.allclose(sums, 1.0), f"{who} must predict probabilities that sum to 1"


def _check_fits(who: str, member: RowMember, learnt: Learnt) -> None:
    """Fits, predictions and the final fit agree; targets of rows that are asked for play no part."""
    party, held = learnt.party, learnt.party.rows.folding.folds[0][1]
    training = party.training_set(0, learnt.cv.inputs(member))
    asked, before = party.rows.training.take(held), copy.deepcopy(training.rows)
    tried = _some(learnt.found)
    predicted = list(member.predictions(training, tried, asked))
    assert len(predicted) == len(tried), f"{who} must predict once for each of {len(tried)} values"
    other = asked._replace(y=np.roll(asked.y, 1) if party.rows.target.classes else asked.y + 1.0)
    leaks = not all(map(_same, member.predictions(training, tried, other), predicted))
    assert not leaks, f"{who} predicts held-out rows otherwise if their targets change: a leak"
    for value, expected in zip(tried, predicted, strict=True):
        (fitted,) = member.fits(training, [value])
        agree = _same(fitted.predict(asked), expected, NEARLY)
        assert agree, f"{who} predicts otherwise with fits than with predictions, at {value}"
        agree = _same(member.final(training, value).predict(asked), expected, NEARLY)
        assert agree, f"{who} predicts otherwise with final than with fits, at {value}"
    kept = all(np.array_equal(mine, theirs) for mine, theirs in zip(before[:3], training.rows[:3], strict=True))
    assert kept, f"{who} changes the rows that it learns from"


def _some(found: Validation) -> Sequence[Value]:
    """The first, the best and the last value."""
    return [found.values[k] for k in sorted({0, found.best, len(found.values) - 1})]


def _check_saved(who: str, member: Member, learnt: Learnt) -> None:
    """What was learnt can be written, and predicts the same when it is read."""
    known = ", ".join(kind.__name__ for kind in KINDS)
    assert type(learnt.fitted) in KINDS, f"{who} must return one of {known}, which can be saved"
    design = learnt.cv.design
    with TemporaryDirectory() as place:
        folder, trusted = Path(place) / member.name, list[str]()
        try:
            for name, content in fitted_files(learnt.fitted, member.name):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
                if name == ESTIMATOR:
                    stored = StoredReader(content, who)
                    stored.read()
                    trusted += stored.classes
            reader = Reader(design.target, design.node_count, design.width - 1, design.places, trusted)
            read = reader.read(kind_of(learnt.fitted), folder)
        except (InputError, ValueError) as error:
            raise AssertionError(f"{who} cannot be saved and loaded: {error}") from error
    assert _same(read.predict(learnt.test), learnt.predicted), f"{who} predicts otherwise once it is saved and loaded"
