"""What noise has promised a site: every message that left with noise, and the (ε, δ) that they add up to."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pandas

from kinfolk.checks import InputError, check_parameters
from kinfolk.engine.checkpoint import damage_noticed
from kinfolk.engine.noise import Noise
from kinfolk.engine.privacy import epsilon
from kinfolk.engine.protocol import Arrays, Turn
from kinfolk.federation.files import append_rows, read_json, replace_file

NAME, SECRET = "noise.csv", "noise.json"
COLUMNS = ("run", "request", "to", "multiplier", "delta")


@dataclass(frozen=True)
class SecretNoise:
    """Noise that nobody else can draw again: from random bytes that never leave, new for every run.

    They are kept beside the state of the run, as a site that was killed has to send the same once more, and not another
    draw of it. The noise follows from the message as well: in a folder that was restored from a backup, the number of a
    request may come again with another message, and two messages with the same noise would differ by none.
    """

    noise: Noise
    secret: bytes

    @classmethod
    def new(cls, noise: Noise) -> Self:
        """With new random bytes."""
        return cls(noise, os.urandom(32))

    def rng(self, request: int, turn: Turn, node: int, name: str, message: Arrays) -> np.random.Generator:
        """For one message of a node; no two requests and no two messages share it, whatever rounds they are of."""
        about = hashlib.blake2b(key=self.secret, digest_size=32)
        about.update(json.dumps([request, turn.round, turn.exchange, int(node), name, sorted(message)]).encode())
        for each in sorted(message):
            about.update(np.ascontiguousarray(message[each]).tobytes())
        return np.random.default_rng(int.from_bytes(about.digest()))

    def keep(self, folder: Path) -> None:
        """Write it into the folder of a run, for its owner alone."""
        found = {"secret": self.secret.hex(), **asdict(self.noise)}
        replace_file(folder / SECRET, json.dumps(found).encode(), mode=0o600)

    @staticmethod
    def kept(folder: Path, noise: Noise | None) -> SecretNoise | None:
        """That of a run that was begun before, which has to be what the owner wants now."""
        if noise_of(folder) != noise:
            raise InputError(
                "Expected the noise with which this site has begun the present run, got other: pass the same --clip "
                "and --noise again, or none if there was none."
            )
        return _secret_noise(folder)


def noise_of(folder: Path) -> Noise | None:
    """The noise that a run was begun with; None: there is none."""
    found = _secret_noise(folder)
    return None if found is None else found.noise


def _secret_noise(folder: Path) -> SecretNoise | None:
    found = read_json(folder / SECRET)
    if not found:
        return None
    with damage_noticed(folder / SECRET):
        noise = Noise(**{name: found[name] for name in ("clip", "scale", "delta")})
        check_parameters(noise)
        secret = bytes.fromhex(found["secret"])
    return SecretNoise(noise, secret)


class SpentError(InputError):
    """A message would promise less than the owner of a site has agreed to."""


class Spending:
    """The table ``noise.csv`` in the folder of a site: a row for every message with noise, before it leaves."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def add(self, run: bytes, request: int, noise: Noise, receivers: Iterable[str]) -> None:
        """Write down what is about to leave."""
        rows = [(run.hex()[:8], request, to, noise.multiplier, noise.delta) for to in receivers]
        append_rows(self.path, COLUMNS, rows)

    def check(self, noise: Noise, receivers: Iterable[str], most: float, site: str) -> None:
        """Refuse one more message to some receivers with which ε would be above ``most``."""
        sent = _messages(self.path)
        for to in receivers:
            multipliers = [*sent.get(to, _NOTHING)["multiplier"], noise.multiplier]
            if _together(multipliers, min([*sent.get(to, _NOTHING)["delta"], noise.delta])) > most:
                raise SpentError(
                    f"Expected to spend ε = {most:g} at most, as the owner of site {site!r} has agreed to, got a "
                    "request with which it would be more: send a new invitation."
                )


def spent(folder: Path) -> pandas.DataFrame:
    """What noise promises a site, receiver by receiver, over all runs.

    Parameters
    ----------
    folder : Path
        Of the site.

    Returns
    -------
    pandas.DataFrame
        Columns ``to``, ``messages``, ``epsilon``, ``delta``: for all rows of a node, and the messages that had noise.
        Empty where none had.
    """
    rows = []
    for to, sent in _messages(folder / NAME).items():
        delta = float(sent["delta"].min())
        rows.append({"to": to, "messages": len(sent), "epsilon": _together(sent["multiplier"], delta), "delta": delta})
    return pandas.DataFrame(rows, columns=["to", "messages", "epsilon", "delta"])


_NOTHING = pandas.DataFrame({"multiplier": [], "delta": []}, dtype=float)


def _messages(path: Path) -> dict[str, pandas.DataFrame]:
    """What was sent with noise, by receiver."""
    if not path.exists():
        return {}
    try:
        found = pandas.read_csv(path, keep_default_na=False).astype({"multiplier": float, "delta": float})
        return {str(to): sent for to, sent in found[list(COLUMNS)].groupby("to", sort=False)}
    except (ValueError, KeyError, UnicodeDecodeError) as error:
        raise InputError(f"Expected what was sent with noise in {str(path)!r}, it is damaged: move it away.") from error


def _together(multipliers: Iterable[float], delta: float) -> float:
    """ε of all messages: Gaussian noise adds up to Gaussian noise."""
    with np.errstate(divide="ignore"):
        together = float((1 / np.asarray(list(multipliers)) ** 2).sum() ** -0.5)
    return epsilon(together, 1, delta)
