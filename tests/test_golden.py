"""Golden results: the table job, on one table and across sites, gives what it gave when results were stored.

``python tests/golden/make.py`` stores them; see there. KINFOLK_GOLDEN=full also runs the cases that take minutes. The
last digits of chosen values depend on the packages: results name those that they were stored with.
"""

import os
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

import pytest

from golden.cases import CASES
from golden.make import INFORMATION, RESULTS, plain, result_of, stored

pytest.importorskip("cryptography", reason="the package cryptography is not installed")


class Looser(NamedTuple):
    """A tolerance that is not the usual one."""

    where: str  # a case, or a kind of target for sites against one table; * for all
    quantity: str  # as ``leaves`` names it; * and ? as in names of files, and the last that fits counts
    relative: float
    why: str
    absolute: float = 0.0


TOLERANCE = 1e-6  # relative, of all numbers; texts are the same
LOOSER = [
    Looser("*", "judgement.rows_needed", 1e-6, "it is rounded up: the last digit of a ratio may decide about a row", 1),
]

BLENDS = ("final", "control")  # lines that depend on all members
# Sites against one table. What does not hold today, though members and rows are the same:
# - the members on graphs that predict differ by up to 4e-6 in their errors, the control by 1e-5;
# - weights and gains of nodes differ by up to 2e-5 for classes and counts;
# - members that need rows of all (intercepts, trees, boosted), or sites (site-boosted), have no counterpart;
# - quantiles agree to three digits in their errors, but weights, predictions and gains to one or two only.
APART = {"number": 1e-6, "classes": 1e-5, "count": 1e-5, "quantile": 1e-3}
IN_ROUNDS = "one table fits the members on graphs that predict in rounds, to 1e-4; sites fit them by Newton's method"
NEWTON = "Newton's method stops at gradients of 1e-6 on one table; weights and gains of nodes follow from small numbers"
FLAT = "kinks are rounded otherwise, and errors hardly depend on the weights near the best"
LOOSER_APART = [
    *(Looser("number", f"leaderboard.{name}.error", 2e-5, IN_ROUNDS) for name in ("tailored", "wide", *BLENDS)),
    Looser("number", "predictions.*", 1e-5, IN_ROUNDS),
    Looser("number", "gains.*", 2e-5, IN_ROUNDS),
    Looser("number", "judgement.*", 1e-4, IN_ROUNDS),
    *(Looser(kind, f"{name}.*", 5e-5, NEWTON) for kind in ("classes", "count") for name in ("weights", "gains")),
    Looser("quantile", "weights.*", 0.03, FLAT),
    Looser("quantile", "predictions.*", 0.02, FLAT),
    Looser("quantile", "gains.*", 0.1, FLAT),
    Looser("quantile", "judgement.*", 0.1, FLAT),
    Looser("*", "widths.*", 0.02, "residuals of sites are known by bins, which are that wide"),
]

# Numbers that may be near zero are measured by what is large for them; all else by itself.
LARGE = {"weights": 1.0, "judgement": 1.0, "gains": 1.0}  # weights are shares, gains per cent
SPREAD = ("predictions", "unseen")  # measured by the largest of them

FULL = os.environ.get("KINFOLK_GOLDEN") == "full"
NAMES = [name for name, case in CASES.items() if case.quick or FULL]
ACROSS = [name for name in NAMES if CASES[name].as_one is not None]


@cache
def found(name):
    """A case, run again; once for all tests of a process."""
    return result_of(CASES[name])


@cache
def found_as_one(name):
    """The same rows and members as one table."""
    return plain(CASES[name].as_one())


def skip_without_data(name):
    if CASES[name].missing:
        pytest.skip(f"../shared/data/{CASES[name].missing} is absent")


# ---------------------------------------------------------------------- comparing


