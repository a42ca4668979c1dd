"""learn_together(): the main job across organisations, at the coordinator, which has no rows."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from kinfolk.federation.carrier import Post
from kinfolk.federation.coordinator import Federation
from kinfolk.federation.joining import Schema
from kinfolk.federation.tables.agreeing import MEMBERS, USUAL_MEMBERS
from kinfolk.federation.tables.asking import SiteGoneError, Sites, derived_name
from kinfolk.federation.tables.federated_run import FederatedRun, GatheredErrors
from kinfolk.federation.tables.fitting import (
    Graphs,
    Tailored,
    Validated,
    boosted,
    graphs_of,
    pooled_models,
    shuffled,
    slopes,
    tied,
)
from kinfolk.federation.tables.preparing import Ready, prepare_together
from kinfolk.federation.tables.unseen import bin_middles
from kinfolk.network import graphs
from kinfolk.report.site import SHARES
from kinfolk.tables.blend import weights_of_costs, weights_of_products
from kinfolk.tables.choosing import FEW_RESIDUALS
from kinfolk.tables.intervals import Moments, Scales, TimeSums, quantiles, widened
from kinfolk.tables.levels import SLOPES, Growth, Level
from kinfolk.tables.members.boosted import SITE_BOOSTED, SITE_TIED
from kinfolk.tables.prepared import edges_table
from kinfolk.tables.settings import Settings
from kinfolk.typing import Floats, Ints

log = logging.getLogger(__name__)
BARE = "pooled without trend"
ONE_ROW = "every node has one row"
RANDOM_AS_GOOD = "a random graph does as well"
NO_SLOPES = NO_TREES = -1
ONE_OUTPUT = "it predicts numbers and two classes"


def learn_together(
    post: Post, sites: Sequence[str], settings: Settings, *, edges: Any = None, patience: float = 600.0,
    secure: bool = False, job: bytes | None = None, fewest: int | None = None,
) -> FederatedRun:  # fmt: skip
    """Tailored models for the nodes of several sites, whose rows stay where they are.

    Parameters
    ----------
    post : Post
        What carries messages to the sites, each of which runs a ``TableService``.
    sites : sequence of str
        Their names.
    settings : Settings
        What is to be learnt; the same as for one table.
    edges : pandas.DataFrame or sequence of pairs, optional
        Pairs of nodes, and perhaps weights, if a graph is known.
    patience : float
        Seconds until a site has to have answered.
    secure : bool
        Whether sites mask what is summed, so that the coordinator reads nothing but sums over sites.
    job : bytes, optional
        Names the job. With a ``RecallingPost``, its ``job``: the same call goes on after a crash.
    fewest : int, optional
        If a site does not answer in time, all begins anew without it, as long as so many are left; the run's notes
        tell. None: the job ends then.

    Returns
    -------
    FederatedRun
        The comparison, the judgement, and what was chosen. The models stay at the sites.
    """
    names, first, gone = list(sites), job or uuid.uuid4().bytes, dict[str, str]()
    while True:
        try:
            asked = Sites(post, names, patience, secure=secure, job=derived_name(first, len(gone)))
            run = _learnt(asked, settings, edges, patience)
        except SiteGoneError as error:
            if fewest is None or len(names) <= max(fewest, 1):
                raise
            gone[error.site] = error.why
            names.remove(error.site)
            log.warning("site %s does not answer (%s): all begins anew without it", error.site, error.why)
        else:
            run.gone = gone
            return run


def _learnt(asked: Sites, settings: Settings, edges: Any, patience: float) -> FederatedRun:
    """Learn with sites that all answer."""
    ready = prepare_together(asked, settings, edges_table(edges))
    federation = Federation(
        graphs.edgeless(ready.node_count, ready.names), asked.names, asked.post,
        Schema(ready.encoder.get_feature_names_out()), patience=patience,
    )  # fmt: skip
    federation.gather()
    return _Job(asked, ready, federation).run()


class _Job:
    """The steps from encoded rows to a comparison."""

    def __init__(self, sites: Sites, ready: Ready, federation: Federation) -> None:
        self.sites, self.ready, self.federation = sites, ready, federation
        wanted = ready.settings.members or USUAL_MEMBERS
        self.named = [name for name in dict.fromkeys((*wanted, "tailored")) if name in MEMBERS]
        self.left_out: dict[str, str] = {}

    def run(self) -> FederatedRun:
        """All of it."""
        validations, self.pooled_models = self._pooled()
        ridge = validations["pooled"].value[0]
        alone = self.alone
        if "slopes" in self.named:
            self._slopes(validations, ridge)
        common = self.pooled_models[:, validations["pooled"].best]
        self.tailored = Tailored(self.sites, self.ready, self.federation, common, ridge, alone.value[0])
        self.graphs = {each.name: each for each in graphs_of(self.sites, self.ready) if each.name in self.named}
        wanted = [
            (name, each, self.tailored.lams(each.whole, self.graphs["tailored"].whole)) for name, each in self._graphs()
        ]
        validations |= {each.name: each for each in self.tailored.validate(wanted)}
        if SITE_BOOSTED in self.named:
            validations[SITE_BOOSTED] = self._boosted(validations)
        if SITE_TIED in self.named:
            self._tied(validations)
        control = self._control(validations)
        weights = self._weights(validations, {})
        run = self._finished(validations, weights, control)
        self._tell(run)
        return run

    def _tell(self, run: FederatedRun) -> None:
        """Tell all sites how it has ended, for their own pages."""
        shown, errors = self.ready.target.shown, run.errors
        quantiles = [np.nanquantile(shown(each), SHARES) for each in errors.by_node().to_numpy().T]
        judgement = run.judgement
        about = {"verdict": judgement.verdict, "judgement": judgement.text, "methods": errors.names, "notes": run.notes}
        means = [float(shown(errors.mean(name))) for name in errors.names]
        self.sites.ask("outcome", about, errors=means, quantiles=quantiles)

    def _graphs(self) -> list[tuple[str, Graphs]]:
        return list(self.graphs.items())

    # ------------------------------------------------------------------ members

    def _pooled(self) -> tuple[dict[str, Validated], Any]:
        """One model for all, with and without the trend of time; then every node alone."""
        ready, ridges = self.ready, self.ready.family.ridges
        values = [(ridge,) for ridge in ridges]
        found = {}
        for name, without in (("pooled", ()), *([(BARE, ready.trend)] if ready.trend else [])):
            w = pooled_models(self.sites, ready, ridges, without)
            losses = self.sites.total("pooled", {"name": name}, w=w[:-1])["losses"]
            found[name] = (Validated.of(ready, name, values, losses), w, without)
        name = BARE if BARE in found and found[BARE][0].error < found["pooled"][0].error else "pooled"
        validated, models, without = found[name]
        self.trend_left_out = bool(without)
        told = self.sites.total(
            "alone", {"pooled": name}, best=validated.best, without=np.array(without, dtype=np.int64), ridges=ridges
        )
        self.alone = Validated.of(ready, "alone", values, told["losses"])
        return {"pooled": Validated("pooled", values, validated.errors, validated.shares)}, models

    def _slopes(self, validations: dict[str, Validated], ridge: float) -> None:
        if self.ready.train_rows.max() < 2:
            self.left_out["slopes"] = ONE_ROW
        else:
            validations["slopes"] = slopes(self.sites, self.ready, ridge)

    def _boosted(self, validations: dict[str, Validated]) -> Validated:
        """Trees stand on one model for all, or on random slopes where these suit better."""
        return boosted(self.sites, self.ready, *self._bases(validations))

    def _tied(self, validations: dict[str, Validated]) -> None:
        if self.ready.target.kind in ("number", "classes") and self.ready.target.outputs == 1:
            validations[SITE_TIED] = tied(self.sites, self.ready, *self._bases(validations))
        else:
            self.left_out[SITE_TIED] = ONE_OUTPUT

    def _bases(self, validations: dict[str, Validated]) -> tuple[Floats, int]:
        """One model for all, by part, and the best value of random slopes where these suit better, or −1."""
        found, pooled = validations.get("slopes"), validations["pooled"]
        better = found is not None and found.error < pooled.error
        best = found.best if found is not None and better else NO_SLOPES
        return self.pooled_models[:, pooled.best], best

    # ------------------------------------------------------------------ weights and control

    def _weights(self, validations: dict[str, Validated], again: dict[str, Validated]) -> dict[str, float]:
        """The weights of the members; ``again``: those of the control in place of theirs."""
        wanted = self.ready.settings.members or USUAL_MEMBERS
        names = [name for name in validations if name in wanted and name not in self.left_out] or ["pooled"]
        kept = [again.get(name, validations[name]) for name in names]
        best, factors = np.array([each.best for each in kept]), self.ready.factors
        about = {"names": [each.name for each in kept]}

        def asked(work: str, **arrays: Any) -> dict[str, Any]:
            return self.sites.total(work, about, best=best, factors=factors, **arrays)

        def cost(weights: Floats) -> tuple[float, Floats]:
            found = asked("costs", weights=weights)
            return float(found["cost"] / found["weight"]), found["slopes"] / found["weight"]

        if self.ready.target.kind in ("number", "classes"):
            sizes = asked("sizes") if self.ready.target.kind == "number" else {"sizes": 0.0, "weight": 1.0}
            found = asked("products", typical=float(sizes["sizes"] / sizes["weight"]))
            count = self.ready.evidence(int(found["seen"]))
            return weights_of_products(names, found["products"] / found["weight"], count)
        even = np.full(len(names), 1 / len(names))
        return weights_of_costs(names, cost, self.ready.evidence(int(asked("costs", weights=even)["seen"])))

    def _control(self, validations: dict[str, Validated]) -> dict[str, tuple[Graphs, Validated]]:
        """The members on graphs, with graphs and places drawn at random."""
        drawn = shuffled(list(self.graphs.values()), self.ready)
        if drawn is None:
            return {}
        fewer = {
            each.name: sorted(
                {*[lam for (lam,) in validations[each.name].values][::2], validations[each.name].value[0]}
            )
            for each in drawn
        }
        found = self.tailored.validate([(f"control {each.name}", each, fewer[each.name]) for each in drawn])
        again = {each.name: (each, validated) for each, validated in zip(drawn, found, strict=True)}
        by_similarity = self.ready.source.origin.kind == "similarity"
        if by_similarity and validations["tailored"].error >= again["tailored"][1].error:
            self.left_out["tailored"] = RANDOM_AS_GOOD
        return again

    # ------------------------------------------------------------------ the test

    def _intervals(self, validations: dict[str, Validated], weights: dict[str, float]) -> dict[str, Any]:
        """How residuals of nodes are drawn together, how they grow with predictions, and quantiles of residuals.

        Nothing for classes.
        """
        ready, sites = self.ready, self.sites
        none = {"shrinkage": np.empty((3, 0)), "level": Level(), "inside": np.empty(0), "outside": np.empty(0)}
        if ready.target.classes:
            return none
        best = np.array([validations[name].best for name in weights])
        spans = ready.folds if ready.timed else 1
        sites.sizes |= {"bins": len(bin_middles()), "spans": spans, "growths": len(SLOPES), "two": 2, "three": 3}
        told = sites.ask("residuals", {"names": list(weights)}, best=best, weights=list(weights.values()))
        moments = Moments(*(ready.by_node([each.arrays[name] for each in told]) for name in Moments._fields))
        if moments.sizes.sum() < FEW_RESIDUALS:
            return none
        scales = Scales.of(moments)
        level = self._level(scales, moments.sizes.sum(axis=1))
        unit = float(np.sqrt(moments.squares.sum() / moments.sizes.sum())) or 1.0
        found = sites.total("reach", shrinkage=scales.to_array(), level=level, unit=unit, times=ready.predicted_times)
        inside, outside = (_quantiles(found[name]) for name in ("inside", "outside"))
        if ready.timed:
            sums = map(TimeSums, found["time_rows"], found["time_squares"])
            inside, outside = (widened(each, of.freedom()) for each, of in zip((inside, outside), sums, strict=True))
        return {"shrinkage": scales.to_array(), "level": level, "inside": inside, "outside": unit * outside}

    def _level(self, scales: Scales, rows: Ints) -> Level:
        """How residuals grow with predictions; ``rows``: how many there are in every window of time."""
        ready, sites, target = self.ready, self.sites, self.ready.target
        level = Level.of_sums(*sites.total("levels")["sums"].tolist())
        level = Level(target.centre + target.spread * level.centre, target.spread * level.unit)
        found = sites.total("growth", shrinkage=scales.to_array(), level=level, times=ready.predicted_times)
        by_time = TimeSums(found["time_rows"], found["time_squares"]) if ready.timed else None
        growth = Growth(rows, found["squares"])
        return level._replace(slope=growth.slope(scales.evidence(int(rows.sum()), by_time)))

    def _finished(
        self, validations: dict[str, Validated], weights: dict[str, float],
        control: dict[str, tuple[Graphs, Validated]],
    ) -> FederatedRun:  # fmt: skip
        ready, sites = self.ready, self.sites
        again = {name: validated for name, (_, validated) in control.items()}
        other = self._weights(validations, again) if control else {}
        final = [(name, each, validations[name].value[0]) for name, each in self._graphs()]
        final += [(f"control {name}", each, validated.value[0]) for name, (each, validated) in control.items()]
        lanes = self.tailored.final(final)
        trees = [validations[SITE_BOOSTED].value] if SITE_BOOSTED in validations else []
        ties = validations[SITE_TIED].best if SITE_TIED in validations else NO_TREES
        best = validations["slopes"].best if "slopes" in validations else NO_SLOPES
        widths = self._intervals(validations, weights)
        named = [f"control {name}" if name in control else name for name in other]
        methods = 2 + len(validations) + bool(control)
        sites.sizes |= {"methods": methods, "series": methods + 1}
        told = sites.ask(
            "finish", {"graphs": [name for name, _, _ in final], "weights": list(weights), "control": named},
            pooled=self.pooled_models[-1, validations["pooled"].best], alone=self.alone.value[0], slopes=best,
            boosted=np.array(trees).reshape(-1, 4), tied=ties, lanes=lanes, weights=list(weights.values()),
            control=list(other.values()), moments=ready.moments, **widths,
        )  # fmt: skip
        errors = GatheredErrors.of(ready, sites, told)
        return FederatedRun(
            ready=ready, graph=self.graphs["tailored"].whole, validations={**validations, "alone": self.alone},
            weights=weights, left_out=self.left_out, errors=errors, trend_left_out=self.trend_left_out,
            lanes=self.tailored.lanes, lane_exchanges=self.tailored.exchanges,
        )  # fmt: skip


def _quantiles(bins: Ints) -> Floats:
    """Quantiles of values that are known by bins."""
    seen = bins > 0
    return quantiles(bin_middles()[seen], bins[seen].astype(np.float64), int(bins.sum()))
