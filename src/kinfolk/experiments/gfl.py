"""Lu, Xing, Yu: Graph-Aware Federated Learning, section 10.2 (figure 10.1: FedAvg, DFL-SGD and DFL-GT on five nodes).

Five nodes share true weights w̄; node k draws inputs evenly from an interval of its own, and its labels are f_k(w̄'x)
with a function of its own. A network with three layers learns all of them at once, so no model fits everybody.

What the chapter leaves open, and what is taken here: 8 inputs, w̄ ~ N(0, I), 100 rows of a node to learn from and 100
to test on, all of them standardised with one mean and one scale (the model is for all nodes), a network 8-16-16-1 with
tanh and a linear output, a path of five nodes, Metropolis–Hastings weights, τ = 10, and 2,000 steps on full batches.
Its steps 15/√t diverge; .15/√(t + 1) are taken. An error is that of every node's model on the test rows of all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas

from kinfolk.algorithms.dfl import DFL
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.local_work import Decay
from kinfolk.checks import InputError
from kinfolk.engine.fit import fit
from kinfolk.engine.in_process import InProcess
from kinfolk.engine.protocol import Snapshot
from kinfolk.experiments.outcome import Claim, Outcome
from kinfolk.experiments.unfinished import once
from kinfolk.network.graphs import chain
from kinfolk.network.network import Network
from kinfolk.objective.torch_loss import TorchLoss
from kinfolk.typing import Floats

INTERVALS = ((-30.0, 30.0), (40.0, 100.0), (-55.0, -50.0), (-1.0, 1.0), (-0.1, 0.1))
INPUTS, HIDDEN = 8, 16
ROWS, TESTED = 100, 100
STEP, PRINTED_STEP = 0.15, 15.0
TAU = 10  # of the figure
FEDAVG, SGD, TRACKING = "FedAvg", "DFL-SGD", "DFL-GT"
METHODS: dict[str, Callable[..., Any]] = {FEDAVG: FedAvg, SGD: DFL, TRACKING: partial(DFL, tracking=True)}

Record = dict[str, Any]


def _sigmoid(z: Floats) -> Floats:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * z)))


def _relu(z: Floats) -> Floats:
    return np.maximum(z, 0.0)


FUNCTIONS: tuple[Callable[[Floats], Floats], ...] = (np.tanh, _sigmoid, _relu, np.sin, np.cos)


@dataclass(frozen=True)
class Setting:
    """How large the experiment is."""

    steps: int = 2_000
    taus: tuple[int, ...] = (1, 2, 5, 10, 20)
    lost: tuple[float, ...] = (0.2, 0.5)


FULL, QUICK = Setting(), Setting(steps=200, taus=(2, 10), lost=(0.5,))


# ---------------------------------------------------------------------- the problem


def draw_network(seed: int) -> Network:
    """Five nodes with inputs and functions of their own, on one scale."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=INPUTS)
    X = np.stack([rng.uniform(low, high, (ROWS + TESTED, INPUTS)) for low, high in INTERVALS])  # (nodes, rows, inputs)
    y = np.stack([function(x @ truth) for function, x in zip(FUNCTIONS, X, strict=True)])
    X = (X - X[:, :ROWS].mean(axis=(0, 1))) / X[:, :ROWS].std(axis=(0, 1))
    y = (y - y[:, :ROWS].mean()) / y[:, :ROWS].std()
    learnt, tested = (list(zip(X[:, part], y[:, part], strict=True)) for part in (slice(ROWS), slice(ROWS, None)))
    return Network(chain(len(INTERVALS)), learnt, test=tested)


def draw_loss(seed: int) -> TorchLoss:
    """The network that all nodes start with, and its squared error."""
    try:
        import torch
    except ImportError as error:
        raise InputError('Expected torch for figure 10.1: install it with pip install "kinfolk[torch]".') from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(*shape) for shape in ((INPUTS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1))]
    first, second, last = layers
    return TorchLoss(torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.Tanh(), last))