def leaves(value, name=""):
    """All numbers and texts of a result, by the way to them: ``leaderboard.final.error``, ``predictions.3``."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for k, each in enumerate(value):
            key = each["name"] if isinstance(each, dict) and "name" in each else k
            yield from leaves(each, f"{name}.{key}")
    else:
        yield name, value


def differences(name, expected, got, tolerances):
    """A line for every quantity that differs: the case, the quantity, what was expected and what was got."""
    before, after = dict(leaves(expected)), dict(leaves(got))
    out = [f"{name}: {each}: expected {before[each]!r}, got nothing" for each in before if each not in after]
    out += [f"{name}: {each}: expected nothing, got {after[each]!r}" for each in after if each not in before]
    for each in before:
        allowed = [looser for looser in tolerances if fnmatchcase(each, looser.quantity)][-1]
        if each in after and (wrong := apart(before[each], after[each], allowed, large(expected, each))):
            out.append(f"{name}: {each}: expected {before[each]!r}, got {after[each]!r}{wrong}")
    lines = [[row["name"] for row in result.get("leaderboard", ())] for result in (expected, got)]
    if lines[0] != lines[1]:
        out.append(f"{name}: order of the leaderboard: expected {lines[0]}, got {lines[1]}")
    return out


def apart(expected, got, allowed, unit):
    """Nothing if two values are the same, or near enough where they are numbers; else how far apart they are."""
    if not (is_number(expected) and is_number(got)):
        return "" if expected == got else ": something else"
    measure = max(abs(expected), abs(got), unit)
    if abs(expected - got) <= max(allowed.relative * measure, allowed.absolute):
        return ""
    return f": {abs(expected - got) / measure:.1e} apart, {allowed.relative:.0e} are allowed"


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def large(result, quantity):
    """What a number is measured by where it is near zero."""
    kind = quantity.split(".")[0]
    return max(abs(each) for _, each in leaves(result[kind])) if kind in SPREAD else LARGE.get(kind, 0.0)


def tolerances_for(where, usual, looser):
    """The usual tolerance of all quantities, and then those that are looser there."""
    return [Looser("*", "*", usual, ""), *(each for each in looser if fnmatchcase(where, each.where))]


# ---------------------------------------------------------------------- the same as ever


@pytest.mark.parametrize("name", NAMES)
def test_the_result_is_the_stored_one(name):
    skip_without_data(name)
    expected, got = stored(name), {**found(name), "about": stored(name)["about"]}
    versions = [each.pop(INFORMATION)["versions"] for each in (expected, got)]
    wrong = differences(name, expected, got, tolerances_for(name, TOLERANCE, LOOSER))
    if wrong and versions[0] != versions[1]:
        wrong.append(f"stored with {versions[0]}, got with {versions[1]}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_case_has_a_result_and_every_result_a_case():
    assert {path.stem for path in RESULTS.glob("*.json")} == set(CASES)


def test_a_difference_names_the_case_the_quantity_and_both_values():
    expected = stored("numbers-rows")
    got = {**expected, "weights": {**expected["weights"], "pooled": 2e-6}, "leaderboard": expected["leaderboard"][:-1]}
    error = expected["leaderboard"][-1]["error"]
    wrong = differences("numbers-rows", expected, got, tolerances_for("numbers-rows", TOLERANCE, LOOSER))
    assert f"numbers-rows: leaderboard.dummies.error: expected {error!r}, got nothing" in wrong
    assert "numbers-rows: weights.pooled: expected 0.0, got 2e-06: 2.0e-06 apart, 1e-06 are allowed" in wrong
    assert sum("order of the leaderboard" in line for line in wrong) == 1


# ---------------------------------------------------------------------- sites and one table


@pytest.mark.parametrize("name", ACROSS)
def test_sites_give_what_one_table_gives(name):
    """The same members on the same rows."""
    skip_without_data(name)
    sites, one = found(name), found_as_one(name)
    kind = CASES[name].settings.get("task") or ("classes" if isinstance(one["predictions"], dict) else "number")
    wrong = differences(name, *same_parts(one, sites), tolerances_for(kind, APART[kind], LOOSER_APART))
    assert not wrong, "\n" + "\n".join(wrong)


def same_parts(one, sites):
    """What one table and sites both have: no rivals, and nothing that members of sites alone have changed."""
    boards = [{row["name"]: row for row in each["leaderboard"]} for each in (one, sites)]
    own = [name for name in boards[1] if name not in boards[0]]
    shared = [name for name in boards[1] if name not in (*own, *(BLENDS if own else ()))]
    parts = []
    for each, board in zip((one, sites), boards, strict=True):
        values = {name: each["values"][name] for name in shared if name in each["values"]}
        parts.append({"leaderboard": [board[name] for name in shared], "values": values, "graph": each["graph"]})
        if not own:
            blended = ("weights", "judgement", "gains", "predictions", "widths")
            parts[-1] |= {name: each[name] for name in blended if name in each}
    return parts
