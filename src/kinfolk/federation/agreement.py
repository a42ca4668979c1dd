"""The agreement of a federation, ``federation.toml``: who takes part, about which columns, and what is run.

It holds no secret and no row. The coordinator plans from it, and every invitation carries it, so that the owner of a
site sees what is asked for before anything leaves.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas
import tomli_w

from kinfolk.checks import AtLeast, Between, InputError, check_parameters, listing, printable
from kinfolk.engine.noise import Noise
from kinfolk.engine.protocol import Algorithm
from kinfolk.federation.files import replace_file
from kinfolk.federation.joining import Schema
from kinfolk.federation.named import ALONE, COMPARISONS, DEFAULT, TAILORED, compared_with, model_of, read_algorithm
from kinfolk.federation.tables.kept import SITE
from kinfolk.federation.tables.schema import check_settings
from kinfolk.network import graphs
from kinfolk.network.fingerprint import fingerprint
from kinfolk.network.graph import Graph
from kinfolk.network.problem import Problem
from kinfolk.network.public import PublicPoints
from kinfolk.tables.graph_source import graph_of_edges, named_ends
from kinfolk.tables.settings import Settings
from kinfolk.tables.target import Target
from kinfolk.typing import Floats

AGREEMENT, EDGES = "federation.toml", "edges.csv"
EPSILON, DEMANDED = "epsilon", ("clip", "scale", "delta", "epsilon")
NUMBER, RESERVED = "number", ("coordinator", "relay")  # places that accounts and audits name beside sites
LONGEST = 60  # name of a site
HEAD = "# What the sites of this federation agree on. Change it before inviting; afterwards, invite anew.\n\n"
Kind = str | tuple[str, ...]  # "number", or the categories


@dataclass(frozen=True)
class Agreement:
    """What the sites of a federation agree on.

    Parameters
    ----------
    name : str
        Of the federation.
    address : str
        Host and port of the SuperLink, as sites reach it.
    sites : tuple of str
        Their names.
    target : str
        The column to predict.
    features : dict
        For the name of every column to predict from, ``"number"`` or the categories that it may have.
    node : str, optional
        The column with the node of every row; None: a site is one node, with the name of the site.
    classes : tuple of str
        The values of the target; none: it is a number.
    algorithm : dict
        What is run: the name of an algorithm as ``type``, and its parameters; see ``read_algorithm``.
    model : str
        The model at a node, for FedRelax; a site may choose another.
    compare : tuple of str
        What is run beside: ``"alone"``, ``"pooled"``.
    scale : bool
        Whether columns of numbers get mean 0 and deviation 1 over all sites; missing values are then filled with means.
    public : int
        How many public points are drawn, for FedRelax.
    test : float
        The share of rows that every site holds out.
    job : {"run", "fit"}
        Whether the algorithm is run, or sites learn together from their tables, as ``kinfolk fit`` does from one.
    settings : dict
        For ``"fit"``: more settings of ``learn``, such as members and lam.
    secure : bool
        For ``"fit"``: whether sums over sites are masked, so that nobody sees those of one site.
    runs : int
        How many runs a site takes part in, at most: one for the algorithm, and one for everything it is compared with,
        each time that the federation is run. With ``"fit"`` a job is one.
    fewest : int
        For ``"fit"``: if a site is away for ``patience`` seconds, all begins anew without it as long as so many are
        left; 0: all are needed. With masked sums the coordinator can then tell what that site had added to them.
    noise : dict
        For ``"run"``: the least noise that every site adds to what its nodes send, ``clip`` and ``scale`` as of
        ``kinfolk.engine.noise.Noise``, and perhaps ``delta``, and ``epsilon``: the largest ε that may be spent on any
        receiver. Sites see to it themselves. None: each decides for itself.
    rounds, tolerance, seed, patience
        At most so many rounds in a run, until the residual is so small; the seed of all draws; seconds until a site
        that does not answer is away.
    """

    name: str
    address: str
    sites: tuple[str, ...]
    target: str
    features: Mapping[str, Kind]
    node: str | None = None
    classes: tuple[str, ...] = ()
    algorithm: Mapping[str, Any] = field(default_factory=lambda: dict(DEFAULT))
    model: str = "linear"
    compare: tuple[str, ...] = (ALONE,)
    scale: bool = True
    public: Annotated[int, Between(1, 100_000)] = 100
    test: Annotated[float, Between(0, 1, open_high=True)] = 0.2
    runs: Annotated[int, AtLeast(1)] = 20
    rounds: Annotated[int, AtLeast(1)] = 100
    tolerance: Annotated[float, AtLeast(0)] = 1e-4
    seed: Annotated[int, AtLeast(0)] = 0
    patience: Annotated[float, AtLeast(1)] = 300.0
    job: Literal["run", "fit"] = "run"
    settings: Mapping[str, Any] = field(default_factory=dict)
    noise: Mapping[str, float] = field(default_factory=dict)
    secure: bool = False
    fewest: Annotated[int, AtLeast(0)] = 0

    # ------------------------------------------------------------------ as text

    def write(self, folder: Path) -> None:
        """Write the agreement into the folder of the federation."""
        replace_file(folder / AGREEMENT, (HEAD + as_text(self.to_toml())).encode())

    @classmethod
    def read(cls, folder: Path) -> Agreement:
        """The agreement in the folder of a federation."""
        path = folder / AGREEMENT
        if not path.is_file():
            raise InputError(
                f"Expected the folder of a federation, found no {AGREEMENT} in {str(folder)!r}: make one with kinfolk "
                "federation new."
            )
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"Expected TOML in {str(path)!r}, it cannot be read ({error}): correct it.") from error
        return cls.of(found, str(path))

    def to_toml(self) -> dict[str, Any]:
        """The agreement as plain data, without what is not set; the algorithm comes last."""
        found = {field_.name: getattr(self, field_.name) for field_ in dataclasses.fields(self)}
        found |= {"sites": list(self.sites), "classes": list(self.classes), "compare": list(self.compare)}
        found["features"] = {name: _written(kind) for name, kind in self.features.items()}
        found["algorithm"] = dict(self.algorithm)
        found["settings"], found["noise"] = dict(self.settings), dict(self.noise)
        last = {name: found.pop(name) for name in ("features", "algorithm", "settings", "noise")}
        return {name: value for name, value in (found | last).items() if value is not None and value not in ([], {})}

    @classmethod
    def of(cls, found: Mapping[str, Any], where: str) -> Agreement:
        """An agreement from plain data; ``where`` it stands, for sentences."""
        known = {each.name: each for each in dataclasses.fields(cls)}
        unknown = [name for name in found if name not in known]
        lacking = [name for name in ("name", "address", "sites", "target", "features") if name not in found]
        if unknown or lacking:
            raise InputError(
                f"Expected an agreement in {where!r}, {'it lacks' if lacking else 'got an unknown'} "
                f"{(lacking or unknown)[0]!r:.60}: known are {', '.join(known)}."
            )
        features = found["features"]
        texts = {"sites": found["sites"], "classes": found.get("classes", []), "compare": found.get("compare", [ALONE])}
        wrong = [name for name, value in texts.items() if not _are_texts(value)]
        if wrong or not isinstance(features, dict) or not all(map(_is_kind, features.values())):
            raise InputError(
                f"Expected a list of texts as {(wrong or ['features'])[0]!r} in {where!r}, or for a feature {NUMBER!r} "
                "or a list of its categories, got something else: correct it."
            )
        if not all(isinstance(found.get(name, {}), dict) for name in ("algorithm", "settings", "noise")):
            raise InputError(
                f"Expected [algorithm] with a type, [settings] and [noise] in {where!r}, got something else: correct "
                "it."
            )
        kinds = {name: kind if isinstance(kind, str) else tuple(kind) for name, kind in features.items()}
        made = cls(**{**found, **{name: tuple(value) for name, value in texts.items()}, "features": kinds})
        made.check()
        return made

    def check(self) -> None:
        """Refuse an agreement that cannot work."""
        check_parameters(self)
        texts = {"name": self.name, "address": self.address, "target": self.target, "model": self.model}
        wrong = [name for name, value in texts.items() if not isinstance(value, str) or not value]
        if wrong or not isinstance(self.node, str | None) or self.node == "":
            raise InputError(f"Expected a text as {(wrong or ['node'])[0]!r} of the agreement, got none: correct it.")
        host, _, port = self.address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
            raise InputError(f"Expected an address such as hospital.example:9000, got {self.address!r:.80}.")
        _check_names(self.sites)
        if not self.features or self.target in self.features or self.node in (self.target, *self.features):
            raise InputError(
                f"Expected features other than the target {self.target!r} and the node, got {listing(self.features)}."
            )
        if len(set(self.columns)) < len(self.columns):
            raise InputError("Expected columns whose names differ from those of categories, got one twice: rename it.")
        if len(self.classes) == 1 or len(set(self.classes)) < len(self.classes):
            raise InputError(f"Expected two or more different classes, got {listing(self.classes)}.")
        strange = [name for name in self.compare if name not in COMPARISONS]
        if strange:
            raise InputError(f"Expected comparisons among {', '.join(COMPARISONS)}, got {strange[0]!r:.60}.")
        model_of(self.model, self.target_kind)
        self.algorithms()
        if self.job == "fit":
            check_settings(self.table_settings)
        if self.noise:
            self._check_noise()
        if self.fewest and not 2 <= self.fewest <= len(self.sites):
            raise InputError(
                f"Expected fewest from 2 to {len(self.sites)} sites, or 0 where all are needed, got {self.fewest}."
            )

    def _check_noise(self) -> None:
        """Refuse noise that is none, and what cannot be learnt with it."""
        if self.job == "fit":
            raise InputError(
                "Expected no [noise] where tables are learnt from, as not all that is asked there can bear it: leave "
                "it out; --secure masks sums."
            )
        strange = [name for name, value in self.noise.items() if name not in DEMANDED or not _is_positive(value)]
        if strange or not {"clip", "scale"} <= set(self.noise):
            raise InputError(
                f"Expected positive numbers as clip, scale, and perhaps delta and epsilon, in [noise], got "
                f"{listing(strange or self.noise)}: correct it."
            )
        demanded = self.demanded
        assert demanded is not None
        check_parameters(demanded)
        problem = self.problem(graphs.complete(len(self.sites)))
        for each in self.algorithms().values():
            sends = each.sends(problem)
            demanded.check(each, sends)
            exact = [sent.content for sent in (sends.coordinator.values() if sends else ()) if sent.read_exactly]
            if exact:
                raise InputError(
                    f"Expected algorithms with noise on all that is sent of rows, of {type(each).__name__} the "
                    f"coordinator reads {exact[0]!r} without: choose another, GTVMin with steps published, or leave "
                    "[noise] out."
                )

    # ------------------------------------------------------------------ what follows

    @property
    def demanded(self) -> Noise | None:
        """The least noise that every site adds to what its nodes send; None: each decides for itself.

        >>> Agreement("f", "a:1", ("a", "b"), "y", {"x": "number"}, noise={"clip": 1.0, "scale": 8.0}).demanded
        Noise(clip=1.0, scale=8.0, delta=1e-05)
        """
        given = {name: float(value) for name, value in self.noise.items() if name != EPSILON}
        return Noise(**given) if given else None

    @property
    def columns(self) -> list[str]:
        """The features as learning sees them: a column for a number, and one for every category."""
        return [column for name, kind in self.features.items() for column in _columns(name, kind)]

    @property
    def schema(self) -> Schema:
        """What a coordinator asks sites for."""
        scaled = tuple(name for name, kind in self.features.items() if kind == NUMBER) if self.scale else ()
        about = fingerprint(json.dumps(self.to_toml(), sort_keys=True))
        return Schema(self.columns, "classes" if self.classes else "numbers", scaled, about)

    @property
    def target_kind(self) -> Target:
        """The target as models see it."""
        return Target(self.classes)

    @property
    def table_settings(self) -> Settings:
        """What is learnt where sites learn together from their tables."""
        named = {name: kind for name, kind in self.features.items() if kind != NUMBER}
        chosen = {
            "node": self.node or SITE, "target": self.target, "features": list(self.features),
            "categorical": list(named), "test": self.test, "seed": self.seed,
            "task": "classification" if self.classes else "regression",
        }  # fmt: skip
        return Settings.of({**chosen, **self.settings})

    def algorithms(self, model: Any = None) -> dict[str, Algorithm[Any]]:
        """All that is run, in order: what it is compared with, and last what it is about.

        Parameters
        ----------
        model : str or estimator, optional
            The model at the nodes of a site, for FedRelax; by default that of the agreement.
        """
        main = read_algorithm(self.algorithm, self.target_kind, self.model if model is None else model)
        return {**{name: compared_with(name, main) for name in self.compare}, TAILORED: main}

    def edges(self, folder: Path) -> pandas.DataFrame | None:
        """Pairs of nodes, if some are known."""
        path = folder / EDGES
        if not path.is_file():
            return None
        edges = _read_edges(path)
        pairs: pandas.DataFrame = edges[(named_ends(edges) != "").all(axis=1)]
        return pairs

    def graph(self, folder: Path) -> Graph:
        """Who may be kin: the edges in the folder, or all sites with each other.

        A row of the edges with one name is a node without neighbours.
        """
        path = folder / EDGES
        if path.is_file():
            edges = _read_edges(path)
            ends = named_ends(edges)
            return graph_of_edges(edges[(ends != "").all(axis=1)], sorted(set(ends.ravel()) - {""}))
        if self.node is not None and self.job == "fit":
            return graphs.edgeless(len(self.sites), list(self.sites))  # the settings decide
        if self.node is not None:
            raise InputError(
                f"Expected the edges between nodes in {str(path)!r}, found none: without a graph nobody knows who may "
                "be kin."
            )
        return graphs.complete(len(self.sites), list(self.sites))

    def problem(self, graph: Graph) -> Problem:
        """What is known of the rows at the nodes of a graph before anybody has joined; enough to size messages."""
        return Problem(
            graph, features=self.columns, has_data=np.ones(graph.node_count, dtype=bool),
            classes=np.arange(float(len(self.classes))) if self.classes else None, public=self.public_points(),
        )  # fmt: skip

    def public_points(self) -> PublicPoints:
        """Points from N(0, I), which suit columns that are scaled."""
        draws: Floats = np.random.default_rng(self.seed).standard_normal((self.public, len(self.columns)))
        return PublicPoints(draws, "drawn from N(0, I)")


def _read_edges(path: Path) -> pandas.DataFrame:
    try:
        return pandas.read_csv(path, dtype={0: str, 1: str}, keep_default_na=False)
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"Expected pairs of nodes in {str(path)!r}, it is damaged: bring the edges anew.") from error


def as_text(table: Mapping[str, Any]) -> str:
    """A table as TOML, lists in one line.

    >>> print(as_text({"sites": ["north", "south"]}), end="")
    sites = ["north", "south"]
    """
    text = tomli_w.dumps(table, multiline_strings=True)
    return re.sub(
        r"\[\n((?:    .*,\n)+)\]", lambda found: f"[{' '.join(map(str.strip, found[1].splitlines()))[:-1]}]", text
    )


def _written(kind: Kind) -> Any:
    return kind if isinstance(kind, str) else list(kind)


def _columns(name: str, kind: Kind) -> list[str]:
    return [name] if isinstance(kind, str) else [f"{name}={each}" for each in kind]


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _is_kind(value: Any) -> bool:
    return value == NUMBER or (_are_texts(value) and len(value) > 0 and len(set(value)) == len(value))


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < np.inf


def _check_names(sites: tuple[str, ...]) -> None:
    """Names of sites become names of files, and are shown."""
    odd = [name for name in sites if not _is_name(name)]
    if odd:
        raise InputError(
            f"Expected names of sites of at most {LONGEST} letters that begin with a letter or digit, without slashes "
            f"and colons, other than {' and '.join(map(repr, RESERVED))}, got {odd[0]!r:.60}: choose others."
        )
    if len(sites) < 2 or len({name.casefold() for name in sites}) < len(sites):
        raise InputError(f"Expected two or more sites with different names, got {listing(sites)}.")


def _is_name(name: str) -> bool:
    plain = name == printable(name) and not set(name) & set("/\\:")
    return plain and 0 < len(name) <= LONGEST and name[0].isalnum() and name.casefold() not in RESERVED
