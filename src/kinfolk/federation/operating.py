"""The operator's side: from an agreement to a folder with certificates, a run that can be watched, and its outcome."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas

from kinfolk.checks import InputError
from kinfolk.engine.locking import running_in
from kinfolk.federation.agreement import AGREEMENT, EDGES, Agreement
from kinfolk.federation.files import locked, made, read_json, replace_file
from kinfolk.federation.flower.certificates import AUTHORITY, Contact, CoordinatorKey, make_certificates
from kinfolk.federation.flower.coordinator import FITTED, KEY, MEMBERS, OUTCOME, PROGRESS, TRAFFIC
from kinfolk.federation.flower.plan import Plan
from kinfolk.federation.flower.processes import (
    check_flower,
    stop_process,
    stopped_by_signals,
)
from kinfolk.federation.flower.superlink import CERTIFICATES, SuperLink
from kinfolk.federation.invitation import Invitation, admitted_keys, invite, read_invited, write_invited
from kinfolk.federation.named import TAILORED
from kinfolk.serving.ports import is_loopback
from kinfolk.tables.reading import read_table

STATUS = "status.json"
GOES_ON = "The run was stopped; kinfolk federation run goes on from there."
STOPPING = 90.0  # seconds for all processes to end


@dataclass(frozen=True)
class Status:
    """What is known of a federation while it runs, as plain data."""

    phase: str = "starting"  # starting, waiting, running, ended, failed, stopped
    online: list[str] = field(default_factory=list)
    run: str = ""  # what is run now: alone, pooled, tailored
    rows: list[dict[str, Any]] = field(default_factory=list)  # of the history of all that was run so far
    why: str = ""  # it has ended, or failed

    @property
    def last(self) -> dict[str, Any]:
        """The last row of the history of what is run now."""
        return self.rows[-1] if self.rows else {}


# ---------------------------------------------------------------------- before a run


def make_federation(folder: Path, agreement: Agreement, edges: Path | None = None) -> None:
    """Make the folder of a federation: the agreement, the graph, certificates and the coordinator's key."""
    check_flower()
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"Expected a new folder, {str(folder)!r} has files: choose another name; of a federation that is there, "
            f"change its {AGREEMENT}."
        )
    agreement.check()
    pairs = None if edges is None else read_table(edges)
    made(folder).chmod(0o700)
    if pairs is not None:
        replace_file(folder / EDGES, pairs.to_csv(index=False).encode())
    try:
        agreement.graph(folder)
    except InputError:
        (folder / EDGES).unlink(missing_ok=True)
        raise
    make_certificates(folder / CERTIFICATES, [agreement.address.rpartition(":")[0]])
    CoordinatorKey.at(folder / KEY)
    agreement.write(folder)


def invitation_for(folder: Path, site: str, path: Path, days: float) -> Invitation:
    """Write the invitation of a site; it replaces one that was made before."""
    agreement = Agreement.read(folder)
    if not (folder / CERTIFICATES / AUTHORITY).exists():
        raise InputError(f"Expected certificates in {str(folder)!r}, found none: make the federation anew.")
    contact = Contact.of(agreement.address, folder / CERTIFICATES, CoordinatorKey.at(folder / KEY))
    return invite(folder, agreement, site, contact, path, days)


# ---------------------------------------------------------------------- a run


def operate(
    folder: Path, *, end_sites: bool = True, look: Callable[[Status], None] = lambda status: None
) -> dict[str, Any]:
    """Run the federation of a folder to its end; the same call goes on where one before was stopped.

    Parameters
    ----------
    folder : Path
        Of the federation.
    end_sites : bool
        Whether the sites are told to end afterwards; otherwise they wait for the next run.
    look : callable
        Gets the status about once a second.

    Returns
    -------
    dict
        How it went: ``stopped``, ``rounds``, ``notes``, and the last row of everything that was run.
    """
    agreement = Agreement.read(folder)
    keys = admitted_keys(folder, agreement)
    graph, algorithms = agreement.graph(folder), agreement.algorithms()
    host, _, port = agreement.address.rpartition(":")
    with contextlib.closing(locked(folder)), stopped_by_signals() as stop:
        options = {"rounds": agreement.rounds, "seed": agreement.seed, "tolerance": agreement.tolerance or None}
        main = algorithms.pop(TAILORED)
        own = agreement.model if "model" in type(main).own_choice else None
        Plan(
            agreement.name, graph, keys, agreement.schema, main, agreement.public_points(), options,
            agreement.patience, algorithms, own, _fit_of(agreement),
        ).write(folder)  # fmt: skip
        for name in (PROGRESS, OUTCOME, TRAFFIC):
            (folder / name).unlink(missing_ok=True)
        watcher = _Watcher(folder, keys, look, stop)
        try:
            watcher.tell(Status())
            with SuperLink(
                folder, int(port), keys, host.strip("[]") if is_loopback(host.strip("[]")) else "0.0.0.0"
            ) as link:
                number = link.start_run(end_sites=end_sites)
                outcome = link.wait_for_run(number, math.inf, lambda: watcher.look(link))
        except InputError as error:
            watcher.tell(replace(watcher.status, phase="failed", online=[], why=str(error)))
            raise
        except KeyboardInterrupt:
            watcher.tell(replace(watcher.status, phase="stopped", online=[], why=GOES_ON))
            raise
        watcher.tell(replace(read_status(folder), phase="ended", why=outcome["stopped"]))
        return outcome


