"""What a finished job is compared with, line by line: members, local models, the control and baselines of others."""

from __future__ import annotations

import time

import numpy as np

from kinfolk.checks import LearningError
from kinfolk.report.facts import Part, Role
from kinfolk.tables.design import Design
from kinfolk.tables.entry import Entry
from kinfolk.tables.job import Tuning
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.members.graph_member import FittedRuns, GraphMember
from kinfolk.tables.members.member import Member
from kinfolk.tables.rivals import CHEAP, OTHERS

FLOAT = 8  # bytes


def member_entry(tuning: Tuning, party: LocalParty, name: str) -> Entry:
    """The line of a member, or of local models: what it has learnt from all training rows with its best value."""
    found = tuning.validations.get(name, tuning.alone)
    part: Part = "member" if name in tuning.weights or name in tuning.left_out else "baseline"
    weight = tuning.weights.get(name, 0.0) if part == "member" else None
    fitted, member = party.final(name, found.best), found.member
    method = member.candidate.method if isinstance(member, GraphMember) else ""
    values = np.array(found.values, dtype=np.float64).reshape(len(found.values), -1)
    return Entry(
        name, part, method, member.parameters, values, found.errors, found.shares, found.best, weight, member.access,
        _sent(member, tuning.design, fitted), party.seconds[name], fitted,
    )  # fmt: skip


def entries_of(tuning: Tuning, party: LocalParty) -> dict[str, Entry]:
    """The lines of all that was compared on the test rows."""
    names = [name for name in tuning.chosen() if name in party.predicted]
    entries = {name: member_entry(tuning, party, name) for name in names}
    if Role.CONTROL in party.predicted:
        method, began = tuning.tailored.candidate.method, time.perf_counter()
        entries[Role.CONTROL] = Entry.only_compared(Role.CONTROL, "control", method, 0.0, began)
    return entries


def add_rivals(design: Design, party: LocalParty) -> tuple[dict[str, Entry], dict[str, str]]:
    """Methods of others: fitted to the training rows, they predict the test rows; and why some do not apply."""
    rows, entries, left_out = party.rows, dict[str, Entry](), dict[str, str]()
    for rival in (*CHEAP, *(OTHERS if design.settings.rivals else ())):
        why, began = rival.applies(rows.training, design.target), time.perf_counter()
        try:
            if why is None:
                party.bar.expect(1)
                party.predicted[rival.name] = rival.predict(rows.training, rows.test, design.target, design.node_count)
                party.bar.advance(1, rival.name)
                sent = float(FLOAT * rows.training.X.size)
                entries[rival.name] = Entry.only_compared(rival.name, "rival", "", sent, began)
        except LearningError as error:
            why = str(error)
        if why is not None:
            left_out[rival.name] = why
    return entries, left_out


def _sent(member: Member, design: Design, fitted: object) -> float:
    """Bytes that would leave nodes: none, every row where all are needed, sums, or the messages of a run."""
    if isinstance(fitted, FittedRuns) and member.access != "rows of all":
        return sum(float(run.history["bytes"].iloc[-1]) for run in fitted.runs)
    if member.access == "own rows":
        return 0.0
    if member.access == "rows of all":
        return float(FLOAT * int(design.train_rows.sum()) * design.width)
    return float(FLOAT * design.node_count * design.width * (design.width + 1))
