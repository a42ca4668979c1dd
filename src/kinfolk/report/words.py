"""Numbers and sentences of the page."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

import pandas
from markupsafe import Markup

if TYPE_CHECKING:
    from kinfolk.report.facts import RunFacts

GIVEN_EDGES = "the edges that were given"  # as kinship calls them
ROLES = {"final": "what each node ends with", "alone": "every node alone", "pooled": "one model for all",
         "tailored": "tailored models", "control": "control"}  # fmt: skip


def number(value: Any, digits: int = 3) -> str:
    """A number in few digits, as a person writes it.

    >>> number(1234567.0), number(0.012345), number(12.0), number(float("nan"))
    ('1,234,567', '0.0123', '12', '–')
    """
    if value is None or pandas.isna(value):
        return "–"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if value < 0:
        return "−" + number(-value, digits)
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    if decimals > digits + 2:
        return f"{value:.{digits - 1}e}"
    text = f"{value:,.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def signed(value: float) -> str:
    """A change in per cent.

    >>> signed(-7.2), signed(15.0), signed(0.2)
    ('−7 %', '+15 %', '±0 %')
    """
    if abs(value) < 0.5:
        return "±0 %"
    return f"{'+' if value > 0 else '−'}{abs(value):.0f} %"


def breakable(name: str) -> Markup:
    """A name that may be broken after its underscores; anything else in it is escaped.

    >>> breakable("log_<b>")
    Markup('log_<wbr>&lt;b&gt;')
    """
    return Markup("_<wbr>").join(name.split("_"))


def size(count: Any) -> str:
    """Bytes in words.

    >>> size(0), size(1_500), size(2_347_808)
    ('none', '1.5 kB', '2.35 MB')
    """
    if pandas.isna(count):
        return "–"
    if count == 0:
        return "none"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{number(count / scale)} {unit}"
    return f"{count:.0f} bytes"


def error_name(run: RunFacts) -> str:
    """What the errors of the leaderboard and of nodes are."""
    return "Brier score" if run.target.classifies else "root mean squared error"


def loss_name(run: RunFacts) -> str:
    """What gains and cross-validation compare."""
    return "Brier score" if run.target.classifies else "root mean squared error"


def gain_sentence(run: RunFacts) -> str:
    """How a gain is counted."""
    return f"per cent less {loss_name(run)} of the tailored model on the node's own test rows"


def same_size(run: RunFacts) -> int | None:
    """How many rows every tested node has to learn from; None if it differs."""
    sizes = run.nodes["train_rows"][run.nodes["gain"].notna()].unique()
    return int(sizes[0]) if len(sizes) == 1 else None


def judgement(run: RunFacts) -> tuple[str, str]:
    """The judgement as a heading and what follows."""
    heading, _, rest = run.judgement.text.partition(": ")
    return heading.removesuffix(" here"), rest[:1].upper() + rest[1:]


def taken(run: RunFacts) -> list[tuple[str, int, float]]:
    """What the nodes ended with: kind, count, per cent of the nodes."""
    counts = run.nodes["model"].value_counts()
    return [(ROLES[str(kind)], int(count), 100 * count / len(run.nodes)) for kind, count in counts.items()]


# ---------------------------------------------------------------------- what was exchanged


def exchange(run: RunFacts) -> dict[str, Any]:
    """What a federation would have sent, in numbers and in sentences."""
    rounds, sent = int(run.about["rounds"]), float(run.history["bytes"].iloc[-1])
    messages = 2 * run.graph.edge_count
    per_round = (sent - float(run.history["bytes"].iloc[0])) / max(rounds, 1)
    says, sees, hidden = _talk(run)
    between_neighbours = [
        ("messages between neighbours in each round", number(messages, 9)),
        ("messages between neighbours in all", number(messages * rounds, 12)),
    ]
    return {
        "figures": [
            ("rounds", number(rounds, 9)),
            *(between_neighbours if _sent_to(run, "neighbours") else []),
            ("sent in each round", size(per_round)),
            ("sent in all", size(sent)),
            ("sent by a typical node in each round", size(per_round / max(len(run.nodes), 1))),
        ],
        "says": " ".join([says, *_besides(run)]),
        "sees": sees,
        "hidden": hidden,
    }


def _besides(run: RunFacts) -> list[str]:
    """What had to leave nodes besides, for the graph and for nodes that ended with one model for all."""
    pooled = int((run.nodes["model"] == "pooled").sum())
    out = []
    if "most similar" in run.about["graph"]:
        out.append("To find who is similar, every node first told the parameters of a model that it had fitted alone.")
    if pooled:
        out.append(f"The model of all, with which {pooled:,} nodes end, was fitted to all rows in one place.")
    return out


def _sent_to(run: RunFacts, to: str) -> list[dict[str, Any]]:
    """What the algorithm declares to leave a node for its neighbours, or for the coordinator."""
    return [each for each in run.about["sends"] or [] if each["to"] == to]


def _talk(run: RunFacts) -> tuple[str, list[str], list[str]]:
    """What a node sends, what a neighbour can see, and what it cannot; from what the algorithm declares."""
    if run.about["sends"] is None:
        unknown = f"{run.about['algorithm']} does not declare what it sends: nobody knows what leaves a node."
        return unknown, ["Unknown."], ["Unknown."]
    neighbours, coordinator = _sent_to(run, "neighbours"), _sent_to(run, "coordinator")
    says = f"To each neighbour every node sends {_contents(neighbours)}. To the coordinator: {_contents(coordinator)}."
    hidden = ["Rows: features and targets are not among what the algorithm declares, and all else is refused."]
    if not neighbours:
        return says, ["Nothing: neighbours exchange no messages."], hidden
    if "most similar" not in run.about["graph"]:
        hidden.append("Models of nodes that it has no edge with.")
    if run.about["public"]:
        says += f" Predictions are made at {run.about['public']}."
        sees = ["The predictions of its neighbours' models at the public points, and the points themselves."]
        return says, sees, [*hidden, "The inside of a neighbour's model: only its predictions are known."]
    return says, [f"What its neighbours send, round by round: {_contents(neighbours)}."], hidden


def _contents(sent: list[dict[str, Any]]) -> str:
    """What is sent, each content once, with how many numbers it has."""
    counts: dict[str, int] = {}
    for each in sent:
        counts[each["content"]] = counts.get(each["content"], 0) + each["numbers"]
    parts = [f"{content} ({count:,} number{'s' * (count > 1)})" for content, count in counts.items()]
    return "; ".join(parts) or "nothing"


# ---------------------------------------------------------------------- how to repeat it


def command(run: RunFacts) -> str:
    """The line of the shell that repeats a run; the files are called as in the manual."""
    options = dict(run.settings.to_toml())
    words = ["kinfolk", "fit", "TABLE.csv"]
    if run.about["graph"] == GIVEN_EDGES:
        options["edges"] = "EDGES.csv"
    for name, value in options.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [f"--{name}", text]
    return " ".join(map(shlex.quote, [*words, "--out", "RUN"]))


def python_lines(run: RunFacts) -> str:
    """The same in Python."""
    options = [f"{name}={value!r}" for name, value in run.settings.to_toml().items()]
    if run.settings.model.startswith("given: "):
        options = [each for each in options if not each.startswith("model=")]
        options.append(f"model={run.settings.model.removeprefix('given: ')}(...)")
    if run.about["graph"] == GIVEN_EDGES:
        options.append('edges=kinfolk.read_table("EDGES.csv")')
    return (
        f'import kinfolk\n\ntable = kinfolk.read_table("TABLE.csv")\nrun = kinfolk.learn(table, {", ".join(options)})'
    )
