"""Lu, Xing, Yu: Graph-Aware Federated Learning, section 10.5.2 (figure 10.4): next-word prediction in 16 domains.

The chapter's model looks up 63,144 words in 100 dimensions, has 200 hidden units and a window of 35 words. In a size
for two cores: the 498 most frequent words, one for all others and one before a text begins, 16 dimensions, 32 hidden
units, the 5 words before; 1,000 windows of a domain to learn from and 500 to test on, drawn anew with every seed;
batches of 100 as in the chapter, τ = 10, 60 rounds, steps of size .25, λ = .1. Test texts that are training texts are
left out. Each domain is joined with the 4 most similar by tf-idf. As in the chapter, the row of a word that a domain
never uses counts as zero for its neighbours and is not moved by BiG-FL; of 500 words that are 2 %. Words start with
vectors of the user's (``vectors.txt`` beside the reviews), else with random ones, which are learnt. The model of DFL-GT
is the mean over nodes. (10.14) draws 8 domains instead of 10: some have no more that are no neighbours. φ is a number
per layer: words, hidden layer, scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas

from kinfolk.algorithms.bigfl import Adjoint, BiGFL, CosineEmbedding, GraphEmbedding, LaplacianCoupling
from kinfolk.algorithms.bigfl.lower import Links, Received
from kinfolk.algorithms.bigfl.shapes import Layout
from kinfolk.algorithms.dfl import DFL
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fesem import FeSEM
from kinfolk.checks import InputError
from kinfolk.datasets.reviews import load_reviews, load_vectors
from kinfolk.engine.fit import fit
from kinfolk.engine.protocol import Snapshot
from kinfolk.experiments.gfl_bigfl import (
    ALONE,
    FEDAVG,
    HELD_OUT,
    IDENTITY,
    LAPLACIAN,
    PRINTED,
    TRACKING,
    last_rows,
    lower_error,
    skipped,
    steps_of_phi,
)
from kinfolk.experiments.outcome import Claim, Outcome
from kinfolk.experiments.unfinished import once
from kinfolk.network.graph import Graph
from kinfolk.network.graphs import knn
from kinfolk.network.network import Network
from kinfolk.objective.torch_loss import TorchLoss
from kinfolk.typing import Floats, Ints

FESEM = "FeSEM, K = 4"
METHODS = (FEDAVG, TRACKING, FESEM, ALONE, LAPLACIAN, IDENTITY, PRINTED, HELD_OUT)
UNKNOWN, BEGIN = 0, 1  # numbers of the two words that are none
NEIGHBOURS, CLUSTERS = 4, 4
LAM, STEP = 0.1, 0.25
PAPER = {  # Table 10.2: sentences, average length, unique words
    "books": (2000, 159, 19_013), "electronics": (1998, 101, 8_799), "dvd": (2000, 173, 20_308),
    "kitchen_housewares": (2000, 89, 9_188), "apparel": (2000, 57, 6_655), "camera_photo": (1997, 130, 7_657),
    "health_personal_care": (2000, 81, 8_721), "music": (2000, 136, 16_459), "toys_games": (2000, 90, 8_341),
    "video": (2000, 156, 18_437), "baby": (1900, 104, 8_424), "magazines": (1970, 117, 11_552),
    "software": (1915, 129, 5_788), "sports_outdoors": (2000, 94, 9_816), "imdb": (2000, 269, 25_195),
    "MR": (2000, 21, 7_315),
}  # fmt: skip

Record = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """How large the experiment is."""

    words: int = 500
    rows: int = 1_000
    tested: int = 500
    context: int = 5
    dimensions: int = 16
    hidden: int = 32
    rounds: int = 60
    local_steps: int = 10
    warm_up: int = 10
    phi_every: int = 2
    phi_steps: int = 15


FULL = Setting()
QUICK = Setting(
    words=100, rows=60, tested=30, dimensions=4, hidden=8, rounds=6, local_steps=2, warm_up=2, phi_every=1, phi_steps=2
)


class Corpus(NamedTuple):
    """The texts as numbers of words."""

    domains: list[str]
    words: list[str]
    texts: dict[tuple[str, str], list[Ints]]  # by domain and split
    graph: Graph
    owned: Any  # (domains, words) whether a domain uses a word
    counts: dict[str, tuple[int, float, int]]  # sentences, mean length and unique words of every domain
    repeated: int


# ---------------------------------------------------------------------- the texts


def read_corpus(setting: Setting) -> Corpus:
    """The reviews, the vocabulary, and which domains are similar."""
    frame = load_reviews()
    counts, repeated = _counts(frame), int(frame["repeated"].sum())
    frame = frame[~frame["repeated"]]
    texts = [text.split() for text in frame["text"]]
    learnt = frame["split"] == "train"
    frequent = Counter(word for text, own in zip(texts, learnt, strict=True) if own for word in text)
    words = ["<unknown>", "<begin>", *(word for word, _ in frequent.most_common(setting.words - 2))]
    number = {word: k for k, word in enumerate(words)}
    coded = [np.array([number.get(word, UNKNOWN) for word in text]) for text in texts]
    domains = sorted(frame["domain"].unique())
    by_part: dict[tuple[str, str], list[Ints]] = {(d, split): [] for d in domains for split in ("train", "test")}
    for domain, split, numbers in zip(frame["domain"], frame["split"], coded, strict=True):
        by_part[domain, split].append(numbers)
    owned = np.zeros((len(domains), len(words)), dtype=bool)
    for k, domain in enumerate(domains):
        owned[k, np.unique(np.concatenate(by_part[domain, "train"]))] = True
    owned[:, [UNKNOWN, BEGIN]] = True
    joined = _similar(frame[learnt], domains)
    return Corpus(domains, words, by_part, joined, owned, counts, repeated)


def _counts(frame: pandas.DataFrame) -> dict[str, tuple[int, float, int]]:
    """What Table 10.2 counts, of all texts."""
    lengths: dict[str, list[int]] = {}
    unique: dict[str, set[str]] = {}
    for name, text in zip(frame["domain"], frame["text"], strict=True):
        words = text.split()
        lengths.setdefault(name, []).append(len(words))
        unique.setdefault(name, set()).update(words)
    return {name: (len(each), float(np.mean(each)), len(unique[name])) for name, each in lengths.items()}


def _similar(frame: pandas.DataFrame, domains: list[str]) -> Graph:
    """Every domain with the most similar ones by tf-idf, without weights."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    whole = frame.groupby("domain")["text"].agg(" ".join).reindex(domains)
    vectors = TfidfVectorizer(max_features=20_000, sublinear_tf=True).fit_transform(whole).toarray()
    near = knn(vectors, NEIGHBOURS)
    return Graph(len(domains), np.stack([near.head, near.tail], axis=1), names=domains)