def error_on_all(models: Any, network: Network) -> float:
    """The mean square error of every node's model on the test rows of all nodes."""
    test = network.test
    assert test is not None
    nodes = range(network.graph.node_count)
    return float(np.mean([models.error(test.X, test.y, np.full(len(test.y), node)).mean() for node in nodes]))


# ---------------------------------------------------------------------- runs


def _run(
    method: str, network: Network, loss: TorchLoss, setting: Setting, seed: int, tau: int = TAU, lost: float = 0.0
) -> list[Record]:
    """One method, looked at twenty times; where messages get lost, the coordinator of FedAvg misses as many nodes."""
    algorithm = METHODS[method](loss, local_steps=tau, step_size=Decay(STEP))
    records: list[Record] = []

    def look(row: Mapping[str, float], snapshot: Callable[[], Snapshot]) -> None:
        here, site = snapshot(), network.site
        models = algorithm.models(site, here.state, here.inbox(site.nodes))
        found = {"round": int(row["round"]), "error": error_on_all(models, network)}
        records.append({"method": method, "seed": seed, "tau": tau, "lost": lost, **found})

    rounds = setting.steps // tau
    away: dict[str, Any] = {"participation": 1.0 - lost} if method == FEDAVG else {"engine": InProcess(lost=lost)}
    every = max(1, rounds // 20)
    fit(
        network, algorithm, rounds=rounds, stop=None, measure_every=every, callbacks=[look], seed=seed, progress=False,
        **away,
    )  # fmt: skip
    return records


def _records(setting: Setting, seed: int) -> Iterator[Record]:
    network, loss = draw_network(seed), draw_loss(seed)
    cases: list[dict[str, Any]] = [{"tau": tau} for tau in setting.taus] + [{"lost": lost} for lost in setting.lost]
    for method in METHODS:
        for case in cases:
            yield from once((method, case, seed), partial(_run, **case), method, network, loss, setting, seed)


def _printed_steps(seed: int) -> tuple[int, int]:
    """How many of the methods fail with steps of 15/√t, counted from t = 1: they diverge, or learn nothing."""
    network, loss = draw_network(seed), draw_loss(seed)
    useless = 0
    for method in METHODS.values():
        algorithm = method(loss, local_steps=TAU, step_size=Decay(PRINTED_STEP))
        with np.errstate(all="ignore"):
            run = fit(network, algorithm, rounds=20, stop=None, progress=False, measure_every=20)
        diverged = "diverged" in run.stopped
        useless += diverged or not error_on_all(run.models, network) < 1.0  # the error of the mean label
    return useless, len(METHODS)


# ---------------------------------------------------------------------- the figure


def fig1(seeds: int = 10, quick: bool = False) -> Outcome:
    """Figure 10.1: FedAvg, DFL-SGD and DFL-GT on five nodes that differ."""
    setting, count = QUICK if quick else FULL, 1 if quick else seeds
    frame = pandas.DataFrame([record for seed in range(count) for record in _records(setting, seed)])
    ends = _ends(frame)
    return Outcome(
        "gfl-fig1",
        "Figure 10.1: error of every model on the test rows of all nodes",
        f"Five nodes on a path, network 8-16-16-1, {setting.steps:,} full-batch steps of .15/√(t + 1), "
        f"Metropolis–Hastings weights; means over {count} draw{'s' if count > 1 else ''}. τ: steps between two "
        f"messages; lost: share of messages at τ = {TAU}, of nodes for FedAvg.",
        frame,
        _table(ends),
        [*_claims(frame, ends, setting), _printed_claim(range(count))],
        _draw,
    )


def _ends(frame: pandas.DataFrame) -> Any:
    """The error at the end of every run."""
    keys = ["method", "tau", "lost", "seed"]
    return frame.sort_values("round").groupby(keys, sort=False).tail(1).set_index(keys)["error"].unstack("seed")


def _table(ends: Any) -> pandas.DataFrame:
    means = ends.mean(axis=1)
    rows = []
    for method in METHODS:
        own = means[method]
        columns = {f"τ = {tau}": own[tau, 0.0] for tau in sorted(own.index.get_level_values("tau").unique())}
        losses = [lost for lost in own[TAU].index if lost > 0]
        rows.append({"method": method, **columns, **{f"{lost:.0%} lost": own[TAU, lost] for lost in sorted(losses)}})
    return pandas.DataFrame(rows).map(lambda value: f"{value:.3f}" if isinstance(value, float) else value)


def _claims(frame: Any, ends: Any, setting: Setting) -> list[Claim]:
    few, many, worst = min(setting.taus), max(setting.taus), max(setting.lost)
    soon = setting.steps // TAU // 10
    at = {method: ends.loc[(method, TAU, 0.0)] for method in METHODS}
    early = frame[(frame["tau"] == TAU) & (frame["lost"] == 0) & (frame["round"] == soon)]
    by_seed = early.pivot(index="method", columns="seed", values="error")
    lossy = {method: (at[method], ends.loc[(method, TAU, worst)]) for method in METHODS}
    dearer = {method: (ends.loc[(method, few, 0.0)], ends.loc[(method, many, 0.0)]) for method in (SGD, TRACKING)}
    rounds = setting.steps // TAU
    return [
        _lower(f"FedAvg is fastest: ahead of DFL-GT after {soon} rounds", *by_seed.loc[[FEDAVG, TRACKING]].values),
        _lower(f"FedAvg is ahead of DFL-SGD after {rounds} rounds", at[FEDAVG], at[SGD]),
        _lower(f"FedAvg is ahead of DFL-GT after {rounds} rounds", at[FEDAVG], at[TRACKING]),
        _lower(f"DFL-GT is ahead of DFL-SGD after {rounds} rounds", at[TRACKING], at[SGD]),
        _less(f"Fewer messages (τ = {many} instead of {few}) cost DFL-GT less than DFL-SGD", dearer, TRACKING, SGD),
        _less(f"{worst:.0%} of messages lost cost DFL-GT less than FedAvg", lossy, TRACKING, FEDAVG),
        _less(f"{worst:.0%} of messages lost cost DFL-SGD less than FedAvg", lossy, SGD, FEDAVG),
    ]


def _lower(text: str, one: Any, other: Any) -> Claim:
    numbers = f"{one.mean():.3f} against {other.mean():.3f}; lower in {int((one < other).sum())} of {len(one)} draws"
    return Claim(text, bool(one.mean() < other.mean()), numbers)


def _less(text: str, changes: dict[str, tuple[Any, Any]], one: str, other: str) -> Claim:
    """By how much the mean error grows; draws are counted one by one."""
    growth = {method: after.mean() / before.mean() - 1.0 for method, (before, after) in changes.items()}
    by_draw = {method: after / before for method, (before, after) in changes.items()}
    count = int((by_draw[one] < by_draw[other]).sum())
    numbers = f"{growth[one]:+.0%} against {growth[other]:+.0%} error; less in {count} of {len(by_draw[one])} draws"
    return Claim(text, bool(growth[one] < growth[other]), numbers)


def _printed_claim(seeds: range) -> Claim:
    useless, tried = np.sum([_printed_steps(seed) for seed in seeds], axis=0)
    return Claim(
        "Steps of 15/√t, as printed, train all three",
        bool(useless == 0),
        f"{useless} of {tried} runs diverge or stay above the error of the mean label",
    )


def _draw(figure: Any, runs: Any) -> None:
    """The error by round at τ = 10, and at the end by τ."""
    left, right = figure.subplots(1, 2)
    ends = _ends(runs)
    for method in METHODS:
        own = runs[(runs["method"] == method) & (runs["tau"] == TAU) & (runs["lost"] == 0)]
        left.plot(own.groupby("round")["error"].mean(), label=method)
        whole = ends.loc[method].xs(0.0, level="lost").mean(axis=1).sort_index()
        right.plot(whole.index, whole, marker="o", label=method)
    left.set(
        xlabel=f"round (τ = {TAU})", ylabel="error on the test rows of all nodes", title="by round, mean over draws"
    )
    taus = sorted(runs["tau"].unique())
    right.set(xlabel="τ, steps between two messages", title="at the end, after as many steps", xscale="log")
    right.set_xticks(taus, [str(tau) for tau in taus])
    right.minorticks_off()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend()
