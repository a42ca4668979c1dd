"""Service: one site of a federation, without a transport: bytes in, bytes out.

It owns the rows, the key and a folder, and answers whoever brings blobs: a socket, or anything else. It never raises on
what it is sent: it refuses with a sentence. A ``SiteService`` runs node programs; ``tables.service`` has the one that
answers queries about a table.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kinfolk.algorithms.catalog import rebuilt
from kinfolk.checks import InputError, check_parameters, listing
from kinfolk.engine.protocol import Algorithm, Models
from kinfolk.engine.specs import Spec, differences, spec_of
from kinfolk.engine.wire import HEAD, KINDS, MAGIC, Blob, Expected, Key, WireError, read, written
from kinfolk.federation.allowance import Allowance
from kinfolk.federation.files import locked, replace_file
from kinfolk.federation.joining import MOST_JOIN, MOST_TEXT, Introduction, Join, Schema, read_hello
from kinfolk.federation.keys import Pins, SiteKey, fingerprint_of
from kinfolk.federation.ledger import Entry, Ledger
from kinfolk.federation.messages import refusal
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.site_run import JOINED, Care, SiteRun, run_folder
from kinfolk.network.public import PublicPoints

log = logging.getLogger(__name__)
MARK, CURRENT, ENDED = "rows", "current", "ended"


class Agreed(NamedTuple):
    """What the owner of a site has agreed to."""

    schema: Schema  # what is told on joining
    algorithms: Sequence[Algorithm[Any]]  # what is run, with the own choices of this site
    sites: Sequence[str]  # with whom
    public: PublicPoints | None = None  # points to predict

    def check_hello(self, schema: Schema) -> None:
        """Refuse to tell anything else."""
        if schema != self.schema:
            raise InputError(
                "Expected the agreement that the owner of this site has seen, got another: send a new invitation."
            )

    def check_join(self, join: Join) -> None:
        """Refuse other neighbours, other points to predict, and units where there should be none."""
        strangers = [peer.name for peer in join.peers.values() if peer.name not in self.sites]
        if strangers:
            raise InputError(f"Expected neighbours among the agreed sites, got {listing(strangers)}: invite anew.")
        public = join.scene.public
        if public is not None and (self.public is None or not np.array_equal(public, self.public.points)):
            raise InputError("Expected the public points that were agreed on, got others: send a new invitation.")
        if (join.units is not None) != bool(self.schema.scaled):
            raise InputError("Expected units where columns are scaled, and only there: send a new invitation.")

    def algorithm(self, spec: Spec) -> Algorithm[Any] | None:
        """The agreed algorithm that a spec stands for; None: it is another."""
        for each in self.algorithms:
            own = type(each).own_choice
            if without(spec, own) == json.loads(json.dumps(without(spec_of(each), own))):
                return each
        return None


class Service(ABC):
    """One site of a federation: its name, its key, and what it does with messages.

    Parameters
    ----------
    name : str
        The name of the site.
    folder : Path
        Where its key, the keys of others and the state of the present run are kept.
    """

    def __init__(self, name: str, folder: str | Path) -> None:
        self.name, self.folder = name, Path(folder)
        self._lock = locked(self.folder)
        self.key, self.ledger = SiteKey.at(self.folder), Ledger(self.folder)

    @property
    @abstractmethod
    def kinds(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """What is answered, by kind of message."""

    @property
    def most(self) -> int:
        """The most bytes that a message to this site may have now."""
        return MOST_JOIN

    @property
    def fingerprint(self) -> str:
        """Of the key of this site, to be compared with what others see."""
        return fingerprint_of(self.key.public)

    def answer(self, content: bytes) -> bytes:
        """Answer a message; what cannot be answered is refused with a sentence."""
        try:
            kind, key = peek(content)
        except WireError as error:
            return refusal(Key(), str(error))
        try:
            if kind not in self.kinds:
                raise WireError(f"Expected a message of the kind {listing(self.kinds)}, got {kind!r}.")
            return self.kinds[kind](content)
        except InputError as error:
            return refusal(key, str(error))
        except Exception as error:  # its text may hold values of rows: it stays here
            log.exception("site %s cannot answer", self.name)
            return refusal(key, f"it failed ({type(error).__name__}); its own log has more")

    def end(self) -> None:
        """The federation has ended: the run is over, and rows or the agreement may be others next time."""
        replace_file(self.folder / ENDED, b"")

    @property
    def ended(self) -> bool:
        """Whether the federation has ended."""
        return (self.folder / ENDED).exists()

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.close()


class SiteService(Service):
    """One site of a federation that runs node programs.

    Parameters
    ----------
    name : str
        The name of the site.
    rows : SiteRows
        Its rows.
    folder : Path
        Where its key, the keys of others and the state of the present run are kept.
    algorithm : Algorithm, optional
        Needed if the algorithm of the federation holds code, such as an estimator or a module of torch: the owner of
        the site gives it, from a package that is installed here, and it has to be the same everywhere, but for what is
        a site's own choice, such as the model of FedRelax.
    agreed : Agreed, optional
        What the owner has agreed to; anything else is refused. None: all that kinfolk ships, with anybody.
    allowance : Allowance, optional
        How often the site may be asked; None: without bounds.
    care : Care
        Noise on what leaves, and whether requests are kept for an audit; by default neither.
    """

    def __init__(
        self,
        name: str,
        rows: SiteRows,
        folder: str | Path,
        algorithm: Algorithm[Any] | None = None,
        *,
        agreed: Agreed | None = None,
        allowance: Allowance | None = None,
        care: Care = Care(),
    ) -> None:
        rows.check()
        super().__init__(name, folder)
        self.rows, self.algorithm = rows, algorithm
        self.agreed, self.allowance, self.care = agreed, allowance, care
        self.run: SiteRun | None = None  # the present one
        self._go_on()

    @property
    def most(self) -> int:
        """The most bytes that a message to this site may have now."""
        return MOST_JOIN if self.run is None else max(MOST_JOIN, self.run.terms.request.largest)

    @property
    def models(self) -> Models:
        """The tailored models of the nodes of this site."""
        if self.run is None:
            raise InputError("Expected a run for its models, this site has not joined one: wait.")
        return self.run.models

    def close(self) -> None:
        """Let go of the folder."""
        if self.run is not None:
            self.run.close()
        super().close()

    # ------------------------------------------------------------------ messages

    @property
    def kinds(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """What is answered, by kind of message."""
        return {"hello": self._hello, "join": self._join, "request": self._request}

    def _hello(self, content: bytes) -> bytes:
        schema = read_hello(content)
        if self.agreed is not None:
            self.agreed.check_hello(schema)
        introduction = Introduction.of(self.name, self.rows, schema, self.key.public)
        encoded = introduction.encode()
        told = "names of nodes and columns, which nodes have rows, a public key"
        told += ", which classes occur" if introduction.classes else ""
        told += ", number, mean and squares of each scaled column" if schema.scaled else ""
        self.ledger.add(b"", 0, [Entry("coordinator", told, introduction.moments.size, len(encoded))])
        return encoded

    def _request(self, content: bytes) -> bytes:
        _, key = peek(content)
        if self.run is None or self.run.join.key.run != key.run:
            raise InputError("Expected a request of the run that this site has joined, got one of another: join first.")
        return self.run.answer(content)

    def _join(self, content: bytes) -> bytes:
        """Take part in a run; the same join again is the same run."""
        run = self.run
        if run is None or content != run.joined:
            join = Join.decode(content, list(self.rows.nodes))
            if self.agreed is not None:
                self.agreed.check_join(join)
            run = self._made(join)
            Pins(self.folder).check(join.peers)
            if self.allowance is not None:
                self.allowance.begin(join.key.run, self.name, self.folder)
            if self.run is not None:
                self.run.close()
            run.keep(content)
            replace_file(self.folder / MARK, self.rows.mark.encode())
            replace_file(self.folder / CURRENT, join.key.run.hex().encode())
            (self.folder / ENDED).unlink(missing_ok=True)
            self.run = run
        return Blob("joined", run.join.key, written(spec=spec_of(run.algorithm))).encode()

    # ------------------------------------------------------------------ a run

    def _made(self, join: Join) -> SiteRun:
        algorithm = self._algorithm(join.spec)
        rows, folder = self.rows.with_features(join.features), run_folder(self.folder, join.key.run.hex())
        return SiteRun(join, algorithm, rows, self.key, self.name, folder, self.ledger, self.allowance, self.care)

    def _algorithm(self, spec: Spec) -> Algorithm[Any]:
        """What is run: rebuilt from names and numbers, or the owner's own, which has to be the same."""
        if self.agreed is not None:
            return self._agreed(spec)
        if self.algorithm is not None and _kind(spec) == _kind(spec_of(self.algorithm)):
            own = type(self.algorithm).own_choice
            found = list(differences(without(spec, own), without(spec_of(self.algorithm), own), "the algorithm"))
            if found:
                raise InputError(
                    f"Expected the algorithm of the federation at site {self.name!r}: {'; '.join(found[:3])}. Give the "
                    "site the same one."
                )
            return self.algorithm
        return algorithm_of(spec)

    def _agreed(self, spec: Spec) -> Algorithm[Any]:
        """What the owner has agreed to; with anything else something else would leave the site."""
        assert self.agreed is not None
        found = self.agreed.algorithm(spec)
        if found is None:
            raise InputError(
                f"Expected an algorithm that the owner of site {self.name!r} has agreed to run, got another: send a "
                "new invitation."
            )
        return found

    def _go_on(self) -> None:
        """The run that a process before this one was in, to where it was."""
        current = self.folder / CURRENT
        if not current.exists():
            return
        folder = run_folder(self.folder, current.read_text())
        if not (folder / JOINED).exists():
            return
        changed = kept_mark(self.folder) != self.rows.mark
        if changed and self.ended:
            return
        if changed:
            raise InputError(
                f"Expected the rows that site {self.name!r} has begun the present run with, got others: bring them "
                f"back, or remove {str(folder)!r} to join anew."
            )
        join = Join.decode((folder / JOINED).read_bytes(), list(self.rows.nodes))
        if self.agreed is not None and self.agreed.algorithm(join.spec) is None:
            return  # of an agreement that is no longer
        self.run = self._made(join)
        self.run.go_on()


