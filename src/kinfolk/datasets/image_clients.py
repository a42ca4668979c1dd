"""Images of many clients, some of which are only tested."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.checks import AtLeast, Between, InputError, check_value
from kinfolk.network.data import Data
from kinfolk.network.graphs import edgeless
from kinfolk.network.network import Network
from kinfolk.typing import Bools, Ints

Pixels = NDArray[np.float32]
UNKNOWN = -1  # where the domain of a row is not known


@dataclass(frozen=True, eq=False)
class ImageClients:
    """Labelled images of clients 0, 1, ..., and what is known of their domains.

    A client is a node whose data set is a few images, such as those of one writer. Held-out clients take no part in
    training: a model is tested on clients that it has never met.

    Parameters
    ----------
    X : array of shape (rows, C · H · W)
        Pixels in [0, 1] as float32, channel by channel and line by line; the rows of a client follow each other.
    y : array of shape (rows,)
        Class numbers.
    client : array of shape (rows,)
        The client of every row, ascending; every client has a row.
    domain : array of shape (rows,)
        The true domain of every row, -1 where it is unknown. No algorithm needs it, unless domains are given.
    held_out : array of shape (clients,)
        True for clients that are only tested.
    shape : tuple of int
        (C, H, W) of an image.
    domain_names : tuple of str
        The names of domains 0, 1, ...
    attributes : array of shape (domains, n), optional
        Meta-data of every domain, zeros and ones.
    test_rows : array of shape (rows,), optional
        True for rows of training clients that are only tested; None: there are none.

    >>> X = np.zeros((4, 6), dtype=np.float32)
    >>> clients = ImageClients(
    ...     X, y=np.array([0, 1, 1, 0]), client=np.array([0, 0, 1, 2]), domain=np.array([0, 0, 1, 1]),
    ...     held_out=np.array([False, False, True]), shape=(1, 2, 3), domain_names=("day", "night"),
    ... )
    >>> clients
    ImageClients(2 training clients with 3 rows, 1 held-out client with 1 row, images of 1 × 2 × 3, 2 domains)
    >>> clients.network()
    Network(3 nodes, 0 edges, 3 samples, 6 features; 1 node without data)
    """

    X: Pixels  # (rows, C · H · W)
    y: Ints  # (rows,)
    client: Ints  # (rows,)
    domain: Ints  # (rows,)
    held_out: Bools  # (clients,)
    shape: tuple[int, int, int]
    domain_names: tuple[str, ...]
    attributes: Ints | None = None  # (domains, n)
    test_rows: Bools | None = None  # (rows,)

    def __post_init__(self) -> None:
        _check_rows(self)
        _check_clients(self)
        _check_domains(self)

    @property
    def tested(self) -> Bools:
        """True for rows of training clients that are only tested, (rows,)."""
        return np.zeros(len(self.y), dtype=bool) if self.test_rows is None else self.test_rows

    @property
    def hamming(self) -> Ints:
        """Number of attributes in which two domains differ, (domains, domains)."""
        if self.attributes is None:
            raise InputError("Expected domains with attributes for their Hamming distances, got domains without any.")
        differ = self.attributes[:, None] != self.attributes[None]
        return np.asarray(differ.sum(axis=2), dtype=np.int64)

    def network(self, with_domain: bool = False) -> Network:
        """A network without edges, one node for every client; held-out clients have no data.

        Parameters
        ----------
        with_domain : bool
            Whether the domain number of a row is its last feature.

        Returns
        -------
        Network
            Nodes are named by client numbers. Its test data are the ``test_rows``, where there are any; the rows of
            held-out clients are not in it.
        """
        tested, held_out = self.tested, self.held_out[self.client]
        graph = edgeless(len(self.held_out), names=range(len(self.held_out)))
        test = self._data(tested, with_domain) if tested.any() else None
        return Network(graph, self._data(~held_out & ~tested, with_domain), test=test)

    def held_out_rows(self, with_domain: bool = False) -> tuple[Pixels, Ints, Ints]:
        """The rows of held-out clients as (X, y, client); the domain number is the last feature if asked for."""
        rows = self.held_out[self.client]
        return self._features(rows, np.float32, with_domain), self.y[rows], self.client[rows]

    def first(
        self, rows_per_client: int | None, training_clients: int | None, held_out_clients: int | None, seed: int
    ) -> ImageClients:
        """A part of the clients with a part of their rows, for quick settings.

        Parameters
        ----------
        rows_per_client : int or None
            How many rows of a client are kept, drawn at random; all of a client that has fewer (None: all of all).
            Test rows of a training client are counted apart.
        training_clients, held_out_clients : int or None
            How many clients are kept (None: all); domains keep their shares of them.
        seed : int
            The same seed draws the same rows.

        Returns
        -------
        ImageClients
            Clients are numbered anew, in the same order.
        """
        rng = generator_of(seed, "first")
        training = self._some(np.flatnonzero(~self.held_out), training_clients, "training_clients", rng)
        tested = self._some(np.flatnonzero(self.held_out), held_out_clients, "held_out_clients", rng)
        chosen = np.sort(np.concatenate([training, tested]))
        rows = np.isin(self.client, chosen)
        if rows_per_client is not None:
            check_value("rows_per_client", "first", rows_per_client, Annotated[int, AtLeast(1)])
            rows &= _places(2 * self.client + self.tested, rng) < rows_per_client
        part = self._rows(rows)
        part["client"] = np.searchsorted(chosen, self.client[rows])
        return replace(self, held_out=self.held_out[chosen], **part)

    def keep(self, rows: Bools) -> ImageClients:
        """The same clients with the marked rows only; each must keep one."""
        return replace(self, **self._rows(rows))

    def __repr__(self) -> str:
        held_out = self.held_out[self.client]
        parts = [
            _counted(int((~self.held_out).sum()), "training client", int((~held_out).sum())),
            _counted(int(self.held_out.sum()), "held-out client", int(held_out.sum())),
            f"images of {' × '.join(map(str, self.shape))}",
            f"{len(self.domain_names)} domain{'' if len(self.domain_names) == 1 else 's'}",
        ]
        return f"ImageClients({', '.join(parts)})"

    def _data(self, rows: Bools, with_domain: bool) -> Data:
        """Rows as a local data set of every client, in 64 bits."""
        sizes = np.bincount(self.client[rows], minlength=len(self.held_out))
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return Data(self._features(rows, np.float64, with_domain), self.y[rows].astype(np.float64), starts)

    def _features(self, rows: Bools, kind: type[np.floating[Any]], with_domain: bool) -> Any:
        """Pixels of some rows, and their domain if asked for, as numbers of a kind."""
        if with_domain and (self.domain[rows] == UNKNOWN).any():
            raise InputError("Expected rows with a known domain, got some whose domain is unknown: give no domains.")
        width = self.X.shape[1]
        out = np.empty((int(rows.sum()), width + with_domain), dtype=kind)
        out[:, :width] = self.X[rows]
        if with_domain:
            out[:, -1] = self.domain[rows]
        return out

    def _rows(self, rows: Bools) -> dict[str, Any]:
        """Every field with an axis of rows, for some of them."""
        fields = {name: getattr(self, name)[rows] for name in ("X", "y", "client", "domain")}
        return fields | {"test_rows": None if self.test_rows is None else self.test_rows[rows]}

    def _some(self, clients: Ints, count: int | None, what: str, rng: np.random.Generator) -> Ints:
        """Some of the clients; evenly spaced in an order by domain, so that domains keep their shares."""
        if count is None:
            return clients
        lowest = 1 if what == "training_clients" else 0
        check_value(what, "first", count, Annotated[int, Between(lowest, len(clients))])
        first_rows = np.searchsorted(self.client, clients)
        by_domain = clients[np.lexsort((rng.random(len(clients)), self.domain[first_rows]))]
        chosen = by_domain[((np.arange(count) + rng.random()) * len(clients) / max(count, 1)).astype(np.int64)]
        return np.asarray(chosen, dtype=np.int64)


def generator_of(seed: int, purpose: str) -> np.random.Generator:
    """Random numbers keyed by a seed and by what they are drawn for."""
    check_value("seed", purpose, seed, Annotated[int, AtLeast(0)])
    return np.random.default_rng([zlib.crc32(purpose.encode()), seed])


def _places(group: Ints, rng: np.random.Generator) -> Ints:
    """The place of every row among those of its group, in a random order."""
    order = np.lexsort((rng.random(len(group)), group))
    starts = np.searchsorted(group[order], group[order])
    out = np.empty(len(group), dtype=np.int64)
    out[order] = np.arange(len(group)) - starts
    return out


def _counted(clients: int, noun: str, rows: int) -> str:
    """``2 training clients with 3 rows``."""
    return f"{clients} {noun}{'' if clients == 1 else 's'} with {rows:,} row{'' if rows == 1 else 's'}"


def _check_rows(clients: ImageClients) -> None:
    """Refuse rows that are no labelled images."""
    rows, width = len(clients.y), math.prod(clients.shape)
    if clients.X.shape != (rows, width) or clients.X.dtype != np.float32:
        raise InputError(
            f"Expected X with {rows} rows of {width} pixels as float32, one row for each label, got shape "
            f"{clients.X.shape} of {clients.X.dtype}."
        )
    if not clients.X.size:
        raise InputError(f"Expected one image at least and one pixel at least, got X of shape {clients.X.shape}.")
    low, high = float(clients.X.min()), float(clients.X.max())
    if not (low >= 0 and high <= 1):
        raise InputError(f"Expected pixels in [0, 1], got values from {low:g} to {high:g}: divide bytes by 255.")
    if clients.y.dtype.kind not in "iu" or clients.y.min() < 0:
        raise InputError(f"Expected whole numbers ≥ 0 as classes, got {clients.y.dtype} from {clients.y.min()} on.")


def _check_clients(clients: ImageClients) -> None:
    """Refuse rows that are not sorted by client, clients without rows, and marks that do not fit."""
    count, owner, test_rows = len(clients.held_out), clients.client, clients.test_rows
    if owner.shape != clients.y.shape or (np.diff(owner) < 0).any():
        raise InputError("Expected the client of every row in ascending order: sort the rows by client.")
    if not np.array_equal(np.unique(owner), np.arange(count)) or clients.held_out.dtype != bool:
        raise InputError(f"Expected a row of each of the {count} clients that held_out marks with True or False.")
    if test_rows is not None and (
        test_rows.shape != owner.shape or test_rows.dtype != bool or (test_rows & clients.held_out[owner]).any()
    ):
        raise InputError("Expected test_rows to mark rows of training clients with True: held-out clients are tested.")
    if not np.bincount(owner[~clients.tested], minlength=count).all():
        raise InputError("Expected a row for training at every training client, got one with test rows only.")


def _check_domains(clients: ImageClients) -> None:
    """Refuse domains without a name, and attributes that are not one line of zeros and ones for each."""
    domain, names, attributes = clients.domain, clients.domain_names, clients.attributes
    if domain.shape != clients.y.shape or domain.min() < UNKNOWN or domain.max() >= len(names):
        raise InputError(
            f"Expected the domain of every row, from 0 to {len(names) - 1} as there are names, or {UNKNOWN}, got "
            f"shape {domain.shape} with numbers from {domain.min()} to {domain.max()}."
        )
    if attributes is not None and (
        attributes.ndim != 2 or len(attributes) != len(names) or not np.isin(attributes, (0, 1)).all()
    ):
        raise InputError(
            f"Expected zeros and ones in one line of attributes for each of {len(names)} domains, got shape "
            f"{attributes.shape}."
        )
