"""The comparison: the blend, its members, every node alone, the control and the rivals predict the test rows."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from kinfolk.checks import LearningError
from kinfolk.progress import Bar
from kinfolk.report.facts import Role
from kinfolk.tables.blend import blended
from kinfolk.tables.choosing import FLOAT, Choice
from kinfolk.tables.entry import Entry
from kinfolk.tables.prepared import Prepared
from kinfolk.tables.rivals import CHEAP, OTHERS, Rival
from kinfolk.tables.rows import Rows
from kinfolk.typing import Floats


@dataclass(frozen=True, eq=False)
class Comparison:
    """What was compared, and its predictions of the test rows."""

    entries: dict[str, Entry]
    test: dict[str, Floats]  # predictions of the test rows, by name
    left_out: dict[str, str]  # members and rivals that did not take part, and why


def compared(choice: Choice) -> Comparison:
    """Fit everything; the test rows are only predicted."""
    study, weights = choice.study, choice.weights
    entries: dict[str, Entry] = {}
    test: dict[str, Floats] = {}
    for name in dict.fromkeys((*choice.validations, "alone")):
        entries[name] = choice.entry(name)
        test[name] = _filled(_predicted(entries[name], study.test), test.get("pooled"))
    final = [test[name] for name in weights]
    test = {Role.FINAL.value: blended(final, list(weights.values())), **test}
    control = _control(choice, test["pooled"])
    if control is not None:
        entries["control"], test["control"] = control
    left_out = dict(choice.left_out)
    settings = study.prepared.settings
    for rival in (*CHEAP, *(OTHERS if settings.rivals else ())):
        why = rival.applies(study.prepared.training, study.prepared.target)
        try:
            if why is None:
                entries[rival.name], test[rival.name] = _rival(rival, study.prepared, study.bar)
        except LearningError as error:
            why = str(error)
        if why is not None:
            left_out[rival.name] = why
    return Comparison(entries, test, left_out)


def _predicted(entry: Entry, rows: Rows) -> Floats:
    assert entry.fitted is not None
    return entry.fitted.predict(rows)


def _filled(found: Floats, fallback: Floats | None) -> Floats:
    """Predictions; where a node has no model, those of one model for all."""
    return found if fallback is None else np.where(np.isnan(found), fallback, found)


def _control(choice: Choice, fallback: Floats) -> tuple[Entry, Floats] | None:
    """The blend on graphs and places drawn at random."""
    began = time.perf_counter()
    if choice.control is None:
        return None
    shuffled, again = choice.control
    both = choice.validations | again
    weights = choice.weights_of(both)
    found: list[Floats] = []
    for name in weights:
        where = shuffled if name in again else choice.study
        fitted = both[name].member.final(where.whole, both[name].value)
        found.append(_filled(fitted.predict(where.test), fallback))
    entry = Entry.only_compared("control", "control", choice.tailored.method, 0.0, began)
    return entry, blended(found, list(weights.values()))


def _rival(rival: Rival, prepared: Prepared, bar: Bar) -> tuple[Entry, Floats]:
    """A method of others: fitted to the training rows, it predicts the test rows."""
    bar.expect(1)
    began = time.perf_counter()
    found = rival.predict(prepared.training, prepared.test, prepared.target, len(prepared.names))
    bar.advance(1, rival.name)
    sent = float(FLOAT * prepared.training.X.size)
    return Entry.only_compared(rival.name, "rival", "", sent, began), found
