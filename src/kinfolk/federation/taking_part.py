"""Taking part: a site from its invitation and its table to a process that answers, and the models it ends with."""

from __future__ import annotations

import contextlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas

from kinfolk.checks import InputError, check_parameters
from kinfolk.engine.privacy import epsilon
from kinfolk.engine.protocol import Algorithm
from kinfolk.engine.specs import spec_of
from kinfolk.federation.agreement import EPSILON, Agreement
from kinfolk.federation.allowance import Allowance, forget_runs
from kinfolk.federation.audit import Recorded, RecordedRun
from kinfolk.federation.files import made, read_json, replace_file
from kinfolk.federation.flower.processes import stop_process, stopped_by_signals
from kinfolk.federation.flower.site import Way, serve
from kinfolk.federation.invitation import Invitation
from kinfolk.federation.keys import Pins, SiteKey, fingerprint_of
from kinfolk.federation.named import TAILORED
from kinfolk.federation.reading import who_reads
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import Agreed, Service, SiteService
from kinfolk.federation.site_models import save_models
from kinfolk.federation.site_run import Care
from kinfolk.federation.site_table import agreed_table, site_rows
from kinfolk.federation.tables.auditing import RecordedJob
from kinfolk.federation.tables.handlers import SiteHandlers
from kinfolk.federation.tables.kept import MODELS
from kinfolk.federation.tables.queries import READERS, declared
from kinfolk.federation.tables.query_limits import QueryLimits
from kinfolk.federation.tables.service import TableService, job_mark, table_mark
from kinfolk.network import graphs
from kinfolk.network.fingerprint import fingerprint
from kinfolk.network.problem import Problem
from kinfolk.tables.reading import read_table
from kinfolk.tables.target import TASKS, Target

SIGN_IN, MEMBER, CONSENT, LOG, PAGE = "sign-in", "member.json", "consent", "log.txt", "report.html"
TOLD = "All sites are told the comparison, and the errors that 10, 25, 50, 75 and 90 % of all nodes are below."
FEW = (
    "Caution: {few} {nodes} at most {width} rows, as many as there are features: what is sent of them tells nearly all."
)
BEGUN_ANEW = (
    "If a site goes away, all begins anew without it: from the sums before and after the coordinator can tell its part."
)
BLURRED = (
    "Parameters, gradients and predictions are cut to a norm of {clip:g} and get noise of deviation {scale:g}. What is "
    "told on joining, and what is measured at a node, gets none."
)
AT_MOST = "At most ε = {epsilon:g} is spent on any receiver, over all runs: what would be more is refused."
LEAVING = 60.0  # seconds for a process to say goodbye


