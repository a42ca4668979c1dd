"""The page itself: what the template gets, and the figures it carries."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pandas
import plotly.offline

from kinfolk.engine.files import write_output
from kinfolk.report import privacy_words, words
from kinfolk.report.facts import Role, RunFacts
from kinfolk.report.groups import group_table
from kinfolk.report.payload import payload
from kinfolk.report.plots import Plots

GENERATOR = b'<meta name="generator" content="kinfolk">'
VERDICTS = {"helps": "good", "no clear difference": "even", "does not help": "bad", "not judged": "even"}


@cache
def templates() -> jinja2.Environment:
    """The templates of this package; whatever comes from data is escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("kinfolk.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    filters = (words.number, words.breakable, words.signed, words.size, words.share_of_one, words.seconds)
    made.filters.update({each.__name__: each for each in filters})
    made.globals |= {"words": words, "privacy_words": privacy_words}
    return made


def write_page(run: RunFacts, path: Path) -> Path:
    """Write the page: one file that works offline. It is there in full, or not at all; only a page is replaced."""
    write_output(path, page_html(run).encode(), is_page)
    return path


def is_page(file: Path) -> bool:
    """Whether a file is a page of kinfolk."""
    with file.open("rb") as opened:
        return GENERATOR in opened.read(1_000)


def page_html(run: RunFacts) -> str:
    """The whole page as text."""
    return templates().get_template("page.html").render(**facts_of(run), plotly=plotly.offline.get_plotlyjs())


def summary_html(run: RunFacts) -> str:
    """The judgement and the leaderboard, for a notebook."""
    return templates().get_template("summary.html").render(**_common(run))


def facts_of(run: RunFacts) -> dict[str, Any]:
    """All that the template needs."""
    return {
        **_common(run),
        "payload": payload(run),
        "figures": _figures(run),
        "table": group_table(run),
        "exchange": words.exchange(run),
    }


def _common(run: RunFacts) -> dict[str, Any]:
    return {
        "run": run,
        "judgement": run.judgement,
        "verdict": words.judgement_parts(run.judgement),
        "against": words.TITLES[run.judgement.against],
        "reference": words.TITLES[Role.ALONE if Role.ALONE in run.leaderboard.index else Role.POOLED],
        "mood": VERDICTS[run.judgement.verdict],
        "leaderboard": _leaderboard(run),
        "error_name": words.error_name(run),
        "classifies": run.target.classifies,
        "node_count": len(run.nodes),
    }


def _leaderboard(run: RunFacts) -> list[dict[str, Any]]:
    """The rows of the leaderboard, the best first, with the length of their bars."""
    board = run.leaderboard.sort_values("error", kind="stable")
    worst = float(board["error"].max()) or 1.0
    rows = []
    for name, row in board.iterrows():
        cells = {str(key): None if pandas.isna(value) else value for key, value in row.items()}
        named: dict[str, Any] = {"name": str(name), "title": words.title(str(name))}
        if row["part"] == "control":
            named["bytes"] = None  # nobody would send messages for it
        rows.append({**cells, **named, "bar": 100 * float(row["error"]) / worst})
    return rows


def _figures(run: RunFacts) -> dict[str, Any]:
    """The figures as plain values; the page gives them its own colours."""
    out = {}
    shown = ["path", "convergence", "gain", "exchange", *(["calibration"] if run.class_scores is not None else [])]
    for name in shown:
        out[name] = json.loads(getattr(Plots(run), name)().to_json())
        out[name]["layout"].pop("template", None)
    return out
