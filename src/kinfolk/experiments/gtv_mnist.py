"""SarcheshmehPour, Tian, Zhang, Jung: Clustered Federated Learning via Generalized Total Variation Minimization (2023).

Section VI-C, figures 5 to 7: handwritten digits. Every node of a cluster has 500 images of the cluster's two digits
(Table II), 400 to learn from and 100 to be judged by, and a network of two dense layers without biases (42). Each node
is joined with the 4 nearest by the Kullback–Leibler divergence after t-SNE, A = exp(−dist). 50 rounds, λ = 1.

What the paper leaves open, and what is taken here: 100 hidden units, all nodes starting from the same parameters; ten
outputs, one per digit, scored by the cross-entropy of the soft-max (the paper's formula adds the terms of the classes
that an image does not show); φ = ‖·‖₂; no image at two nodes; t-SNE lays out 100 images of every node, all nodes
together. A local update (2) is five steps of gradient descent, as are those of FedAvg, IFCA and pFedMe, with step 0.1;
Adam takes its steps on (16) itself, one a round, and beside it five, each with new messages from the neighbours. IFCA
is given the number of clusters, and each of its models draws its own start. The steps are the paper's (τ_i = 1 /
degree_i, σ_e = ½): those that balance themselves judge by the curvature at the start, which reveals little of a
network, and come out so long that neighbours are hardly felt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas

from kinfolk.algorithms import IFCA, FedAvg, GTVMin, PFedMe, TorchDescent
from kinfolk.algorithms.ifca import Redrawn
from kinfolk.datasets import load_mnist
from kinfolk.engine.fit import fit
from kinfolk.experiments.gtv_digits import FULL, QUICK, STEP_SIZE, STEPS, Problem, draw_problem
from kinfolk.experiments.outcome import Claim, Outcome
from kinfolk.experiments.unfinished import once
from kinfolk.objective.couplings import EuclideanNorm
from kinfolk.typing import Ints

LAM, LAMS = 1.0, (0.0, 0.1, 1.0, 10.0)
ADAM_STEP_SIZE, PFEDME_LAM, STARTS = 0.01, 1.0, 3
SHOWN, GOAL = (1, 2, 5, 10, 20, 50), 0.95
OURS, ALONE, ORACLE, FOR_ALL = "GTVMin", "alone", "FedAvgC, given the clusters", "FedAvg, one for all"

Record = dict[str, Any]


# ---------------------------------------------------------------------- who competes


class Rival(NamedTuple):
    """An algorithm, and how its rounds are counted."""

    name: str
    algorithm: Any
    stride: int = 1  # so many of its rounds count as one
    delay: int = 0  # rounds until nodes receive what was learnt: 1 where a coordinator averages


def _by_lam(problem: Problem) -> Iterator[Rival]:
    """Figure 5: Algorithm 1 from λ = 0, where nodes learn alone, to a large λ, and one model for all."""
    for lam in LAMS:
        yield Rival(f"λ = {lam:g}", _gtvmin(problem, lam))
    yield Rival(FOR_ALL, _fedavg(problem), delay=1)


def _by_method(problem: Problem) -> Iterator[Rival]:
    """Figure 7, where the paper has no pFedMe."""
    yield Rival(OURS, _gtvmin(problem, LAM))
    yield Rival("IFCA", _ifca(problem), delay=1)
    adam = TorchDescent(problem.loss, EuclideanNorm(), LAM, step_size=ADAM_STEP_SIZE)
    yield Rival("Adam on (16), one step", adam)
    yield Rival(f"Adam on (16), {STEPS} steps", adam, stride=STEPS)
    yield Rival(FOR_ALL, _fedavg(problem), delay=1)
    yield Rival(ALONE, _fedavg(problem, np.arange(len(problem.cluster))), delay=1)
    yield Rival(ORACLE, _fedavg(problem, problem.cluster), delay=1)


def _by_more_methods(problem: Problem) -> Iterator[Rival]:
    """Figure 6."""
    yield from _by_method(problem)
    yield Rival(f"IFCA, best of {STARTS} starts", _ifca(problem, STARTS), delay=1)
    yield Rival("pFedMe", PFedMe(problem.loss, PFEDME_LAM))


def _gtvmin(problem: Problem, lam: float) -> GTVMin:
    return GTVMin(problem.loss, EuclideanNorm(), lam, steps="published")


def _ifca(problem: Problem, starts: int = 1) -> IFCA:
    count = int(problem.cluster.max()) + 1
    return IFCA(
        problem.loss, local_steps=STEPS, step_size=STEP_SIZE, model_count=count, initial=Redrawn(), starts=starts
    )


def _fedavg(problem: Problem, cluster: Ints | None = None) -> FedAvg:
    """One model for every cluster; with a cluster for every node, each learns alone, by the same steps."""
    known = None if cluster is None else tuple(cluster.tolist())
    return FedAvg(problem.loss, local_steps=STEPS, step_size=STEP_SIZE, clusters=known)


# ---------------------------------------------------------------------- the figures


def fig5(seeds: int = 5, quick: bool = False) -> Outcome:
    """Figure 5: MNIST in two clusters, accuracy by round and λ."""
    return _figure("gtv-fig5", "Figure 5: two clusters of digits, by λ", 2, _by_lam, _fig5_claims, seeds, quick)


def fig6(seeds: int = 5, quick: bool = False) -> Outcome:
    """Figure 6: MNIST in two clusters, against other methods."""
    return _figure("gtv-fig6", "Figure 6: two clusters of digits", 2, _by_more_methods, _method_claims, seeds, quick)


def fig7(seeds: int = 5, quick: bool = False) -> Outcome:
    """Figure 7: MNIST in five clusters, against other methods."""
    return _figure("gtv-fig7", "Figure 7: five clusters of digits", 5, _by_method, _method_claims, seeds, quick)


def _figure(name: str, title: str, clusters: int, contest: Any, judge: Any, seeds: int, quick: bool) -> Outcome:
    """``contest`` gives the rivals for a problem, ``judge`` the claims for the table of all runs."""
    digits, setting = load_mnist(), QUICK if quick else FULL
    records, crossing = [], []
    for seed in range(1 if quick else seeds):
        problem = draw_problem(digits, clusters, setting, seed)
        crossing.append(problem.crossing)
        for rival in contest(problem):
            course = once((rival.name, seed), _course, problem, rival, setting.rounds)
            records += [{"method": rival.name, "seed": seed, **row} for row in course]
    frame, images = pandas.DataFrame(records), len(crossing) * clusters * setting.nodes * setting.validation
    means = _by_round(frame, "accuracy")
    shown = means[[k for k in SHOWN if k <= setting.rounds]]
    return Outcome(
        name,
        f"{title}: mean validation accuracy (%) by round",
        f"{clusters * setting.nodes} nodes with {setting.train} + {setting.validation} images each, networks "
        f"784-{setting.hidden}-10, {STEPS} steps of {STEP_SIZE:g} a round, φ = ‖·‖₂. "
        f"Networks drawn: {len(crossing)}; an accuracy has a standard error of about "
        f"{_sampling_error(means, images):.1f} points.",
        frame,
        (100 * shown).map("{:.1f}".format).reset_index(),
        [_graph_claim(crossing), *judge(frame)],
        lambda figure, runs: _draw(figure, runs, title),
    )


def _course(problem: Problem, rival: Rival, rounds: int) -> Iterator[Record]:
    """The accuracy on the validation sets, round by round."""
    total = rival.stride * rounds + rival.delay
    run = fit(problem.network, rival.algorithm, rounds=total, stop=None, measure_every=rival.stride, seed=problem.seed)
    for row in run.history.reset_index().to_dict("records"):
        done, rest = divmod(row["round"] - rival.delay, rival.stride)
        if rest == 0 and done >= 0:
            yield {"round": done, "accuracy": 1.0 - row["error"], "objective": row["objective"]}


def _by_round(frame: pandas.DataFrame, value: str) -> Any:
    """Means over networks, (methods, rounds)."""
    return frame.pivot_table(index="method", columns="round", values=value, sort=False)


def _sampling_error(means: Any, images: int) -> float:
    """Of the median accuracy at the end, in points."""
    share = float(means.iloc[:, -1].median())
    return 100 * float(np.sqrt(share * (1 - share) / images))


def _graph_claim(crossing: list[int]) -> Claim:
    text = "The divergence after t-SNE joins nodes of the same digits only"
    return Claim(text, max(crossing) == 0, f"{max(crossing)} edges between clusters at most")


def _fig5_claims(frame: pandas.DataFrame) -> list[Claim]:
    last = 100 * _by_round(frame, "accuracy").iloc[:, -1]
    alone, chosen, one = last[f"λ = {LAMS[0]:g}"], last[f"λ = {LAM:g}"], last[FOR_ALL]
    return [
        Claim("λ = 1 is more accurate than nodes alone, λ = 0", chosen > alone, f"{chosen:.2f} against {alone:.2f}"),
        Claim("λ = 1 is more accurate than one model for all", chosen > one, f"{chosen:.2f} against {one:.2f}"),
    ]


def _method_claims(frame: pandas.DataFrame) -> list[Claim]:
    """Accuracy at the end, how soon most images are recognised, and how far (16) has come down."""
    means = _by_round(frame, "accuracy")
    last, soon = 100 * means.iloc[:, -1], means.apply(_first_above, axis=1)
    left = _by_round(frame, "objective").iloc[:, -1]
    rivals = [name for name in means.index if name not in (OURS, ORACLE)]
    better = [
        Claim(f"More accurate in the end than {name}", last[OURS] > last[name], f"{last[OURS]:.2f}, {last[name]:.2f}")
        for name in rivals
    ]
    ours = soon[OURS]
    sooner = [
        Claim(f"Sooner at {100 * GOAL:.0f} % than {name}", ours < soon[name], f"{_say(ours)}, {_say(soon[name])}")
        for name in rivals
    ]
    lower = [
        Claim(f"A lower objective (16) than {name}", left[OURS] < left[name], f"{left[OURS]:.3g}, {left[name]:.3g}")
        for name in rivals
        if name.startswith("Adam")
    ]
    return better + sooner + lower


def _first_above(course: Any) -> float:
    """The first round measured in which the goal is reached; ∞ if none."""
    reached = course.index[course >= GOAL]
    return float(reached.min()) if len(reached) else np.inf


def _say(count: float) -> str:
    return f"round {count:.0f}" if np.isfinite(count) else "never"


def _draw(figure: Any, runs: pandas.DataFrame, title: str) -> None:
    """Accuracy by round, all of it and the upper end."""
    for axes, floor in zip(figure.subplots(1, 2, width_ratios=(1, 2)), (0.0, 90.0), strict=True):
        for name, part in runs.groupby("method", sort=False):
            course = 100 * part.groupby("round")["accuracy"].mean()
            style = (
                {"linestyle": "--"} if name in (ORACLE, ALONE, FOR_ALL) else {"linewidth": 3.0 if name == OURS else 1.5}
            )
            axes.plot(course.index, course, label=name if floor else None, alpha=0.8, **style)
        axes.set_ylim(floor, 100)
        axes.set_xlabel("round")
        axes.grid(alpha=0.3)
    figure.supylabel("validation accuracy (%), mean over networks")
    figure.suptitle(title)
    figure.legend(loc="outside right upper", fontsize=9)