@dataclass(frozen=True, eq=False)
class Participant(ABC):
    """A site that is ready to take part.

    Parameters
    ----------
    invitation : Invitation
        Of this site.
    folder : Path
        Where it keeps its keys, its state, what has left, and its models.
    """

    invitation: Invitation
    folder: Path

    @staticmethod
    def of(invitation: Invitation, table: Path, folder: Path, model: Any = None, care: Care = Care()) -> Participant:
        """Read the table, and check that everything fits; nothing is sent."""
        kind = FitParticipant if invitation.agreement.job == "fit" else RunParticipant
        check_member(folder, invitation)
        return kind.reading(invitation, table, folder, model, care)

    @property
    @abstractmethod
    def size(self) -> str:
        """How many rows there are, in words."""

    @abstractmethod
    def leaving(self) -> dict[str, list[str]]:
        """What will leave this site, by occasion."""

    @abstractmethod
    def service(self) -> Service:
        """What answers the coordinator; only what was agreed on."""

    @abstractmethod
    def recorded(self) -> Recorded:
        """The last run or job, for an audit."""

    @abstractmethod
    def keep(self, service: Any) -> Path | None:
        """Keep the models when all is over; None: there are none."""

    # ------------------------------------------------------------------ consent

    @property
    def _asked_for(self) -> str:
        """All that the owner has seen when asked."""
        invitation = self.invitation
        seen = [invitation.agreement.to_toml(), _member(invitation), invitation.contact.address, self.leaving()]
        return fingerprint(json.dumps(seen, sort_keys=True), *self._own_choices())

    def _own_choices(self) -> list[str]:
        return []

    @property
    def allowance(self) -> Allowance:
        """How often this site may be asked."""
        return Allowance(self.invitation.agreement.rounds, self.invitation.agreement.runs)

    @property
    def has_consent(self) -> bool:
        """Whether the owner has agreed to just this before."""
        path = self.folder / CONSENT
        return path.exists() and path.read_bytes() == self._asked_for.encode()

    def consent(self) -> None:
        """Keep that the owner has agreed; from now on the folder is that of this site."""
        if not (self.folder / MEMBER).exists():
            made(self.folder).chmod(0o700)
        replace_file(self.folder / MEMBER, json.dumps(_member(self.invitation)).encode())
        replace_file(self.folder / CONSENT, self._asked_for.encode())
        forget_runs(self.folder)

    # ------------------------------------------------------------------ the process

    def run(self, way: Way, patience: float, tell: Callable[[str], None]) -> Path | None:
        """Answer the coordinator until it ends the federation, or the process is told to stop; where models are."""
        key, service = self.folder / SIGN_IN, self.service()
        with contextlib.closing(service), _logging_to(self.folder / LOG), stopped_by_signals() as stop:
            replace_file(key, self.invitation.key.encode(), mode=0o600)  # a new invitation has a new one
            tell(f"Site {service.name!r}, key {service.fingerprint}: waiting for the coordinator.")
            serve(service, self.invitation.contact, key, stop, way=way, patience=patience, tell=tell)
            return self.keep(service)


@dataclass(frozen=True, eq=False)
class RunParticipant(Participant):
    """A site of a federation that runs an algorithm.

    Parameters
    ----------
    rows : SiteRows
        Its rows.
    algorithms : dict
        All that may be run here, with the models that the owner has chosen.
    care : Care
        Noise on what leaves, and whether requests are kept for an audit.
    """

    rows: SiteRows
    algorithms: dict[str, Algorithm[Any]]
    care: Care = Care()

    @classmethod
    def reading(cls, invitation: Invitation, table: Path, folder: Path, model: Any, care: Care) -> RunParticipant:
        """From the table of the site."""
        agreement = invitation.agreement
        care = _demanded(agreement, care)
        algorithms = agreement.algorithms(model)
        rows = site_rows(read_table(table), agreement, invitation.site)
        rows.check()
        rows.check_complete(agreement.schema.scaled)
        made = cls(invitation, folder, rows, algorithms, care)
        if care.noise is not None:
            check_parameters(care.noise)
            for each in algorithms.values():
                care.noise.check(each, each.sends(made.problem))
        return made

    @property
    def problem(self) -> Problem:
        """What is known of the own nodes before anybody has joined; enough to size messages."""
        return self.invitation.agreement.problem(graphs.edgeless(len(self.rows.nodes), list(self.rows.nodes)))

    @property
    def size(self) -> str:
        """How many rows there are, in words."""
        held_out = 0 if self.rows.test is None else len(self.rows.test.y)
        return f"{len(self.rows.data.y):,} rows to learn from, {held_out:,} held out"

    def leaving(self) -> dict[str, list[str]]:
        """What will leave this site: on joining, and for everything that is run."""
        agreement = self.invitation.agreement
        told = ["The names of its nodes and columns, which nodes have rows, and a public key."]
        told += ["Which classes occur."] if agreement.classes else []
        scaled = len(agreement.schema.scaled)
        told += (
            [f"The number of values, mean and sum of squares of {scaled} columns, over all its rows."] if scaled else []
        )
        told += _caution(self.rows.data.sizes, len(agreement.columns))
        told += (
            [] if self.care.noise is None else [BLURRED.format(clip=self.care.noise.clip, scale=self.care.noise.scale)]
        )
        told += [] if self.care.epsilon is None else [AT_MOST.format(epsilon=self.care.epsilon)]
        often = [f"{agreement.runs:,} runs at most, with {agreement.rounds:,} rounds each; more are refused."]
        runs = {name: who_reads(each, self.problem) for name, each in self.algorithms.items()}
        return {"joining": told, **runs, "how often": often}

    def _own_choices(self) -> list[str]:
        noise = [] if self.care.noise is None else [repr(spec_of(self.care.noise))]
        return [repr(spec_of(each)) for each in self.algorithms.values()] + noise

    def service(self) -> SiteService:
        """What answers the coordinator; only what was agreed on."""
        return SiteService(
            self.invitation.site, self.rows, self.folder, agreed=self._agreed, allowance=self.allowance, care=self.care
        )

    def recorded(self) -> RecordedRun:
        """The last run, for an audit."""
        return RecordedRun.read(self.invitation.site, self.folder, self.rows, self._agreed)

    @property
    def _agreed(self) -> Agreed:
        agreement = self.invitation.agreement
        return Agreed(agreement.schema, list(self.algorithms.values()), agreement.sites, agreement.public_points())

    def keep(self, service: Any) -> Path | None:
        """Keep the models of the main algorithm."""
        return save_models(service, self.invitation.agreement, self.algorithms[TAILORED])


