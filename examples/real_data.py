"""Real data, one fit each with the same defaults: the table of docs/real-data.md.

    python examples/real_data.py --data FOLDER                    all data sets, some minutes
    python examples/real_data.py --data FOLDER --only counties    one of them
    python examples/real_data.py --data FOLDER --write            and put the table into the page

FOLDER holds the files that docs/real-data.md lists, or KINFOLK_DATA names it. Nothing is tuned by data set: the options
name the columns.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import kinfolk
from kinfolk.datasets import TABLES, named_table
from kinfolk.report.words import graph_origin

PAGE = Path(__file__).parent.parent / "docs" / "real-data.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
ROLES = ("tailored", "alone", "pooled", "final")
HEAD = ("data", "nodes", "rows", "tailored", "alone", "one for all", "final", "gain, 95 % interval", "control")


def learnt(name: str, folder: Path | None) -> kinfolk.TableRun:
    """What ``kinfolk fit`` gives with the options that fit a data set."""
    known = named_table(name, folder)
    return kinfolk.learn(known.frame, edges=known.edges, **known.options)


def row(name: str, run: kinfolk.TableRun) -> list[str]:
    """A line of the table: errors, and the gain over the better baseline."""
    board, judgement = run.leaderboard, run.judgement
    errors = [f"{board.loc[role, 'error']:#.3g}" if role in board.index else "–" for role in ROLES]
    mark = "**" if judgement.verdict == "helps" else ""
    gain = f"{mark}{judgement.gain:.1f} %{mark} ({judgement.low:.1f} to {judgement.high:.1f})"
    control = "–"
    if "control" in board.index:
        control = f"{100 * (1 - board.loc['control', 'error'] / board.loc[judgement.against, 'error']):.1f} %"
    return [name, f"{len(run.nodes):,}", f"{run.made.rows:,}", *errors, gain, control]


def table(rows: list[list[str]]) -> str:
    """The lines as Markdown."""
    rule = ["---", *["---:"] * (len(HEAD) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (list(HEAD), rule, *rows))


def inserted(page: str, text: str) -> str:
    """A page with the text between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> None:
    """Fit them all, and print the table and what was judged of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets; KINFOLK_DATA by default")
    parser.add_argument("--only", choices=list(TABLES), help="one data set")
    parser.add_argument("--write", action="store_true", help="put the table into docs/real-data.md")
    options = parser.parse_args()
    rows, words = [], []
    for name in [options.only] if options.only else TABLES:
        try:
            run = learnt(name, options.data)
        except kinfolk.InputError as error:
            sys.exit(str(error))
        rows.append(row(name, run))
        words.append(f"- **{name}** ({graph_origin(run.origin)}): {run.judgement.text}")
        print(words[-1], flush=True)
    text = table(rows) + "\n\nThe judgement of each:\n\n" + "\n".join(words)
    print(f"\n{text}")
    if options.write:
        PAGE.write_text(inserted(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main()
