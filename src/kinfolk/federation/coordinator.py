"""The coordinator: it knows the graph and no rows, brings requests to the sites, and goes on after a crash.

It needs a ``Post``, which carries blobs to sites and back. With a folder it keeps a journal of all answers: after a
crash ``fit`` is called again with the same arguments, what the journal has is not asked for again, so the run comes to
where it was, and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.checks import InputError
from kinfolk.engine.protocol import Algorithm, Coordinated, Missing, Replies
from kinfolk.engine.specs import Spec, differences, spec_of
from kinfolk.engine.wire import Key
from kinfolk.federation.carrier import FederationCarrier, Post, Record, refusal_in
from kinfolk.federation.files import Journal, locked
from kinfolk.federation.gathering import Members
from kinfolk.federation.joining import MOST_TEXT, Introduction, Join, Schema, introduction_expected, terms_of
from kinfolk.federation.service import read_joined, without
from kinfolk.federation.traffic import Traffic
from kinfolk.network.fingerprint import fingerprint
from kinfolk.network.graph import Graph
from kinfolk.network.problem import Problem
from kinfolk.network.site import scene_of

JOURNAL = "answers"
ANY = Schema()


class Federation:
    """An engine whose sites are elsewhere, each beside its rows.

    Parameters
    ----------
    graph : Graph
        Who may be kin.
    sites : sequence of str
        The names of all sites, in the order in which they are numbered.
    post : Post
        What carries messages.
    schema : Schema
        What the sites have to agree on.
    public : array or PublicPoints, optional
        Points on which neighbours compare predictions.
    folder : Path, optional
        Where answers are kept, so that a coordinator that dies can go on; None: it cannot.
    patience : float
        Seconds until a site that does not answer counts as away.
    name : str
        Of the federation.
    """

    def __init__(
        self,
        graph: Graph,
        sites: Sequence[str],
        post: Post,
        schema: Schema = ANY,
        public: Any = None,
        *,
        folder: Path | None = None,
        patience: float = 60.0,
        name: str = "kinfolk",
    ) -> None:
        self.graph, self.sites, self.post, self.schema, self.public = graph, list(sites), post, schema, public
        self.folder, self.patience, self.name = folder, patience, name
        self.members: Members | None = None
        self.traffic = Traffic()  # of all runs
        self._runs = 0
        self._lock = None if folder is None else locked(folder)
        self._journals: list[Journal] = []

    def close(self) -> None:
        """Let go of the folder."""
        for journal in self._journals:
            journal.close()
        if self._lock is not None:
            self._lock.close()

    def gather(self) -> Problem:
        """Ask all sites who they are; the problem that they have together, without rows."""
        most = introduction_expected(self.graph.node_count, len(self.schema.scaled)).largest
        answers = self._ask(dict.fromkeys(self.sites, self.schema.hello(self.name)), most)
        found = {name: self._introduced(name, answers[name]) for name in self.sites}
        self.members = Members.of(self.graph, self.schema, found, self.public)
        return self.members.problem

    def _introduced(self, name: str, answer: bytes | Missing) -> Introduction:
        return Introduction.decode(_accepted(name, answer), self.graph.node_count, len(self.schema.scaled))

    def open(self, problem: Problem, algorithm: Algorithm[Any]) -> FederationCarrier:
        """Tell every site its neighbourhood and what is run; refuse in a sentence who cannot take part."""
        if self.members is None or problem is not self.members.problem:
            raise InputError("Expected the problem of this federation, got another: pass what gather() returns.")
        sends, replies = algorithm.sends(problem), _replies(algorithm, problem)
        if sends is None or replies is None:
            lacking = "sends()" if sends is None else "replies()"
            raise InputError(
                f"Expected an algorithm that declares all its messages, {type(algorithm).__name__} does not: give it a "
                f"method {lacking}."
            )
        self._runs += 1
        journal = self._journal()
        record = Record(journal, fingerprint(repr(spec_of(algorithm)), *self.members.fingerprints.values()))
        joins = self._joins(algorithm, Key(record.run), replies)
        joined = partial(self._join, joins, spec_of(algorithm), type(algorithm).own_choice)
        if not record.known:
            joined()  # a run that goes on joins when there is something to ask: the sites may be in a later one
        terms = [terms_of(join.scene, join.homes, self.graph.node_count, sends, replies) for join in joins]
        return FederationCarrier(self.post, self.sites, terms, record, self.patience, joined, self.traffic)

    def _journal(self) -> Journal | None:
        """Of this run; those that were begun before a crash are found again in their order."""
        if self.folder is None:
            return None
        self._journals.append(Journal(self.folder / f"{JOURNAL}-{self._runs}"))
        return self._journals[-1]

    def _join(self, joins: Sequence[Join], spec: Spec, own: Sequence[str]) -> None:
        """Bring every site its join; each must answer that it runs the same."""
        blobs = {name: join.encode() for name, join in zip(self.sites, joins, strict=True)}
        for name, answer in self._ask(blobs, MOST_TEXT).items():
            theirs = read_joined(_accepted(name, answer), joins[0].key)
            ours = json.loads(json.dumps(spec))
            found = list(differences(without(ours, own), without(theirs, own), f"the algorithm at site {name!r}"))
            if found:
                raise InputError(f"Expected the same algorithm at all sites: {'; '.join(found[:3])}.")

    def _ask(self, blobs: Mapping[str, bytes], most: int) -> Mapping[str, bytes | Missing]:
        return self.post.ask(blobs, dict.fromkeys(blobs, most), self.patience)

    def _joins(self, algorithm: Algorithm[Any], key: Key, replies: Replies) -> list[Join]:
        members = self.members
        assert members is not None
        spec, out = spec_of(algorithm), []
        for site in range(len(self.sites)):
            scene = scene_of(members.problem, *members.scope(site))
            homes = members.home[scene.outside]
            peers = {other: members.peer(other) for other in np.unique(homes).tolist()}
            features, nodes = members.problem.features, self.graph.node_count
            out.append(
                Join(key, site, scene, homes, spec, features, nodes, peers, replies, members.test, members.units)
            )
        return out


def _replies(algorithm: Algorithm[Any], problem: Problem) -> Replies | None:
    return algorithm.replies(problem) if isinstance(algorithm, Coordinated) else Replies()


def _accepted(name: str, answer: bytes | Missing) -> bytes:
    """An answer that is no refusal."""
    if isinstance(answer, Missing):
        raise InputError(f"Expected an answer of site {name!r}, got none ({answer.why}): start it, and try again.")
    refused = refusal_in(answer)
    if refused is not None:
        raise InputError(f"Site {name!r} refuses. {refused[0]}")
    return answer