@dataclass(frozen=True, eq=False)
class FitParticipant(Participant):
    """A site of a federation that learns together from tables.

    Parameters
    ----------
    table : pandas.DataFrame
        The agreed columns of its table.
    record : bool
        Whether to keep what is asked, for an audit.
    """

    table: pandas.DataFrame
    record: bool = False

    @classmethod
    def reading(cls, invitation: Invitation, table: Path, folder: Path, model: Any, care: Care) -> FitParticipant:
        """From the table of the site."""
        if care.noise is not None:
            raise InputError(
                "Expected no noise where tables are learnt from, got some: leave out --clip and --noise; --secure of "
                "kinfolk federation new masks sums."
            )
        if model is not None:
            raise InputError("Expected no model of a site's own where tables are learnt from: leave out --model.")
        agreed = agreed_table(read_table(table), invitation.agreement, invitation.site)
        return cls(invitation, folder, agreed, care.record)

    @property
    def size(self) -> str:
        """How many rows there are, in words."""
        test = self.invitation.agreement.table_settings.test
        tested = f"those marked in {test!r}" if isinstance(test, str) else f"about {100 * test:.0f} %"
        return f"{len(self.table):,} rows, of which {tested} are held out"

    def leaving(self) -> dict[str, list[str]]:
        """What will leave this site, in answer to which query."""
        agreement, settings = self.invitation.agreement, self.invitation.agreement.table_settings
        masked = {READERS["sum"]: " (masked)"} if agreement.secure else {}
        told = {
            str(query): [f"{row.content}: {row.axes}, read as {row.reads}{masked.get(str(row.reads), '')}."
                         for row in rows.itertuples()]
            for query, rows in declared().groupby("query", sort=False)
        }  # fmt: skip
        if agreement.secure and agreement.fewest:
            told["masks"] = [BEGUN_ANEW]
        few = _caution(self.table.groupby(settings.node).size().to_numpy(), len(settings.features))
        told |= {"few rows": few} if few else {}
        often = [f"{agreement.runs:,} jobs at most; more are refused."]
        often.append(QueryLimits.of(settings, self._target).sentence())
        return {**told, "outcome": [TOLD], "how often": often}

    @property
    def _target(self) -> Target:
        agreement = self.invitation.agreement
        kind = TASKS.get(agreement.table_settings.task, agreement.target_kind.kind)
        return replace(agreement.target_kind, kind=kind)

    def service(self) -> TableService:
        """What answers the coordinator; only what was agreed on."""
        agreement = self.invitation.agreement
        return TableService(
            self.invitation.site, self.table, self.folder, secure=agreement.secure, settings=agreement.table_settings,
            allowance=self.allowance, fewest=agreement.fewest or None, sites=agreement.sites,
        )  # fmt: skip

    def keep(self, service: Any) -> Path | None:
        """Keep the blend, then write the page of this site; then a job that has ended need not be repeated."""
        from kinfolk.report.site import write_site

        kept = None if service.blend is None else service.blend.save(self.folder / MODELS)
        facts = service.facts(self.invitation.agreement.name)
        if facts is not None:
            write_site(facts, self.folder / PAGE)
        if self.record and facts is not None:
            service.memory.record()
        if service.ended:
            service.memory.forget()
        return kept

    def recorded(self) -> RecordedJob:
        """The last job, for an audit."""
        site, settings = self.invitation.site, self.invitation.agreement.table_settings
        mark = job_mark(table_mark(self.table), {}, settings, secure=self.invitation.agreement.secure)
        return RecordedJob.read(site, self.folder, mark, SiteHandlers(site, self.table, {}, settings))


