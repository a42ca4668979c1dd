"""All English about results: titles, numbers, sentences. Facts come in, text goes out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas
from markupsafe import Markup

from kinfolk.checks import listing
from kinfolk.engine.numbers import number as number
from kinfolk.engine.saved_run import Account
from kinfolk.report.facts import GraphOrigin, Judgement, Note, Role, RunFacts

if TYPE_CHECKING:
    from kinfolk.report.site import SiteFacts

RIVALS = {
    "boosting": "boosting with node and place",
    "dummies": "regression with node dummies",
    "ridge": "one regression",
    "interactions": "regression, dummies and interactions",
    "lightgbm": "LightGBM with node and place",
    "lightgbm tuned": "LightGBM, tuned",
    "forest": "forest with node and place",
    "mixed intercept": "mixed model, intercepts",
    "mixed slopes": "mixed model, slopes",
    "gaussian process": "regression and Gaussian process",
    "gwr": "geographically weighted regression",
}  # methods of others
TITLES = {
    "final": "the blend of all members",
    "tailored": "tailored models on the graph",
    "wide": "tailored models, more neighbours by distance",
    "alone": "every node alone",
    "pooled": "one model for all",
    "intercepts": "one model, an intercept per node",
    "slopes": "random intercepts and slopes",
    "recent": "the latest level of each node",
    "recent-intercepts": "one model, the latest level of each node",
    "recent-slopes": "random slopes, the latest level of each node",
    "trees": "boosting",
    "boosted": "boosting on the rest of linear models",
    "site-boosted": "boosting at each site on the rest of linear models",
    "control": "the blend, graphs and places at random",
    **RIVALS,
}  # others are members of the user's own, and are called as the user does
ERRORS = {
    "number": "root mean squared error",
    "classes": "Brier score",
    "count": "Poisson deviance",
    "quantile": "pinball loss",
}
NOTES = {
    "coordinates": "{columns} are used as node positions, which boosting knows, too; linear models have them as "
    "features only if `features` lists them.",
    "only coordinates": "{columns} are used as node positions and, as there is no other usable column, as features.",
    "coordinates of rows": "{columns} are used as features, and their means as node positions: rows have places of "
    "their own.",
    "nodes without a place": "Nodes without a place in {columns}: {count}. So these columns are features, and no "
    "places.",
    "empty column": "Column {column} has no values: left out.",
    "constant column": "Column {column} has the same value everywhere: left out.",
    "unreadable dates": "Column {column} looks like dates that cannot be read: left out. Write them as 2026-01-31.",
    "names of rows": "Column {column} has a different text in most rows: left out.",
    "rows without a target": "Rows without a target, left out: {count}.",
    "no features": "The table has no other column: predictions are levels of the nodes.",
    "rows without a time": "Rows without a time, left out: {count}.",
    "test rows of unseen classes": "Test rows with a class that no training row has, not tested: {count}.",
    "classes": "The target is read as {count} classes; task regression predicts it as a number.",
    "whole numbers": "The target has {count} different whole values and is read as a number; tasks classification and "
    "count read it otherwise.",
    "later rows": "The test rows lie beyond the training rows in column {column}: cross-validation predicts "
    "rows beyond others in it, too.",
    "new nodes": "The test rows are of nodes without training rows: cross-validation predicts nodes without rows, too.",
    "few times": "Different times in the test: only {count}. What happens at a single time by chance decides much of "
    "the comparison.",
    "dates at random": "Column {column} has dates, but test rows were not chosen by date: errors in the future may be "
    "larger. The setting time tests on the last rows.",
    "rare class": "Of class {labels} fewer than {rows} rows are tested: how well it is predicted is hardly known.",
    "different scales": "The target varies more than ten times as much in some nodes as in others: mean errors are "
    "those of the former. Its logarithm, or a share of each node's mean, may be the better target.",
    "far numbers": "Rows with a number more than ten deviations from the mean of its column: {count}; columns "
    "{columns}. Are they correct? A few wrong ones can spoil linear models.",
    "member left out": "{member} takes no part: {why}.",
    "site left out": "Site {site} takes no part: {why}. All began anew without it.",
    "no trend": "Column {column} has no trend that helps to predict later rows: only its seasons are used, if any.",
    "alone is impossible": "Alone is impossible: no tested node has training rows.",
    "nodes without training rows": "Tested nodes without training rows: {count}. Alone they get the model of all.",
    "graph not used": "This method does not use the graph; it is only shown.",
    "updated": "Updates since the first fit: {count}. Its choices were kept (scales of features, λ, members, weights, "
    "test rows, widths of intervals); there is no control and no path along λ. A new fit would choose again.",
    "intervals of new nodes": "Intervals are as wide as for nodes never seen at {count} nodes: those that came with "
    "updates have no width of their own before a new fit.",
    "test before new rows": "The new rows are later than the test rows, and were learnt from: the error on the test "
    "rows is no longer one of the future. That of the models before on the new rows is.",
    "tested nodes learnt": "Tested nodes that have training rows now: {count}. Their error is no longer that of nodes "
    "never seen.",
    "drift": "The models before predicted the new rows clearly worse than the test rows: their choices may no longer "
    "suit. Fit again with all rows.",
    "class of one site": "Class {label} occurs among the training rows of site {site} alone.",
    "no control": "There is no control: no other graph has the same degrees, or too few to draw one.",
}


# ---------------------------------------------------------------------- numbers


def seconds(value: float) -> str:
    """A time in two digits, or in whole seconds.

    >>> seconds(0.00025), seconds(1.234), seconds(7199.0)
    ('0.00025', '1.2', '7,199')
    """
    return f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def percent(value: float) -> str:
    """A share in per cent, with a decimal where it is small.

    >>> percent(12.34), percent(9.99), percent(3.21), percent(-0.01), percent(-0.12)
    ('12', '10', '3.2', '0.0', '−0.1')
    """
    text = f"{abs(value):.1f}"
    text = text if float(text) < 10 else f"{abs(value):.0f}"
    return f"−{text}" if value < 0 and float(text) else text


def roughly(count: int) -> str:
    """A count in two digits.

    >>> roughly(4642), roughly(38)
    ('4,600', '38')
    """
    return f"{float(f'{count:.2g}'):,.0f}"


def signed(value: float) -> str:
    """A change in per cent.

    >>> signed(-7.2), signed(15.0), signed(0.2)
    ('−7 %', '+15 %', '±0 %')
    """
    if abs(value) < 0.5:
        return "±0 %"
    return f"{'+' if value > 0 else '−'}{abs(value):.0f} %"


def share_of_one(value: Any) -> str:
    """A weight in per cent, or a dash.

    >>> share_of_one(0.316), share_of_one(None)
    ('32 %', '–')
    """
    return "–" if value is None or pandas.isna(value) else f"{100 * value:.0f} %"


def size(count: Any) -> str:
    """Bytes in words.

    >>> size(0), size(1_500), size(2_347_808)
    ('none', '1.5 kB', '2.35 MB')
    """
    if pandas.isna(count):
        return "–"
    if count == 0:
        return "none"
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{number(count / scale)} {unit}"
    return f"{count:.0f} bytes"


def breakable(name: str) -> Markup:
    """A name that may be broken after its underscores; anything else in it is escaped.

    >>> breakable("log_<b>")
    Markup('log_<wbr>&lt;b&gt;')
    """
    return Markup("_<wbr>").join(name.split("_"))


# ---------------------------------------------------------------------- titles


def title(name: str, part: str = "") -> str:
    """The title of a line of the leaderboard.

    >>> title("tailored", "member"), title("boosting", "rival"), title("mine", "member")
    ('tailored models on the graph', 'rival: boosting with node and place', 'mine')
    """
    known = TITLES.get(name, name)
    return f"{part}: {known}" if part in ("rival", "control") else known


def error_name(run: RunFacts) -> str:
    """What errors, gains and cross-validation compare."""
    return ERRORS[run.target.kind]


def graph_origin(origin: GraphOrigin) -> str:
    """Where the graph came from.

    >>> graph_origin(GraphOrigin("coordinates", 5, ("lat", "lon")))
    'each node with the 5 nearest by lat and lon'
    """
    return {
        "edges": "the edges that were given",
        "complete": "every pair",
        "coordinates": f"each node with the {origin.neighbours} nearest by {' and '.join(origin.columns)}",
        "similarity": f"each node with the {origin.neighbours} whose own models are most similar",
    }[origin.kind]


def note_text(note: Note) -> str:
    """A note as a sentence.

    >>> note_text(Note("rows without a target", {"count": 1200}))
    'Rows without a target, left out: 1,200.'
    >>> note_text(Note("member left out", {"member": "slopes", "why": "every node has one row"}))
    "'random intercepts and slopes' takes no part: every node has one row."
    """
    return NOTES[note.kind].format(**{name: _shown(name, value) for name, value in note.values.items()})


def _shown(name: str, value: Any) -> str:
    if name == "why":
        return str(value)
    if name == "member":
        return repr(title(value))
    if isinstance(value, list):
        return " and ".join(map(repr, value)) if len(value) == 2 else listing(value)
    return f"{value:,}" if isinstance(value, int) else listing([value])


# ---------------------------------------------------------------------- updates


def changes(run: RunFacts) -> str:
    """What the last update did, in two sentences."""
    assert run.changes is not None
    changed = run.changes
    arrived = changed.nodes["rows_new"] > 0
    new = len(changed.new_nodes)
    who = f"{arrived.sum():,} {'node' if arrived.sum() == 1 else 'nodes'}" + (f", {new:,} of them new" if new else "")
    after = number(run.leaderboard["error"][Role.FINAL], 4)
    return (
        f"{changed.new_rows:,} new {'row' if changed.new_rows == 1 else 'rows'} of {who}. The models before had not "
        f"seen them, and predicted them with the error {number(changed.error_new, 4)}; on the test rows theirs was "
        f"{number(changed.error_before, 4)}, and with the new rows it is {after}."
    )


def most_changed(run: RunFacts, most: int) -> pandas.DataFrame:
    """The nodes whose predictions changed most."""
    assert run.changes is not None
    return run.changes.nodes.sort_values("change", ascending=False, kind="stable").head(most)


# ---------------------------------------------------------------------- the judgement


def judgement(judged: Judgement) -> str:
    """The judgement in words: the verdict, the figures, what to do, and whether the graph matters."""
    heading, rest = judgement_parts(judged)
    return f"{heading}: {rest}"


def judgement_parts(judged: Judgement) -> tuple[str, str]:
    """The verdict, and the sentences that follow it."""
    best = TITLES[judged.against.value] + (", the better baseline" if judged.alone_is_possible else "")
    compared = f"{percent(abs(judged.gain))} % {'less' if judged.gain >= 0 else 'more'} error than {best}"
    if judged.nearer == judged.farther == 0:
        return "No clear difference", f"on the held-out rows predictions are the same as with {best}."
    nearer = _nearer(judged)
    if judged.own:
        heading = f"The ensemble is your own {'member' if len(judged.own) == 1 else 'members'} {listing(judged.own)}"
        then = "Whether learning together helps is not judged: add to the usual members with +."
        return heading, f"{compared}{_interval(judged)}. {nearer}. {then}"
    if judged.verdict == "no clear difference":
        same = percent(abs(judged.gain)) == "0.0"
        compared = f"the same error as {best}" if same else compared
        unsure = f"learning together has {compared}{_interval(judged)}. {nearer}. {_could_be_seen(judged)}"
        return "No clear difference", unsure
    heading = f"Learning together {judged.verdict}"
    then = _about_the_graph(judged) if judged.verdict == "helps" else ""
    return heading, f"{compared}{_interval(judged)}. {nearer}; {_who(judged)}{then}"


def _nearer(judged: Judgement) -> str:
    """On how many rows predictions are nearer, and whether a minority of rows makes the difference."""
    found = f"Nearer on {judged.nearer:.0f} % of the held-out rows"
    if judged.nearer + judged.farther < 99:
        found += f", farther on {judged.farther:.0f} %, else the same"
    if judged.gain * (judged.nearer - judged.farther) < 0:
        found += f" (fewer rows with larger errors make the {'gain' if judged.gain > 0 else 'loss'})"
    return found


def _interval(judged: Judgement) -> str:
    if judged.low is None or judged.high is None:
        return " on these rows, and whether that is chance cannot be told"
    blocks = f"blocks of {judged.block:,} successive times" if judged.block > 1 else "single times"
    units = f", by {blocks}" if judged.unit == "times" else ""
    if judged.few_times is not None:
        units = f", for {'this time' if judged.few_times == 1 else f'these {judged.few_times} times'} only"
    return f" (95 % interval {percent(judged.low)} to {percent(judged.high)} %{units})"


def _could_be_seen(judged: Judgement) -> str:
    """What would have shown, and how many rows would show a small gain."""
    if judged.visible is None:
        few = "Only one group of neighbours is"
        if judged.few_times:
            few = "Only one time is" if judged.few_times == 1 else f"Only {judged.few_times} different times are"
        return f"{few} held out: an interval needs more of them."
    seen = f"Only a gain of {percent(judged.visible)} % or more would probably have been seen"
    if judged.visible <= 5 or judged.rows_needed is None:
        return f"{seen}."
    return f"{seen}; one of 5 % takes about {roughly(judged.rows_needed)} held-out rows."


def _who(judged: Judgement) -> str:
    """How many nodes are better off, and which are worse off, as far as that is known."""
    named = f" Worse off, with at most one in ten wrongly named: {listing(judged.worse)}." if judged.worse else ""
    if judged.better is not None:
        low, high = (f"{share:.0f}" for share in judged.better)
        shares = low if low == high else f"{low} to {high}"
        return f"approximately {shares} % of the nodes are better off.{named}"
    return f"{'' if named else 'which or '}how many nodes are worse off cannot be told.{named}"


def gain_with_interval(row: Mapping[Any, Any]) -> str:
    """The gain of a method in a table, per cent, and its interval if there is one.

    >>> gain_with_interval({"gain": 7.03, "low": 2.0, "high": 12.0}), gain_with_interval({"gain": 7.03, "low": None})
    ('7.0 (2.0 to 12)', '7.0 (no interval)')
    """
    if pandas.isna(row["gain"]):
        return ""
    if pandas.isna(row["low"]):
        return f"{percent(row['gain'])} (no interval)"
    return f"{percent(row['gain'])} ({percent(row['low'])} to {percent(row['high'])})"


def _about_the_graph(judged: Judgement) -> str:
    if judged.control is None:
        return ""
    control = f"with neighbours drawn at random the gain is {percent(judged.control)} %."
    if judged.control < judged.gain / 2:
        return f" Neighbours matter: {control}"
    return f" Which neighbours hardly matters: {control}"


def caption(run: RunFacts) -> str:
    """What stands below the leaderboard."""
    what = f"{error_name(run)}{'' if run.target.classifies else f' of {run.columns.target}'}"
    rows = int(run.nodes["test_rows"].sum())
    tested = f"mean over nodes, {rows:,} held-out {'row' if rows == 1 else 'rows'}"
    return f"Error: {what}, {tested}. Weight: in the blend, from cross-validation. {better_rival(run)}".rstrip()


def better_rival(run: RunFacts) -> str:
    """Whether another line has a smaller error than the blend, in a sentence; empty if none has."""
    board = run.leaderboard
    others = board[board["part"] != "final"]
    best, final = int(others["error"].to_numpy().argmin()), float(board["error"][Role.FINAL])
    less = 100 * (1 - float(others["error"].iloc[best]) / final) if final else 0.0
    if less < 0.05:
        return "Nothing else has a smaller error on these rows."
    name = title(str(others.index[best]))
    known = {"rival": f"a rival ({name})", "control": f"the control ({name})"}.get(others["part"].iloc[best], name)
    return f"On these rows the error is {percent(less)} % smaller with {known}."


def same_size(run: RunFacts) -> int | None:
    """How many rows every tested node has to learn from; None if it differs."""
    sizes = run.nodes["train_rows"][run.nodes["gain"].notna()].unique()
    return int(sizes[0]) if len(sizes) == 1 else None


# ---------------------------------------------------------------------- what was exchanged


def exchange(run: RunFacts) -> dict[str, Any]:
    """What a federation would have sent, in numbers and in sentences."""
    rounds, sent = run.account.rounds, float(run.history["bytes"].iloc[-1])
    per_round = (sent - float(run.history["bytes"].iloc[0])) / max(rounds, 1)
    figures = [
        ("rounds", number(rounds, 9)),
        ("sent in each round", size(per_round)),
        ("sent in all", size(sent)),
        ("sent by a typical node in each round", size(per_round / max(len(run.nodes), 1))),
    ]
    if _sent_to(run.account, "neighbours"):
        messages = 2 * run.graph.edge_count
        figures[1:1] = [
            ("messages between neighbours in each round", number(messages, 9)),
            ("messages between neighbours in all", number(messages * rounds, 12)),
        ]
    return {
        "figures": figures,
        "sends": " ".join([_sends(run.account), *_besides(run)]),
        "sees": _sees(run.account),
        "hidden": _hidden(run),
    }


def _sent_to(account: Account, to: str) -> list[dict[str, Any]]:
    """What the algorithm declares to leave a node for its neighbours, or for the coordinator."""
    return [each for each in account.sends or () if each["to"] == to]


def _sends(account: Account) -> str:
    if account.sends is None:
        return f"{account.algorithm} does not declare what it sends: it is unknown what leaves a node."
    neighbours, coordinator = (_contents(_sent_to(account, to)) for to in ("neighbours", "coordinator"))
    public = f" Predictions are made at {account.public}." if account.public else ""
    return f"Each node sends to every neighbour: {neighbours}. To the coordinator: {coordinator}.{public}"


def _besides(run: RunFacts) -> list[str]:
    """What had to leave nodes besides, for the graph and for other members of the blend."""
    out = [f"To find similar nodes, each node first sent {run.origin.leaves}."] if run.origin.leaves else []
    used = run.leaderboard[run.leaderboard["weight"].fillna(0.0) > 0]
    pooled = [title(str(name)) for name in used.index[used["needs"] == "rows of all"]]
    sums = [title(str(name)) for name in used.index[used["needs"] == "sums"]]
    if pooled:
        out.append(f"These members of the blend were fitted to all rows in one place: {'; '.join(pooled)}.")
    if sums:
        out.append(f"These need sums over the rows of each node: {'; '.join(sums)}.")
    return out


def _sees(account: Account) -> list[str]:
    if account.sends is None:
        return ["Unknown."]
    neighbours = _sent_to(account, "neighbours")
    if not neighbours:
        return ["Nothing: neighbours exchange no messages."]
    if account.public:
        return ["The predictions of its neighbours' models at the public points, and the points themselves."]
    return [f"What its neighbours send, round by round: {_contents(neighbours)}."]


def _hidden(run: RunFacts) -> list[str]:
    if run.account.sends is None:
        return ["Unknown."]
    out = [
        "Rows, from these messages: features and targets are not among what the algorithm declares to send, and "
        "anything else is refused."
    ]
    if _sent_to(run.account, "neighbours") and run.origin.kind != "similarity":
        out.append("Models of nodes that it has no edge with.")
    if run.account.public:
        out.append("The inside of a neighbour's model: only its predictions are known.")
    return out


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
    if run.origin.kind == "edges":
        options["edges"] = "EDGES.csv"
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
            continue
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [f"--{name}", text]
    return " ".join(map(shlex.quote, [*words, "--out", "RUN"]))


def python_lines(run: RunFacts) -> str:
    """The same in Python."""
    options = run.settings.to_python()
    if run.origin.kind == "edges":
        options.append('edges=kinfolk.read_table("EDGES.csv")')
    return (
        f'import kinfolk\n\ntable = kinfolk.read_table("TABLE.csv")\nrun = kinfolk.learn(table, {", ".join(options)})'
    )


# ---------------------------------------------------------------------- a federation


def federation_measure(classifies: bool) -> str:
    """The error of a federation's history."""
    return "wrong answers" if classifies else "mean squared error"