def draw_windows(texts: list[Ints], count: int, context: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """So many places in the texts: the words before, and the word there."""
    lengths = np.array([len(text) for text in texts])
    ends = np.cumsum(lengths)
    places = rng.choice(int(ends[-1]), min(count, int(ends[-1])), replace=False)
    text = np.searchsorted(ends, places, side="right")
    where = places - (ends[text] - lengths[text])
    rows = np.full((len(places), context), BEGIN, dtype=np.float64)
    for k, (which, place) in enumerate(zip(text, where, strict=True)):
        before = texts[which][max(0, place - context) : place]
        rows[k, context - len(before) :] = before
    return rows, np.array([texts[which][place] for which, place in zip(text, where, strict=True)], dtype=np.float64)


def draw_network(corpus: Corpus, setting: Setting, seed: int) -> Network:
    """Windows of every domain."""
    rng = np.random.default_rng(seed)
    learnt, tested = (
        [draw_windows(corpus.texts[domain, split], count, setting.context, rng) for domain in corpus.domains]
        for split, count in (("train", setting.rows), ("test", setting.tested))
    )
    return Network(corpus.graph, learnt, test=tested)


def language_model(corpus: Corpus, setting: Setting, seed: int) -> Any:
    """Words looked up, one hidden layer with tanh, and a score for every word."""
    try:
        import torch
    except ImportError as error:
        raise InputError('Expected torch for figure 10.4: install it with pip install "kinfolk[torch]".') from error

    class Numbers(torch.nn.Module):  # type: ignore[misc]
        def forward(self, rows: Any) -> Any:
            return rows.long()

    vectors = load_vectors(corpus.words)
    dimensions = setting.dimensions if vectors is None else vectors.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedding = torch.nn.Embedding(len(corpus.words), dimensions)
        hidden = torch.nn.Linear(setting.context * dimensions, setting.hidden)
        decoder = torch.nn.Linear(setting.hidden, len(corpus.words))
    if vectors is not None:
        embedding.weight.data = torch.tensor(vectors, dtype=embedding.weight.dtype)
    return torch.nn.Sequential(Numbers(), embedding, torch.nn.Flatten(), hidden, torch.nn.Tanh(), decoder)


# ---------------------------------------------------------------------- words that a domain does not own


@dataclass(frozen=True)
class OwnedEmbedding(GraphEmbedding):
    """(10.18) where nodes own some parameters only: others count as zero, and are not moved.

    P_i = ½ ‖o_i ∘ ((L (o ∘ θ) φ)_i − θ_i)‖² with o_i the mask of node i.
    """

    owned: Any = None  # (nodes, parameters) 1 or 0

    def messages(self, links: Links, layout: Layout, phi: Floats, w: Floats) -> dict[str, Floats]:
        """With the mask of the node."""
        return {**super().messages(links, layout, phi, self.owned * w), "owned": self.owned}

    def _rest(self, layout: Layout, phi: Floats, w: Floats, received: Received) -> Floats:
        owned = received["owned"]
        return np.asarray(owned * super()._rest(layout, phi, owned * w, received))

    def slope(self, layout: Layout, phi: Floats, w: Floats, received: Received) -> Floats:
        """Zero for parameters that are not owned."""
        return np.asarray(received["owned"] * super().slope(layout, phi, w, received))

    def own_product(self, layout: Layout, phi: Floats, w: Floats, received: Received, v: Floats) -> Floats:
        """The same."""
        owned = received["owned"]
        inner = owned * self._turned(layout, phi, received["own"], owned * v)
        return np.asarray(owned * self._turned(layout, phi, received["own"], inner, transposed=True))

    def adjoint_product(self, links: Links, layout: Layout, phi: Floats, w: Floats, v: Floats) -> Floats:
        """The same."""
        matrix, owned = self.matrix(links), self.owned
        turned = owned * self._turned(layout, phi, matrix.diagonal()[:, None], owned * v)
        return np.asarray(owned * (self.shape.times(layout, phi, matrix.T @ turned, transposed=True) - turned))

    def phi_product(self, links: Links, layout: Layout, phi: Floats, w: Floats, v: Floats) -> Floats:
        """The same."""
        matrix, owned = self.matrix(links), self.owned
        own, around = matrix.diagonal()[:, None], matrix @ (owned * w)
        rest = owned * (self.shape.times(layout, phi, around) - w)
        turned = owned * self._turned(layout, phi, own, owned * v)
        one = self.shape.derivative(layout, phi, around, turned)
        return one + self.shape.derivative(layout, phi, own * owned * v, rest)

    def embedded(self, links: Links, layout: Layout, phi: Floats, w: Floats) -> Floats:
        """H of owned parameters."""
        return super().embedded(links, layout, phi, self.owned * w)

    def embedded_slopes(
        self, links: Links, layout: Layout, phi: Floats, w: Floats, slope: Floats
    ) -> tuple[Floats, Floats]:
        """The same."""
        by_phi, by_w = super().embedded_slopes(links, layout, phi, self.owned * w, slope)
        return by_phi, self.owned * by_w


def owned_parameters(corpus: Corpus, layout: Layout) -> Floats:
    """(domains, parameters): the rows of words that a domain uses, and all other parameters."""
    (_, table), *others = layout.items()
    rows = np.repeat(corpus.owned.astype(np.float64), table[1], axis=1)
    count = sum(int(np.prod(shape)) for _, shape in others)
    return np.concatenate([rows, np.ones((len(rows), count))], axis=1)


# ---------------------------------------------------------------------- figure 10.4


def fig4(seeds: int = 3, quick: bool = False) -> Outcome:
    """Figure 10.4: next-word prediction in 16 review domains."""
    setting, count = QUICK if quick else FULL, 1 if quick else seeds
    corpus = read_corpus(setting)
    frame = pandas.DataFrame([record for seed in range(count) for record in _records(corpus, setting, seed)])
    ends = last_rows(frame, ["method", "seed"])
    errors = ends.pivot(index="method", columns="seed", values="loss")
    return Outcome(
        "gfl-fig4",
        "Figure 10.4: cross-entropy of the next word on test texts, mean of 16 domains",
        f"{setting.words:,} words, {setting.rows:,} windows of a domain, {setting.rounds} rounds of "
        f"{setting.local_steps} steps, λ = {LAM}; means over {count} draw{'s' if count > 1 else ''}. {corpus.repeated} "
        f"test rows are training texts, too, and are left out. Sentences, mean length and unique words (in brackets "
        f"Table 10.2): {_counted(corpus)}.",
        frame,
        _table(errors, ends),
        _claims(errors),
        _draw,
    )


def _counted(corpus: Corpus) -> str:
    parts = []
    for domain in corpus.domains:
        (sentences, length, unique), theirs = corpus.counts[domain], PAPER[domain]
        parts.append(f"{domain} {sentences}, {length:.0f}, {unique:,} ({theirs[0]}, {theirs[1]}, {theirs[2]:,})")
    return "; ".join(parts)


def _records(corpus: Corpus, setting: Setting, seed: int) -> Iterator[Record]:
    network = draw_network(corpus, setting, seed)
    loss = TorchLoss(language_model(corpus, setting, seed), "cross-entropy", step_size=STEP, precision="float32")
    for method, algorithm in _competitors(corpus, network, loss, setting).items():
        for record in once((method, seed), _curve, algorithm, network, setting, seed):
            yield {"method": method, "seed": seed, **record}


def _curve(algorithm: Any, network: Network, setting: Setting, seed: int) -> Iterator[Record]:
    """One run, looked at fifteen times."""
    curve: list[Record] = []
    run = fit(
        network, algorithm, rounds=setting.rounds, stop=None, progress=False, seed=seed,
        measure_every=max(1, setting.rounds // 15), callbacks=[_watch(algorithm, network, curve)],
    )  # fmt: skip
    phi = " ".join(f"{number:.2f}" for number in algorithm.phi_of(run)) if isinstance(algorithm, BiGFL) else ""
    for record in curve:
        yield {"phi": phi, **steps_of_phi(run), **record}


def _competitors(corpus: Corpus, network: Network, loss: TorchLoss, setting: Setting) -> dict[str, Any]:
    work: dict[str, Any] = {"local_steps": setting.local_steps, "batch": 100}
    lower = OwnedEmbedding(owned=owned_parameters(corpus, loss.layout(network.feature_count)))
    plain = BiGFL(loss, lam=LAM, lower=lower, **work)
    learnt = replace(
        plain, phi="learn", controls=False, warm_up=setting.warm_up, phi_every=setting.phi_every,
        phi_steps=setting.phi_steps, adjoint=Adjoint(solve_steps=10, batch=200),
    )  # fmt: skip
    few = int((len(corpus.domains) - 1 - corpus.graph.degrees).min())
    return {
        FEDAVG: FedAvg(loss, **work),
        TRACKING: DFL(loss, tracking=True, **work),
        FESEM: FeSEM(loss, model_count=CLUSTERS, lam=LAM / 2, warm_up=5, **work),
        ALONE: replace(plain, lam=0.0),
        LAPLACIAN: replace(plain, lower=LaplacianCoupling()),
        IDENTITY: plain,
        PRINTED: replace(learnt, upper=CosineEmbedding(min(10, few)), lam_upper=LAM / 2),
        HELD_OUT: learnt,
    }


def _watch(algorithm: Any, network: Network, curve: list[Record]) -> Callable[..., None]:
    """Keep the cross-entropy on test texts of every round that is measured."""
    test = network.test
    assert test is not None
    tested = algorithm.loss.bind(test)

    def look(row: Mapping[str, float], snapshot: Callable[[], Snapshot]) -> None:
        here, site = snapshot(), network.site
        w = algorithm.models(site, here.state, here.inbox(site.nodes)).w
        if isinstance(algorithm, DFL):
            w = np.tile(w.mean(axis=0), (len(w), 1))
        curve.append({"round": int(row["round"]), "loss": float(tested.value(w).mean())})

    return look


def _table(errors: Any, ends: pandas.DataFrame) -> pandas.DataFrame:
    methods = list(METHODS)
    first = ends[ends["seed"] == 0].set_index("method")["phi"]
    spread, means = errors.std(axis=1).fillna(0.0), errors.mean(axis=1)
    return pandas.DataFrame(
        {
            "method": methods,
            "loss": [f"{means[method]:.3f} ± {spread[method]:.3f}" for method in methods],
            "φ, first draw": first.reindex(methods).to_list(),
            "skipped": skipped(ends, methods),
        }
    )


def _claims(errors: Any) -> list[Claim]:
    return [
        lower_error("FeSEM is ahead of FedAvg", errors, FESEM, FEDAVG),
        lower_error("BiG-FL, φ by (10.14), is ahead of FeSEM", errors, PRINTED, FESEM),
        lower_error("BiG-FL, φ by (10.14), is ahead of FedAvg", errors, PRINTED, FEDAVG),
        lower_error("BiG-FL, φ by (10.14), is ahead of φ = I", errors, PRINTED, IDENTITY),
        lower_error("BiG-FL, φ by held-out error, is ahead of φ = I", errors, HELD_OUT, IDENTITY),
        lower_error("BiG-FL, φ = I, is ahead of nodes alone", errors, IDENTITY, ALONE),
        lower_error("BiG-FL, φ = I, is ahead of a Laplacian coupling", errors, IDENTITY, LAPLACIAN),
    ]


def _draw(figure: Any, runs: pandas.DataFrame) -> None:
    """The loss by round."""
    axes = figure.subplots()
    for method in METHODS:
        own = runs[(runs["method"] == method) & (runs["round"] > 0)]
        axes.plot(own.groupby("round")["loss"].mean(), label=method)
    axes.set(xlabel="round", ylabel="cross-entropy of the next word, test texts")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