def kept_mark(folder: Path) -> str:
    """The mark of the rows that a site has taken part with, as its folder has it."""
    path = folder / MARK
    if not path.is_file():
        raise InputError(
            f"Expected the mark of the rows of the present run in {str(path)!r}, found none: restore it, or remove "
            f"{str(folder / 'runs')!r} to join anew."
        )
    return path.read_text(errors="replace")


def peek(content: bytes) -> tuple[str, Key]:
    """The kind and the key of a message."""
    if len(content) < HEAD.size:
        raise WireError("Expected a message of kinfolk, got fewer bytes than its head has.")
    magic, kind, run, query, number, _, _ = HEAD.unpack_from(content)
    if magic != MAGIC or kind >= len(KINDS):
        raise WireError("Expected a message of kinfolk, got something else: install the same version everywhere.")
    return KINDS[kind], Key(run, query, number)


def without(spec: Spec, fields: Sequence[str]) -> Spec:
    """A spec without some of its fields."""
    known = spec.get("fields")
    if not isinstance(known, dict):
        return spec
    return {**spec, "fields": {name: each for name, each in known.items() if name not in fields}}


def _kind(spec: Spec) -> Any:
    return spec.get("type") if isinstance(spec, dict) else None


def algorithm_of(spec: Spec) -> Algorithm[Any]:
    """The algorithm that a spec stands for; it may name only what kinfolk ships, and no code.

    >>> from kinfolk import GTVMin
    >>> algorithm_of(spec_of(GTVMin(lam=0.5))).lam
    0.5
    """
    try:
        found = rebuilt(spec)
        check_parameters(found)
    except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise WireError(
            f"Expected an algorithm as a name and numbers, got something else ({type(error).__name__})."
        ) from error
    if not isinstance(found, Algorithm):
        raise WireError(f"Expected an algorithm, got {type(found).__name__}.")
    return found


def read_joined(content: bytes, key: Key) -> Spec:
    """What a site runs after it has joined."""
    blob = Blob.decode(content, Expected(("joined",), text=MOST_TEXT))
    if blob.key != key:
        raise WireError("Expected that the site has joined this run, it has joined another.")
    spec: Spec = read(blob.text, {"spec": dict})["spec"]
    return spec