def federation_errors(errors: Mapping[str, float]) -> list[tuple[str, str]]:
    """The error of everything that a federation has run, with its title.

    >>> federation_errors({"alone": 0.5, "tailored": 0.25})
    [('every node alone', '0.5'), ('tailored models', '0.25')]
    """
    return [(FEDERATED.get(name, name), number(error, 4)) for name, error in errors.items()]


def federation_verdict(errors: Mapping[str, float]) -> str:
    """How tailored models compare with the better of what stands beside them.

    >>> federation_verdict({"alone": 0.5, "pooled": 0.4, "tailored": 0.3})
    'Tailored models: 25 % less error than one model for all'
    >>> federation_verdict({"alone": 0.2, "tailored": 0.3})
    'Tailored models: 50 % more error than every node alone'
    >>> federation_verdict({"alone": 0.0, "pooled": 0.5, "tailored": 0.3})
    'Tailored models: more error than every node alone, which had none'
    >>> federation_verdict({"tailored": 0.3})
    'Tailored models for every node'
    """
    others = {name: error for name, error in errors.items() if name != "tailored"}
    if "tailored" not in errors or not others:
        return "Tailored models for every node"
    rival = min(others, key=lambda name: others[name])
    if errors["tailored"] == others[rival]:
        return f"Tailored models: the same error as {FEDERATED[rival]}"
    if others[rival] == 0:
        return f"Tailored models: more error than {FEDERATED[rival]}, which had none"
    change = errors["tailored"] / others[rival] - 1
    return (
        f"Tailored models: {abs(change):.0%} {'less' if change < 0 else 'more'} error than {FEDERATED[rival]}".replace(
            "%", " %"
        )
    )


def site_rows(facts: SiteFacts) -> str:
    """What is known of the held-out rows of a site."""
    if facts.rows.empty:
        return "No row was held out here."
    if facts.kind == "classes":
        right = float((facts.rows["target"].astype(str) == facts.rows["predicted"].astype(str)).mean())
        return f"Predicted by the blend; {share_of_one(right)} of {len(facts.rows):,} are right."
    if facts.inside is None or facts.level is None:
        return "Predicted by the blend; there were too few rows for intervals."
    return (
        f"Predicted by the blend, with intervals that are meant to hold {share_of_one(facts.level)} of such rows; they "
        f"hold {share_of_one(facts.inside)} of these {len(facts.rows):,}."
    )


def site_coefficients(facts: SiteFacts, left_out: int) -> str:
    """How to read the coefficients of a site."""
    weight = share_of_one(facts.weights.get("tailored", 0.0))
    fewer = f" The {left_out} features with the smallest ones are not shown." if left_out else ""
    return f"Coefficients of scaled features; their weight in the blend is {weight}.{fewer}"


FEDERATED = {"alone": TITLES["alone"], "pooled": TITLES["pooled"], "tailored": "tailored models"}
