"""Real data, one fit each with the same defaults: the table of docs/real-data.md.

    python examples/real_data.py --data FOLDER                    all data sets, some minutes
    python examples/real_data.py --data FOLDER --only counties    one of them
    python examples/real_data.py --data FOLDER --write            and put the table into the page
    python examples/real_data.py --data FOLDER --rivals           against what else one would pick
    python examples/real_data.py --data FOLDER --rivals --splits 8    on eight splits, or cut-off dates

FOLDER holds the files that docs/real-data.md lists, or KINFOLK_DATA names it. Nothing is tuned by data set: the options
name the columns. Rivals need pip install "kinfolk[rivals]".
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas

import kinfolk
from kinfolk.datasets import TABLES, NamedTable, named_table
from kinfolk.report.words import graph_origin
from kinfolk.tables.learning import learn_prepared
from kinfolk.tables.prepared import Prepared, prepare
from kinfolk.tables.rivals import CHEAP, OTHERS
from kinfolk.tables.settings import Settings
from kinfolk.tables.table_run import TableRun

PAGE = Path(__file__).parent.parent / "docs" / "real-data.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
RIVALS_BEGIN, RIVALS_END = "<!-- rivals: begin -->", "<!-- rivals: end -->"
RIVALS = (*CHEAP, *OTHERS)
RIVALS_HEAD = ("data", "splits", "blend", "best rival", "its error", "blend / best rival", "standard error")
SHIFT = 0.05  # of the times are dropped at the end from one cut-off date to the one before
ROLES = ("final", "tailored", "alone", "pooled")
HEAD = ("data", "nodes", "rows", "blend", "tailored", "alone", "one for all", "gain, 95 % interval", "control")


def learnt(name: str, folder: Path | None) -> TableRun:
    """What ``kinfolk fit`` gives with the options that fit a data set."""
    known = named_table(name, folder)
    return kinfolk.learn(known.frame, edges=known.edges, **known.options)


def row(name: str, run: TableRun) -> list[str]:
    """A line of the table: errors, and the gain over the better baseline."""
    board, judgement = run.leaderboard, run.judgement
    errors = [f"{board.loc[role, 'error']:#.3g}" if role in board.index else "–" for role in ROLES]
    mark = "**" if judgement.verdict == "helps" else ""
    ends = "no interval" if judgement.low is None else f"{judgement.low:.1f} to {judgement.high:.1f}"
    gain = f"{mark}{judgement.gain:.1f} %{mark} ({ends})"
    control = "–"
    if "control" in board.index:
        control = f"{100 * (1 - board.loc['control', 'error'] / board.loc[judgement.against, 'error']):.1f} %"
    return [name, f"{len(run.nodes):,}", f"{run.made.rows:,}", *errors, gain, control]


def table(rows: list[list[str]], head: tuple[str, ...] = HEAD) -> str:
    """The lines as Markdown."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (list(head), rule, *rows))