def _fit_of(agreement: Agreement) -> dict[str, Any] | None:
    if agreement.job != "fit":
        return None
    return {
        "settings": agreement.table_settings.to_toml(),
        "secure": agreement.secure,
        "fewest": agreement.fewest or None,
    }


class _Watcher:
    """Puts together what is known of a run, and keeps it where others can read it."""

    def __init__(
        self, folder: Path, keys: Mapping[str, bytes], look: Callable[[Status], None], stop: threading.Event
    ) -> None:
        self.folder, self.keys, self.status, self._look, self._stop = folder, keys, Status(), look, stop

    def look(self, link: SuperLink) -> None:
        """See who is there, and how far the run is."""
        if self._stop.is_set():
            raise KeyboardInterrupt
        online = link.online()
        invited = read_invited(self.folder)
        known = [name for name in online if name in invited and invited[name].public.encode() == self.keys.get(name)]
        new = [name for name in known if not invited[name].joined]
        if new:
            write_invited(self.folder, invited | {name: replace(invited[name], joined=True) for name in new})
        self.tell(_status(self.folder, online))

    def tell(self, status: Status) -> None:
        """Keep a status, and show it."""
        self.status = status
        replace_file(self.folder / STATUS, json.dumps(asdict(status)).encode())
        self._look(status)


def _status(folder: Path, online: list[str]) -> Status:
    rows = progress_rows(folder)
    return Status("running" if rows else "waiting", online, rows[-1]["run"] if rows else "", rows)


def progress_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of the history that the coordinator has written so far."""
    path = folder / PROGRESS
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    try:
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row for row in rows if row["run"] and row["round"] >= 0]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"Expected the progress of a run in {str(path)!r}, it is damaged: remove it.") from error


def read_status(folder: Path) -> Status:
    """What is known of a federation; a run whose process is gone has been stopped."""
    Agreement.read(folder)
    kept = read_json(folder / STATUS)
    if set(kept) - set(Status.__dataclass_fields__):
        raise InputError(f"Expected a status of kinfolk in {str(folder / STATUS)!r}, it is damaged: remove it.")
    known = Status(**kept) if kept else Status("not started")
    known = replace(known, rows=progress_rows(folder) or known.rows)
    if known.phase in ("starting", "waiting", "running") and running_in(folder) is None:
        return replace(known, phase="stopped", online=[], why=GOES_ON)
    return known


def stop_operation(folder: Path) -> bool:
    """Stop the run of a federation; whether there was one."""
    Agreement.read(folder)
    return stop_process(folder, STOPPING)


# ---------------------------------------------------------------------- after a run


def read_members(folder: Path) -> dict[str, dict[str, Any]]:
    """What the coordinator knows of every site; nothing before they have joined."""
    found = read_json(folder / MEMBERS)
    if not all(isinstance(each, dict) and {"nodes", "with_rows", "key"} <= set(each) for each in found.values()):
        raise InputError(
            f"Expected the members of a federation in {str(folder / MEMBERS)!r}, it is damaged: remove it."
        )
    return found


def read_traffic(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What every site has sent so far, as far as the coordinator can see it."""
    return read_json(folder / TRAFFIC)


def read_outcome(folder: Path) -> dict[str, Any]:
    """How the last run has ended; refused if it has not."""
    outcome: dict[str, Any] = read_json(folder / OUTCOME)
    if "stopped" not in outcome:
        raise InputError(f"Expected a run that has ended in {str(folder)!r}, found none: kinfolk federation run.")
    return outcome


def read_fitted(folder: Path) -> dict[str, Any]:
    """What came of learning together from tables."""
    return read_json(folder / FITTED)


def history_of(rows: list[dict[str, Any]], run: str) -> pandas.DataFrame:
    """The history of something that was run."""
    own = [{name: value for name, value in row.items() if name != "run"} for row in rows if row["run"] == run]
    return pandas.DataFrame(own).drop_duplicates("round", keep="last").set_index("round") if own else pandas.DataFrame()
