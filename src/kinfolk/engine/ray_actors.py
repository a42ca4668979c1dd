"""The resident actors of Ray: started once, kept for later fits, and ended with nothing left behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kinfolk.checks import InputError
from kinfolk.engine.hosting import Host
from kinfolk.engine.protocol import Request, SiteId

ENVIRONMENT = ("KERAS_BACKEND",)
READY = 120.0  # seconds until an actor must have started


class Pool:
    """The resident actors at one address."""

    def __init__(self, ray: Any, folder: str | None) -> None:
        self.ray, self.folder = ray, folder  # the folder of a Ray that was started here
        self.kind = ray.remote(_Actor)
        self.actors: list[Any] = []

    @classmethod
    def of(cls, address: str | None) -> Pool:
        """The pool at an address; Ray is started, or connected to, if need be."""
        if address not in POOLS:
            POOLS[address] = cls(*_started(address))
        return POOLS[address]

    def actor(self, k: int) -> Any:
        """The k-th actor, started if need be."""
        while len(self.actors) <= k:
            self.actors.append(self._new())
        return self.actors[k]

    def renew(self, k: int) -> None:
        """An empty actor instead of one that died."""
        self.actors[k] = self._new()

    def _new(self) -> Any:
        options = {"num_cpus": 0} if self.folder else {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
        actor = self.kind.options(**options).remote()
        try:
            self.ray.get(actor.ready.remote(), timeout=READY)
        except self.ray.exceptions.GetTimeoutError as error:
            raise InputError(
                f"Expected a free processor for an actor, Ray had none in {READY:.0f} seconds: ask for fewer actors."
            ) from error
        return actor

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        for actor in self.actors:
            with contextlib.suppress(Exception):  # they may be gone, and so may Ray
                self.ray.kill(actor)
        if self.folder is not None:
            self.ray.shutdown()
            shutil.rmtree(self.folder, ignore_errors=True)


POOLS: dict[str | None, Pool] = {}


@atexit.register
def _close_all() -> None:
    while POOLS:
        POOLS.popitem()[1].close()


def _started(address: str | None) -> tuple[Any, str | None]:
    """Ray, and the folder of its files if it was started here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of rounds that are made again: nobody reads those
    try:
        import ray
    except ImportError as error:
        raise InputError('Expected Ray for this engine, it is not installed: pip install "kinfolk[ray]".') from error
    if ray.is_initialized():
        return ray, None
    quiet = {"log_to_driver": False, "configure_logging": False}
    if address is not None:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise InputError(
                f"Expected a Ray cluster at {address!r}, it cannot be reached: start one with ray start --head (if it "
                "asks for a token, set RAY_AUTH_MODE=token here and there), or leave address out."
            ) from error
        return ray, None
    _set_token()
    folder = tempfile.mkdtemp(prefix="kinfolk-ray-")
    ray.init(address="local", include_dashboard=False, _temp_dir=folder, **quiet)
    return ray, folder


def _set_token() -> None:
    """A token for the processes of a Ray that starts here, unless there is one: Ray would leave it in the home."""
    known = any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if not known and not (Path.home() / ".ray" / "auth_token").exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


class Surroundings(NamedTuple):
    """What a process must have in common with the one that calls it, to understand what it is sent."""

    path: list[str]  # where modules are found
    environment: dict[str, str]

    @classmethod
    def here(cls) -> Surroundings:
        """Those of this process."""
        return cls(list(sys.path), {name: os.environ[name] for name in ENVIRONMENT if name in os.environ})

    def take_over(self) -> None:
        """Make them those of this process; what is here already stays first."""
        sys.path.extend(folder for folder in self.path if folder not in sys.path and os.path.isdir(folder))
        os.environ.update(self.environment)


class _Actor:
    """A host in a process of its own. What must be writable there comes and goes as bytes."""

    def __init__(self) -> None:
        self.host = Host()

    def ready(self) -> int:
        """The number of this process."""
        return os.getpid()

    def holds(self, network: str) -> bool:
        return self.host.holds(network)

    def hold(self, network: str, site: SiteId, content: bytes) -> None:
        self.host.hold(network, site, unpacked(content))

    def begin(self, run: str, surroundings: Surroundings, content: bytes) -> None:
        surroundings.take_over()
        self.host.begin(run, unpacked(content))

    def forget(self, run: str) -> None:
        self.host.forget(run)

    def exchange(self, run: str, settled: bool, requests: Mapping[SiteId, Request], *bundles: Any) -> list[Any]:
        if settled:
            self.host.settle(run, True)
        answered, out = self.host.exchange(run, requests, bundles)
        return [answered, *out]

    def settle(self, run: str, keep: bool) -> bool:
        return self.host.settle(run, keep)

    def save(self, run: str) -> tuple[int, bytes]:
        content = packed(self.host.save(run, copy=False))
        return len(content), content

    def load(self, run: str, content: bytes) -> None:
        self.host.load(run, unpacked(content))


def packed(value: Any) -> bytes:
    """Anything as bytes, whose arrays can be written to when they are unpacked."""
    from ray import cloudpickle

    content: bytes = cloudpickle.dumps(value)
    return content


def unpacked(content: bytes) -> Any:
    """What was packed."""
    from ray import cloudpickle

    return cloudpickle.loads(content)
