"""Shared by all tests."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "docs" / "tools"))
SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data():
    """The folder of data sets that do not come along; where it is absent, the test is skipped."""
    if not SHARED.is_dir():
        pytest.skip("the shared data sets are not beside this repository")
    return SHARED


@pytest.fixture(scope="module")
def few_trees():
    """For tests that learn and are about something else: boosting tries up to 30 rounds instead of those it yields."""
    from kinfolk.tables.members import boosted

    with pytest.MonkeyPatch.context() as patch:
        before = boosted.ROUNDS
        patch.setattr(boosted, "ROUNDS", (2, 10, 30))
        yield before


def pytest_terminal_summary(terminalreporter):
    """Say at the end what was skipped, and why."""
    terminalreporter.ensure_newline()
    terminalreporter.write_line(skipped_in_words(terminalreporter.stats.get("skipped", [])))


def skipped_in_words(reports):
    """One line for all skips, the most frequent reason first. A file that is skipped as a whole counts as one."""
    if not reports:
        return "Nothing was skipped."
    reasons = Counter(why_skipped(report) for report in reports)
    files = sum(isinstance(report, pytest.CollectReport) for report in reports)
    counts = [counted(len(reports) - files, "test"), counted(files, "whole file")]
    why = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    return f"Skipped: {' and '.join(filter(None, counts))}: {why}"


def why_skipped(report):
    """The reason that was given, without what pytest puts before it."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else str(report.longrepr)
    return " ".join(reason.removeprefix("Skipped: ").split())


def counted(count, noun):
    """``2 tests``, and nothing for none."""
    return f"{count} {noun}{'s' if count > 1 else ''}" if count else ""
