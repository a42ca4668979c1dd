"""resume(): from a checkpoint to the end of its run, as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from kinfolk.algorithms.catalog import CATALOG, rebuilt
from kinfolk.checks import InputError
from kinfolk.engine.checkpoint import Checkpoints, Stored, damage_noticed, open_checkpoint
from kinfolk.engine.fit import go_on, proof_asked_by
from kinfolk.engine.loop import Callback, Edges, Participation, Settings, Stop
from kinfolk.engine.protocol import Algorithm, Engine
from kinfolk.engine.run import Run
from kinfolk.engine.specs import Spec, spec_of, types_in
from kinfolk.network.network import Network

Same = Literal["same"]


def resume(
    folder: str | Path,
    network: Network,
    algorithm: Algorithm[Any] | Same = "same",
    *,
    stop: Stop | Same | None = "same",
    participation: Participation | Same = "same",
    edges: Edges | Same | None = "same",
    engine: Engine | Same = "same",
    callbacks: Iterable[Callback] = (),
    checkpoint_every: int = 100,
    checkpoint_failure: Literal["stop", "go on"] = "stop",
    progress: bool = True,
) -> Run:
    """Go on from a checkpoint that ``fit(..., checkpoint=folder)`` has written, to the end of that run.

    The run ends as it would have ended undisturbed: models, bytes and history are the same to the last bit, but for the
    seconds. A checkpoint of another network, algorithm or rule is refused with what differs.

    Parameters
    ----------
    folder : path
        The folder given to ``fit``.
    network : Network
        The same network; the checkpoint has no rows.
    algorithm, stop, participation, edges : optional
        As given to ``fit``. What is made of names and numbers need not be given again; what holds code (an estimator, a
        module, a function) must be, and is compared by its fingerprint.
    engine : Engine, optional
        Where the sites run. With another number of sites the run ends within rounding of the undisturbed one, not at
        the same bits, and only one site can polish its answer. Another share of lost messages is refused.
    callbacks, checkpoint_every, checkpoint_failure, progress
        As in ``fit``.

    Returns
    -------
    Run
        The whole run.

    >>> import tempfile
    >>> from kinfolk import FedGD, Network, fit, graphs
    >>> network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = fit(network, FedGD(lam=1.0), checkpoint=folder)
    ...     again = resume(folder, network)  # the run had ended: nothing is left to do
    >>> bool((again.models.w == run.models.w).all()), again.stopped == run.stopped
    (True, True)
    """
    if not isinstance(network, Network):
        raise InputError(f"Expected the Network of the run, got {type(network).__name__}: the checkpoint has no rows.")
    if not isinstance(algorithm, Algorithm) and not _is_same(algorithm):
        raise InputError(f"Expected the algorithm of the run, or nothing, got {algorithm!r}.")
    stored = open_checkpoint(folder)
    given = {"algorithm": algorithm, "stop rule": stop, "participation": participation, "edges": edges}
    with damage_noticed(stored.path):
        known = {name: _again(stored, name, value) for name, value in given.items()}
        there: Engine = _again(stored, "engine", engine)
    stored.check(network, {name: spec_of(value) for name, value in known.items()})
    numbers = stored.numbers
    settings = Settings(
        numbers["rounds"], numbers["last"], known["stop rule"], known["participation"], known["edges"],
        numbers["seed"], numbers["measure_every"], there, proof_asked_by(known["stop rule"]),
    )  # fmt: skip
    checkpoints = None if stored.ended else Checkpoints.again(folder, checkpoint_every, checkpoint_failure)
    try:
        saved = stored.read(known["algorithm"], types_in(known["algorithm"]))
        return go_on(
            saved,
            network,
            known["algorithm"],
            settings,
            callbacks=callbacks,
            checkpoints=checkpoints,
            progress=progress,
        )
    finally:
        if checkpoints is not None:
            checkpoints.close()


def _again(stored: Stored, name: str, given: Any) -> Any:
    """What was given, or the value in the checkpoint if that is made of names and numbers."""
    if not _is_same(given):
        return given
    spec = stored.specs.get(name)
    foreign = _foreign(spec)
    if foreign is not None:
        raise InputError(
            f"Expected the {name} of this run again, as it holds {foreign}, which no checkpoint can hold: pass it as "
            "it was given to fit."
        )
    return rebuilt(spec)


def _is_same(given: Any) -> bool:
    return isinstance(given, str) and given == "same"


def _foreign(spec: Spec) -> str | None:
    """The first type in a spec that has to be given again; None if there is none."""
    if isinstance(spec, list):
        return next((found for each in spec if (found := _foreign(each)) is not None), None)
    if not isinstance(spec, dict):
        return None
    if "code" in spec:
        return str(spec["code"])
    if "type" in spec and spec["type"] not in CATALOG:
        return str(spec["type"])
    return _foreign(list(spec.values()))