def inserted(page: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """A page with the text between its two marks."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


# ---------------------------------------------------------------------- rivals


def prepared_splits(known: NamedTable, count: int) -> Iterator[Prepared]:
    """Splits of a data set: by other seeds, or, where later rows are held out, by earlier cut-off dates."""
    column = known.options.get("time")
    for k in range(count):
        frame, seed = known.frame, k
        if column is not None:
            times = np.sort(frame[column].unique())
            frame, seed = frame[frame[column] <= times[int((len(times) - 1) * (1 - SHIFT * k))]], 0
        yield prepare(frame.reset_index(drop=True), Settings.of({**known.options, "seed": seed}), edges=known.edges)


def errors_and_seconds(prepared: Prepared) -> tuple[pandas.Series, pandas.Series]:
    """The error of the blend and of every rival that can be used, and how long each took."""
    began = time.perf_counter()
    design = replace(prepared.design, settings=replace(prepared.settings, rivals=True))
    run = learn_prepared(replace(prepared, design=design), progress=False)
    total = time.perf_counter() - began
    rivals = {name: entry.seconds for name, entry in run.entries.items() if entry.part == "rival"}
    seconds = pandas.Series({"final": total - sum(rivals.values()), **rivals})
    return run.leaderboard["error"][list(seconds.index)], seconds


def rivals_line(name: str, found: pandas.DataFrame) -> list[str]:
    """A line of the table: the best rival in the mean over splits (rows), and the ratio to it."""
    best = found.drop(columns="final").dropna(axis=1).mean().idxmin()
    ratio = found["final"] / found[best]
    error = f"{ratio.std() / np.sqrt(len(ratio)):.4f}" if len(ratio) > 1 else "–"
    mean = found.mean()
    return [name, str(len(found)), f"{mean['final']:#.4g}", best, f"{mean[best]:#.4g}", f"{ratio.mean():.4f}", error]


def all_rivals_line(name: str, found: pandas.DataFrame) -> list[str]:
    """The error of every rival, in per cent of the blend's error."""
    share = 100 * found.mean() / found["final"].mean()
    return [name, *(f"{share[rival.name]:.1f}" if rival.name in share else "–" for rival in RIVALS)]


def reasons(prepared: Prepared) -> str:
    """Which rivals were left out, and why."""
    why = {rival.name: rival.applies(prepared.rows.training, prepared.design.target) for rival in RIVALS}
    return "; ".join(f"{name}: {reason}" for name, reason in why.items() if reason)


def against_rivals(names: list[str], folder: Path | None, count: int) -> str:
    """The tables of rivals, as Markdown."""
    for rival in RIVALS:
        rival.check()
    lines, all_lines, left_out = [], [], []
    for name in names:
        splits = []
        for prepared in prepared_splits(named_table(name, folder), count):
            errors, seconds = errors_and_seconds(prepared)
            splits.append(errors)
            shown = ", ".join(f"{each} {errors[each]:.5g} ({seconds[each]:.1f} s)" for each in errors.index)
            print(f"{name}: {shown}", file=sys.stderr, flush=True)
        found = pandas.DataFrame(splits)
        lines.append(rivals_line(name, found))
        all_lines.append(all_rivals_line(name, found))
        left_out += [f"- **{name}**: {why}." for why in [reasons(prepared)] if why]
    parts = [table(lines, RIVALS_HEAD), "The errors of all rivals, in per cent of that of the blend:"]
    parts.append(table(all_lines, ("data", *(rival.name for rival in RIVALS))))
    return "\n\n".join([*parts, *(["Left out:", "\n".join(left_out)] if left_out else [])])


def fits(names: list[str], folder: Path | None) -> str:
    """The table of one fit each, and what was judged of each, as Markdown."""
    rows, words = [], []
    for name in names:
        run = learnt(name, folder)
        rows.append(row(name, run))
        words.append(f"- **{name}** ({graph_origin(run.origin)}): {run.judgement.text}")
        print(words[-1], file=sys.stderr, flush=True)
    return table(rows) + "\n\nThe judgement of each:\n\n" + "\n".join(words)


def main() -> None:
    """Fit them all, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; KINFOLK_DATA by default")
    parser.add_argument("--only", choices=list(TABLES), help="one data set")
    parser.add_argument("--rivals", action="store_true", help="compare with what else one would pick")
    parser.add_argument("--splits", type=int, default=1, help="with --rivals: how many splits or cut-off dates")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/real-data.md")
    options = parser.parse_args()
    if not 1 <= options.splits <= 1 / (2 * SHIFT):
        sys.exit(f"Expected 1 to {1 / (2 * SHIFT):.0f} splits, got {options.splits}.")
    names = [options.only] if options.only else list(TABLES)
    try:
        text = against_rivals(names, options.data, options.splits) if options.rivals else fits(names, options.data)
    except kinfolk.InputError as error:
        sys.exit(str(error))
    print(text)
    if options.write:
        marks = (RIVALS_BEGIN, RIVALS_END) if options.rivals else (BEGIN, END)
        PAGE.write_text(inserted(PAGE.read_text(encoding="utf-8"), text, *marks), encoding="utf-8")


if __name__ == "__main__":
    main()
