"""Caldarola, Mancini, Galasso, Ciccone, Rodolà, Caputo: Cluster-driven Graph Federated Learning over Multiple Domains.

Tables 3 to 5 in kind: CelebA and FEMNIST do not come along, so the clients are the writers of MNIST, 539 to learn from
and 297 others to be judged by, in domains that are known: combinations of binary attributes of a transform (Table 3, as
the paper takes those of its images), four rotations (Table 4), rotations, four sources of digits and inversion (Table
5). One more table is not the paper's: clients that hold two rotations each.

A network of two convolutions (16 and 32 filters of 5 × 5, stride 2) and two dense layers; branches in the second
convolution unless a row names all layers. 4 clients a round, one pass, batches of 20, steps of .15, 480 rounds: at a
third of that everything is ahead of FedAvg, because it learns faster. Accuracy is that on all images of held-out
clients. The control has the same branch, one for everybody. A row's numbers for the paper are those for its own data.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas
from sklearn.metrics import normalized_mutual_info_score

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fedcg import (
    ClassMeans,
    ClientWeights,
    DomainGraph,
    FedCG,
    GivenDomains,
    MixedClients,
    TeacherStudent,
)
from kinfolk.algorithms.fedprox import FedProx
from kinfolk.algorithms.scaffold import SCAFFOLD
from kinfolk.checks import InputError
from kinfolk.datasets.digit_clients import (
    digit_sources,
    mixed_rotations,
    writers_by_attributes,
    writers_by_inversion,
    writers_by_rotation,
)
from kinfolk.datasets.image_clients import ImageClients
from kinfolk.engine.fit import fit
from kinfolk.experiments.outcome import Claim, Outcome
from kinfolk.experiments.unfinished import once
from kinfolk.objective.torch_loss import TorchLoss
from kinfolk.typing import Floats, Ints

LAST, ALL = ["conv2"], ["conv1", "conv2", "dense1", "dense2"]
STEP, BATCH, PRESENT = 0.15, 20, 4
MU = 0.1  # of FedProx
BETA, BETA_OF_TWO = 0.5, 0.8  # as in the paper; two domains would have the same branch with it
SCAFFOLD_STEP = 0.05  # not tuned
FEDAVG, CONTROL, SEPARATE, UNJOINED = (
    "FedAvg",
    "control: one branch for all",
    "a model per domain",
    "branches, not joined",
)
GIVEN, FOUND = "given domains", "found"

Record = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """How large the experiments are."""

    rounds: int = 480
    clients: tuple[int, int, int] | None = None  # rows of a client, clients to learn from and held out; None: all
    attributes: int = 5
    counts: tuple[int, ...] = (2, 3, 4)


FULL = Setting()
QUICK = Setting(rounds=3, clients=(12, 20, 8), attributes=2, counts=(4,))


# ---------------------------------------------------------------------- the network, and one run


def network_of_digits(seed: int) -> Any:
    """Two convolutions and two dense layers, drawn by a seed."""
    try:
        import torch
    except ImportError as error:
        raise InputError(
            'Expected torch for the tables of FedCG: install it with pip install "kinfolk[torch]".'
        ) from error
    nn = torch.nn
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = OrderedDict(
            image=nn.Unflatten(1, (1, 28, 28)), conv1=nn.Conv2d(1, 16, 5, 2), relu1=nn.ReLU(),
            conv2=nn.Conv2d(16, 32, 5, 2), relu2=nn.ReLU(), flat=nn.Flatten(), dense1=nn.Linear(512, 64),
            relu3=nn.ReLU(), dense2=nn.Linear(64, 10),
        )  # fmt: skip
    return nn.Sequential(layers)


class Case(NamedTuple):
    """A row of a table."""

    name: str
    make: Callable[[TorchLoss, ImageClients], Any]  # the algorithm
    given: bool = False  # whether rows carry their domain
    paper: float | None = None  # its accuracy on its own data
    assigns: tuple[str, ...] = ("vote",)  # ways to take branches at test, each a row


def branches(**options: Any) -> Callable[[TorchLoss, ImageClients], FedCG]:
    """FedCG with branches in the last convolution; ``discovery`` may be a function of the clients."""

    def make(loss: TorchLoss, clients: ImageClients) -> FedCG:
        chosen = {name: value(clients) if callable(value) else value for name, value in options.items()}
        beta = BETA_OF_TWO if len(clients.domain_names) == 2 else BETA
        return FedCG(
            loss, **{"layers": LAST, "discovery": ClassMeans(image=clients.shape), "beta": beta, **_work(), **chosen}
        )

    return make


def given(count: int | None = None, **options: Any) -> Callable[[TorchLoss, ImageClients], FedCG]:
    """The same with domains as they are; ``count`` 1: the control."""
    return branches(
        discovery=GivenDomains(), domains=(lambda clients: len(clients.domain_names)) if count is None else count,
        **options,
    )  # fmt: skip


def _work(step: float = STEP) -> dict[str, Any]:
    return {"local_epochs": 1, "batch": BATCH, "step_size": step}


def _averaged(loss: TorchLoss, clients: ImageClients) -> FedAvg:
    return FedAvg(loss, **_work())


def _separate(loss: TorchLoss, clients: ImageClients) -> FedAvg:
    """A model for every domain, learnt by its clients alone."""
    return FedAvg(loss, **_work(), clusters=tuple(_domain_of_clients(clients).tolist()))


def _domain_of_clients(clients: ImageClients) -> Ints:
    """The domain of the first row of every client."""
    _, first = np.unique(clients.client, return_index=True)
    return np.asarray(clients.domain[first])


def _one_domain(clients: ImageClients) -> ImageClients:
    """The same rows, all in one domain."""
    return replace(clients, domain=np.zeros_like(clients.domain), domain_names=("all",), attributes=None)


def _records(table: str, case: Case, clients: ImageClients, setting: Setting, seed: int) -> Iterator[Record]:
    """One run, judged on the images of held-out clients in every way to take branches."""
    loss = TorchLoss(network_of_digits(seed), "cross-entropy", reduction="sum", precision="float32")
    seen = _one_domain(clients) if case.name == CONTROL else clients
    algorithm = case.make(loss, seen)
    share = PRESENT / int((~clients.held_out).sum())
    run = fit(
        seen.network(with_domain=case.given), algorithm, rounds=setting.rounds, stop=None, participation=share,
        measure_every=None, seed=seed, progress=False,
    )  # fmt: skip
    last = run.history.iloc[-1]
    facts = {
        "table": table,
        "seed": seed,
        "paper": case.paper,
        "domains": last.get("domains"),
        "used": last.get("used"),
    }
    X, y, client = seen.held_out_rows(with_domain=case.given)
    for assign in case.assigns:
        models = replace(run.models, assign=assign) if isinstance(algorithm, FedCG) else run.models
        accuracy = 100.0 * (1.0 - float(models.error(X, y, client).mean()))
        name = case.name if len(case.assigns) == 1 else f"{case.name}, {WAYS[assign]}"
        agreement = _agreement(models, seen, X, client, assign) if isinstance(algorithm, FedCG) else np.nan
        yield {**facts, "row": name, "accuracy": accuracy, "nmi": agreement, "ratio": last.get("branch conv2", np.nan)}


WAYS = {"vote": "vote of a client", "row": "each image alone", "soft": "soft weights"}


def _agreement(models: Any, clients: ImageClients, X: Any, client: Ints, assign: str) -> float:
    """Normalised mutual information of true domains and those taken by the images of held-out clients."""
    if not models.domain_count:
        return np.nan
    true = clients.domain[clients.held_out[clients.client]]
    taken = models.weights(np.asarray(X, dtype=np.float64), client).argmax(axis=1)
    return float(normalized_mutual_info_score(true, taken))


# ---------------------------------------------------------------------- which rows


def _hamming(clients: ImageClients) -> Floats:
    """1 / the number of attributes in which two domains differ."""
    return 1.0 / np.maximum(clients.hamming, 1)


def _table3_cases() -> list[Case]:
    plain, relu, none = DomainGraph(), DomainGraph(relu=True), DomainGraph("none")
    rows = [
        ("GCN, U, no W", none, "uniform", False, 84.39), ("GCN, H, no W", none, _hamming, False, 82.10),
        ("GCN, U, W", plain, "uniform", False, 87.92), ("GCN, H, W", plain, _hamming, False, 84.25),
        ("FedCG, U", plain, "uniform", True, 86.96), ("FedCG, H", plain, _hamming, True, 88.65),
        ("FedCG, U, ReLU", relu, "uniform", True, 87.97), ("FedCG, H, ReLU", relu, _hamming, True, 89.57),
    ]  # fmt: skip
    return [
        Case(FEDAVG, _averaged, paper=86.88),
        Case(CONTROL, given(1, graph=None), given=True),
        Case(SEPARATE, _separate, paper=33.61),
        Case(UNJOINED, given(graph=None), given=True),
        *(
            Case(name, given(graph=graph, adjacency=adjacency, agnostic=agnostic), given=True, paper=paper)
            for name, graph, adjacency, agnostic, paper in rows
        ),
        Case("FedCG, learnt A", given(), given=True),
    ]


def _table4_cases(setting: Setting) -> list[Case]:
    paper = {2: (88.36, 88.03), 3: (87.97, 88.59), 4: (87.21, 88.74)}
    kmeans = [
        Case(f"K-means, D = {d}", branches(discovery=_of_clients(ClientWeights), domains=d), paper=paper[d][0])
        for d in setting.counts
    ]
    classifier = [
        Case(f"teacher and student, D = {d}", branches(discovery=_of_clients(TeacherStudent), domains=d, assign="row"),
             paper=paper[d][1], assigns=("row", "soft") if d == 4 else ("row",))
        for d in setting.counts
    ]  # fmt: skip
    every = ("vote", "row", "soft")
    pooled = partial(TeacherStudent, pool=4, same_start=True, step_size=1e-2)
    return [
        Case(FEDAVG, _averaged),
        Case(CONTROL, given(1, graph=None), given=True),
        Case(GIVEN, given(), given=True),
        *kmeans,
        *classifier,
        Case("teacher and student, pooled to 4 × 4, D = 4",
             branches(discovery=_of_clients(pooled), domains=4, assign="row"), assigns=("row",)),
        Case("found, last layer", branches(), assigns=every, paper=89.18),
        Case("found, last layer, A random at first", branches(first="random"), paper=88.55),
        Case("found, all layers", branches(layers=ALL), paper=88.67),
        Case("found, β = .8", branches(beta=0.8)),
        Case("found, branches not joined", branches(graph=None)),
        Case("found, branches averaged over members", branches(branch_average="members")),
    ]  # fmt: skip


def _of_clients(kind: Callable[..., Any]) -> Callable[[ImageClients], Any]:
    return lambda clients: kind(image=clients.shape)


def _table5_cases() -> list[Case]:
    return [
        Case(FEDAVG, _averaged, paper=77.81),
        Case(CONTROL, given(1, graph=None), given=True),
        Case(GIVEN, given(), given=True),
        Case("FedCG", branches(), paper=83.41),
        Case(UNJOINED, branches(graph=None)),
        Case(SEPARATE, _separate),
        Case("FedProx", lambda loss, _: FedProx(loss, **_work(), mu=MU), paper=75.00),
        Case("SCAFFOLD", lambda loss, _: SCAFFOLD(loss, **_work(SCAFFOLD_STEP)), paper=84.20),
    ]


def _mixed_cases() -> list[Case]:
    found = branches(discovery=_of_clients(MixedClients), domains=lambda clients: len(clients.domain_names))
    return [
        Case(FEDAVG, _averaged),
        Case(CONTROL, given(1, graph=None), given=True),
        Case(GIVEN, given(), given=True),
        Case(FOUND, found, assigns=("vote", "row", "soft")),
    ]


# ---------------------------------------------------------------------- the tables


def table3(seeds: int = 3, quick: bool = False) -> Outcome:
    """Table 3 in kind: how to use domains that are known, 32 of them."""
    setting = QUICK if quick else FULL
    draw = partial(writers_by_attributes, count=setting.attributes)
    runs = _runs({"attributes": draw}, _table3_cases(), setting, 1 if quick else seeds)
    title = f"Table 3 in kind: {2**setting.attributes} domains from attributes of a transform"
    return _outcome("fedcg-table3", title, setting, runs, _table3_claims(runs))


def table4(seeds: int = 3, quick: bool = False) -> Outcome:
    """Table 4 in kind: how to find four rotations."""
    setting = QUICK if quick else FULL
    runs = _runs({"rotations": writers_by_rotation}, _table4_cases(setting), setting, 1 if quick else seeds)
    return _outcome("fedcg-table4", "Table 4 in kind: four rotations to be found", setting, runs, _table4_claims(runs))


def table5(seeds: int = 3, quick: bool = False) -> Outcome:
    """Table 5 in kind: against other methods, on rotations, sources and inversion."""
    setting = QUICK if quick else FULL
    draws = {"rotations": writers_by_rotation, "sources": digit_sources, "inversion": writers_by_inversion}
    runs = _runs(draws, _table5_cases(), setting, 1 if quick else seeds)
    return _outcome("fedcg-table5", "Table 5 in kind: other methods", setting, runs, _table5_claims(runs))


def mixed(seeds: int = 3, quick: bool = False) -> Outcome:
    """Clients that hold two of four rotations each: domains of rows instead of clients."""
    setting = QUICK if quick else FULL
    runs = _runs({"two rotations a client": mixed_rotations}, _mixed_cases(), setting, 1 if quick else seeds)
    return _outcome("fedcg-mixed", "Two of four rotations in every client", setting, runs, _mixed_claims(runs))


def _runs(draws: dict[str, Callable[..., ImageClients]], cases: list[Case], setting: Setting, seeds: int) -> Any:
    records: list[Record] = []
    for seed in range(seeds):
        for name, draw in draws.items():
            clients = draw(seed)
            if setting.clients is not None:
                clients = clients.first(*setting.clients, seed)
            for case in cases:
                records += once((name, case.name, seed), _records, name, case, clients, setting, seed)
    return pandas.DataFrame(records)


def _outcome(name: str, title: str, setting: Setting, runs: Any, claims: list[Claim]) -> Outcome:
    count = runs["seed"].nunique()
    note = (
        f"Accuracy in % on images of held-out clients, means over {count} seed{'s' if count > 1 else ''} and "
        f"their range; {PRESENT} clients a round, {setting.rounds} rounds. NMI: agreement of domains taken and true "
        "ones. Ratio: ‖branch‖ / ‖agnostic‖. Paper: its numbers for CelebA (Table 5: FEMNIST)."
    )
    return Outcome(name, title, note, runs, _table(runs), claims, _draw)


def _table(runs: Any) -> pandas.DataFrame:
    rows = []
    for (table, row), own in runs.groupby(["table", "row"], sort=False):
        low, high = own["accuracy"].min(), own["accuracy"].max()
        used = "" if own["used"].isna().all() else f"{own['used'].mean():.0f} of {own['domains'].mean():.0f}"
        rows.append({
            "domains": table, "row": row, "accuracy": f"{own['accuracy'].mean():.1f}", "range": f"{low:.1f}–{high:.1f}",
            "NMI": "" if own["nmi"].isna().all() else f"{own['nmi'].mean():.2f}", "used": used,
            "ratio": "" if own["ratio"].isna().all() else f"{own['ratio'].mean():.2f}",
            "paper": "" if own["paper"].isna().all() else f"{own['paper'].iloc[0]:.2f}",
        })  # fmt: skip
    frame = pandas.DataFrame(rows)
    return frame.drop(columns="domains") if frame["domains"].nunique() == 1 else frame


def _by_row(runs: Any, table: str | None) -> Any:
    """Accuracies of one table (rows, seeds)."""
    own = runs if table is None else runs[runs["table"] == table]
    return own.pivot(index="row", columns="seed", values="accuracy")


def _ahead(runs: Any, text: str, one: str, other: str, table: str | None = None, margin: float = 0.5) -> Claim:
    """Whether a row is ahead of another by more than what renaming branches moves, in every seed."""
    by_row = _by_row(runs, table)
    gain = by_row.loc[one] - by_row.loc[other]
    numbers = f"{gain.mean():+.1f} points ({gain.min():+.1f} to {gain.max():+.1f})"
    return Claim(text, bool(gain.mean() > margin and gain.min() > 0), numbers)


def _within(runs: Any, text: str, one: str, other: str, points: float, table: str | None = None) -> Claim:
    """Whether a row is at most so many points behind another, in the mean of seeds."""
    by_row = _by_row(runs, table)
    gap = by_row.loc[other] - by_row.loc[one]
    return Claim(
        text, bool(gap.mean() <= points), f"{gap.mean():.1f} points behind ({gap.min():.1f} to {gap.max():.1f})"
    )


def _table3_claims(runs: Any) -> list[Claim]:
    return [
        _ahead(runs, "A model per domain is far behind FedAvg", FEDAVG, SEPARATE),
        _ahead(runs, "A GCN improves on a model per domain", "GCN, U, W", SEPARATE),
        _ahead(runs, "W improves the GCN, uniform A", "GCN, U, W", "GCN, U, no W"),
        _ahead(runs, "W improves the GCN, Hamming A", "GCN, H, W", "GCN, H, no W"),
        _ahead(runs, "The agnostic part improves, Hamming A", "FedCG, H", "GCN, H, W"),
        _ahead(runs, "Hamming A is better than uniform A with the agnostic part", "FedCG, H", "FedCG, U"),
        _ahead(runs, "ReLU improves, Hamming A", "FedCG, H, ReLU", "FedCG, H"),
        _ahead(runs, "FedCG (H, ReLU) is ahead of FedAvg", "FedCG, H, ReLU", FEDAVG),
        _ahead(runs, "FedCG (H) is ahead of FedAvg", "FedCG, H", FEDAVG),
        _ahead(runs, "FedCG (H) is ahead of the same branch for everybody", "FedCG, H", CONTROL),
        _ahead(runs, "Joined branches are ahead of branches that are not", "FedCG, H", UNJOINED),
    ]


def _table4_claims(runs: Any) -> list[Claim]:
    found = f"found, last layer, {WAYS['vote']}"
    classifier = next(row for row in runs["row"] if row.startswith("teacher and student, D = 4"))
    collapsed = runs[runs["row"].str.startswith("teacher and student, D")].drop_duplicates(["row", "seed"])
    one = int((collapsed["nmi"] < 0.05).sum())
    return [
        _ahead(runs, "The teacher and the student are ahead of K-means, D = 4", classifier, "K-means, D = 4"),
        Claim("The teacher and the student find domains", one < len(collapsed) / 2,
              f"no agreement with the true ones (NMI < .05) in {one} of {len(collapsed)} runs"),
        _ahead(runs, "Domains found here are ahead of the teacher and the student", found, classifier),
        _ahead(runs, "Domains found here are ahead of FedAvg", found, FEDAVG),
        _ahead(runs, "Domains found here are ahead of the same branch for everybody", found, CONTROL),
        _ahead(runs, "Branches in the last layer are ahead of branches in all", found, "found, all layers"),
        _ahead(runs, "Joined branches are ahead of branches that are not", found, "found, branches not joined"),
    ]  # fmt: skip


def _table5_claims(runs: Any) -> list[Claim]:
    others = {"FedAvg": FEDAVG, "the control": CONTROL, "FedProx": "FedProx", "SCAFFOLD": "SCAFFOLD"}
    tables = list(runs["table"].unique())
    return [
        *(
            _ahead(runs, f"FedCG is ahead of {name}, {table}", "FedCG", row, table)
            for table in tables
            for name, row in others.items()
        ),
        *(
            _within(runs, f"Domains found are within half a point of given ones, {table}", "FedCG", GIVEN, 0.5, table)
            for table in tables
        ),
    ]


def _mixed_claims(runs: Any) -> list[Claim]:
    together, alone = (f"{FOUND}, {WAYS[way]}" for way in ("vote", "row"))
    return [
        _ahead(runs, "Domains found are ahead of FedAvg", together, FEDAVG),
        _ahead(runs, "Domains found are ahead of the same branch for everybody", together, CONTROL),
        _within(runs, "Domains found are within one point of given ones", together, GIVEN, 1.0),
        _within(runs, "... also for images that know nothing of their client", alone, GIVEN, 1.0),
    ]


def _draw(figure: Any, runs: Any) -> None:
    """Every seed as a point, row by row."""
    tables = list(runs["table"].unique())
    for axes, table in zip(figure.subplots(1, len(tables), squeeze=False)[0], tables, strict=True):
        own = runs[runs["table"] == table]
        rows = list(own["row"].unique())
        axes.scatter(own["accuracy"], [rows.index(row) for row in own["row"]], s=18)
        axes.scatter(own.groupby("row", sort=False)["accuracy"].mean(), range(len(rows)), marker="|", s=200)
        axes.set_yticks(range(len(rows)), rows, fontsize=7)
        axes.invert_yaxis()
        axes.set(xlabel="accuracy on held-out clients, %", title=table)
        axes.grid(alpha=0.3)
