"""learn_together(): the main job across organisations, at the coordinator, which has no rows."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from kinfolk.federation.carrier import Post
from kinfolk.federation.tables.federated_run import FederatedRun
from kinfolk.federation.tables.requests import RemoteParties, SiteGoneError, derived_name
from kinfolk.federation.tables.shared_design import SiteParty, shared_design
from kinfolk.report.site import SHARES
from kinfolk.tables.job import interval_widths, tested, tune
from kinfolk.tables.party import Call
from kinfolk.tables.prepared import edges_table
from kinfolk.tables.settings import Settings

log = logging.getLogger(__name__)


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
            parties = RemoteParties(post, names, patience, secure=secure, job=derived_name(first, len(gone)))
            run = _learnt(parties, settings, edges)
        except SiteGoneError as error:
            if fewest is None or len(names) <= max(fewest, 1):
                raise
            gone[error.site] = error.why
            names.remove(error.site)
            log.warning("site %s does not answer (%s): all begins anew without it", error.site, error.why)
        else:
            run.gone = gone
            return run


def _learnt(parties: RemoteParties, settings: Settings, edges: Any) -> FederatedRun:
    """The job of one table, over sites that all answer."""
    tuning = tune(parties, shared_design(parties, settings, edges_table(edges)))
    run = FederatedRun(tuning, tested(tuning, interval_widths(tuning)), parties)
    _tell(run, parties)
    return run


def _tell(run: FederatedRun, parties: RemoteParties) -> None:
    """Tell all sites how it has ended, for their own pages."""
    shown, errors = run.design.target.shown, run.errors
    quantiles = [np.nanquantile(shown(each), SHARES) for each in errors.by_node().to_numpy().T]
    judgement = run.judgement
    about = {"verdict": judgement.verdict, "judgement": judgement.text, "methods": errors.methods, "notes": run.notes}
    means = [float(shown(errors.mean(name))) for name in errors.methods]
    parties.ask(Call(SiteParty.finish, about=about, errors=means, quantiles=quantiles))