def _demanded(agreement: Agreement, care: Care) -> Care:
    """What the owner wants, with the noise that all sites have agreed to; the owner may want more, but not less."""
    demanded, most = agreement.demanded, agreement.noise.get(EPSILON)
    if demanded is None:
        return care
    if care.noise is not None and not (
        care.noise.multiplier >= demanded.multiplier and care.noise.delta <= demanded.delta
    ):
        raise InputError(
            f"Expected noise of at least {demanded.scale / demanded.clip:g} times the clip, as was agreed on, got "
            f"{care.noise.scale / care.noise.clip:g} times: pass a larger --noise, or neither --clip nor --noise."
        )
    if most is not None:
        epsilon(1.0, 1, demanded.delta)  # what adds it up is installed
    return care._replace(noise=care.noise or demanded, epsilon=most)


def _caution(sizes: Any, width: int) -> list[str]:
    """What nodes with few rows give away."""
    few = int(((sizes > 0) & (sizes <= width)).sum())
    return [FEW.format(few=f"{few:,}", nodes="node has" if few == 1 else "nodes have", width=width)] if few else []


def _member(invitation: Invitation) -> dict[str, str]:
    """Which site of which federation."""
    contact = invitation.contact
    return {"federation": invitation.agreement.name, "site": invitation.site, "coordinator": contact.coordinator}


def check_member(folder: Path, invitation: Invitation) -> None:
    """Refuse an invitation of another site or federation, and one that has expired before it was used."""
    path = folder / MEMBER
    if not path.exists():
        invitation.check_time()
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"Expected a new folder, {str(folder)!r} has other files: choose another --folder.")
        return
    known = read_json(path)
    if set(known) != set(_member(invitation)):
        raise InputError(f"Expected the folder of a site, {str(path)!r} is damaged: restore it, or join in another.")
    if known != _member(invitation):
        raise InputError(
            f"Expected an invitation of site {known['site']!r} of federation {known['federation']!r} for the folder "
            f"{str(folder)!r}, got one of {invitation.site!r} of {invitation.agreement.name!r}: choose another "
            "--folder."
        )


@contextlib.contextmanager
def _logging_to(path: Path) -> Any:
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("kinfolk")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


def leave(folder: Path) -> None:
    """Stop the process of a site, and forget the key that it signs in with; its models and its ledger stay."""
    if not (folder / MEMBER).exists():
        raise InputError(f"Expected the folder of a site, got {str(folder)!r}: name the one it was joined with.")
    stop_process(folder, LEAVING)
    for name in (SIGN_IN, CONSENT):
        (folder / name).unlink(missing_ok=True)


def known_keys(folder: Path) -> dict[str, str]:
    """The fingerprints of the own key of a site and of those that it has pinned."""
    if not (folder / MEMBER).exists():
        raise InputError(f"Expected the folder of a site, got {str(folder)!r}: name the one it was joined with.")
    own = {f"{read_json(folder / MEMBER).get('site')} (this site)": fingerprint_of(SiteKey.at(folder).public)}
    return own | {name: fingerprint_of(bytes.fromhex(key)) for name, key in Pins(folder).known.items()}
