"""Ray: the same answers as in this process to the last bit, killed actors included, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kinfolk import FedAvg, GTVMin, InProcess, InputError, fit
from kinfolk.algorithms.bigfl import BiGFL, FullMatrix, GraphEmbedding
from kinfolk.engine import ray_carrier
from kinfolk.engine.ray import Ray
from kinfolk.engine.ray_actors import POOLS
from kinfolk.engine.ray_carrier import RayCarrier
from kinfolk.testing import check_algorithm, difficult_network
from shipped import SHIPPED, options
from test_checkpoint import assert_identical

pytest.importorskip("ray", reason="Ray is not installed")
HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def closed():
    """Ray is started once for all these tests, and ends with them."""
    yield
    pool = POOLS.get(None)
    Ray().close()
    assert pool is None or not Path(pool.folder).exists()


def kill(actor: int) -> None:
    """End the process of an actor without warning."""
    pool = POOLS[None]
    os.kill(pool.ray.get(pool.actors[actor].ready.remote()), signal.SIGKILL)


def test_every_shipped_algorithm_ends_at_the_same_bits():
    """Three sites on two actors that stay for all of them."""
    for name, (make_network, make_algorithm) in SHIPPED.items():
        network, sites = make_network(), 1 if name == "GTVMin direct" else 3
        here = fit(network, make_algorithm(), engine=InProcess(sites), **options(name))
        there = fit(network, make_algorithm(), engine=Ray(2, sites), **options(name))
        assert_identical(here, there)
    assert len(POOLS[None].actors) == 2


def test_the_promises_of_an_engine():
    check_algorithm(GTVMin(), engine=lambda sites, lost: Ray(2, sites, lost))


@pytest.mark.parametrize("logged", [100, 2])  # 2: it is brought back from a saved state
@pytest.mark.parametrize(
    "algorithm",
    [GTVMin(), BiGFL(phi="learn", lower=GraphEmbedding(FullMatrix()), warm_up=3, phi_every=2, phi_steps=3)],
    ids=lambda a: type(a).__name__,
)
def test_a_killed_actor_is_made_again_and_the_run_ends_at_the_same_bits(algorithm, logged, monkeypatch):
    monkeypatch.setattr(ray_carrier, "LOGGED", logged)
    network, moments = difficult_network(), {3: 0, 6: 1}
    settings = {"rounds": 9, "stop": None, "participation": 0.7, "measure_every": 3, "progress": False}
    killed = []

    def killer(row, snapshot):
        if row["round"] in moments:
            kill(moments[row["round"]])
            killed.append(row["round"])

    straight = fit(network, algorithm, engine=InProcess(3), **settings)
    disturbed = fit(network, algorithm, engine=Ray(2, 3), callbacks=[killer], **settings)
    assert killed == [3, 6]
    assert_identical(straight, disturbed)


class Fatal(GTVMin):
    """The process of the second site dies whenever it steps."""

    def step(self, site, state, inbox, turn):
        if site.nodes[0] > 0 and turn.round == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(site, state, inbox, turn)


def test_an_actor_that_dies_again_and_again_stops_the_run_and_nobody_has_moved(monkeypatch):
    monkeypatch.setattr(ray_carrier, "ATTEMPTS", 2)
    network = difficult_network()
    run = fit(network, Fatal(), rounds=5, stop=None, engine=Ray(2), progress=False)
    assert "stopped before round 2: the process of actor 1 died 2 times in a row" in run.stopped
    expected = fit(network, GTVMin(), rounds=1, stop=None, engine=InProcess(2), progress=False)
    np.testing.assert_array_equal(run.models.w, expected.models.w)


class Failing(GTVMin):
    """The second site refuses a round."""

    def step(self, site, state, inbox, turn):
        if site.nodes[0] > 0 and turn.round == 2:
            raise InputError("Expected a pleasant surprise, got a mistake.")
        return super().step(site, state, inbox, turn)


def test_an_error_of_the_algorithm_arrives_as_it_is():
    with pytest.raises(InputError, match=r"^Expected a pleasant surprise, got a mistake.$"):
        fit(difficult_network(), Failing(), rounds=5, stop=None, engine=Ray(2), progress=False)


# ---------------------------------------------------------------------- rounds that nobody waits for

UNSEEN = {"stop": None, "measure_every": None, "progress": False}


def waited(monkeypatch):
    """The works that somebody waited for, as they come."""
    works, exchange = [], RayCarrier.exchange

    def noting(self, requests):
        works.extend(sorted({request.work for request in requests.values()}))
        return exchange(self, requests)

    monkeypatch.setattr(RayCarrier, "exchange", noting)
    return works


@pytest.mark.parametrize("name", ["GTVMin", "FedRelax trees", "DFL tracking", "FedAvg"])
def test_rounds_that_nobody_looks_at_are_not_waited_for(name, monkeypatch):
    """At the same bits; but a coordinator is waited for where it reads. States are saved on the way."""
    monkeypatch.setattr(ray_carrier, "LOGGED", 7)
    works, (make_network, make_algorithm) = waited(monkeypatch), SHIPPED[name]
    network, settings = make_network(), {**UNSEEN, "rounds": 20, "participation": 0.7}
    here = fit(network, make_algorithm(), engine=InProcess(3, 0.2), **settings)
    there = fit(network, make_algorithm(), engine=Ray(2, 3, 0.2), **settings)
    assert_identical(here, there)
    looked_at = {"GTVMin": [10, 20], "FedAvg": range(1, 21)}.get(name, [20])
    assert works.count("step") == len(looked_at)


@dataclass(frozen=True)
class Dying(GTVMin):
    """The process of the second site dies in round 5, once."""

    mark: str = ""

    def step(self, site, state, inbox, turn):
        if site.nodes[0] > 0 and turn.round == 5 and not os.path.exists(self.mark):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(site, state, inbox, turn)


def test_an_actor_that_dies_while_nobody_looks_is_made_again(tmp_path, monkeypatch):
    """From a saved state, and what it was asked since."""
    monkeypatch.setattr(ray_carrier, "LOGGED", 3)
    network, dying = difficult_network(), Dying(mark=str(tmp_path / "died"))
    there = fit(network, dying, rounds=12, engine=Ray(2), **UNSEEN)
    here = fit(network, dying, rounds=12, engine=InProcess(2), **UNSEEN)  # it has died
    assert (tmp_path / "died").exists()
    assert_identical(here, there)


def test_what_goes_wrong_while_nobody_looks_is_told_as_if_somebody_did(monkeypatch):
    monkeypatch.setattr(ray_carrier, "ATTEMPTS", 2)
    network = difficult_network()
    run = fit(network, Fatal(), rounds=9, engine=Ray(2), **UNSEEN)
    assert "stopped before round 2: the process of actor 1 died 2 times in a row" in run.stopped
    expected = fit(network, GTVMin(), rounds=1, engine=InProcess(2), **UNSEEN)
    np.testing.assert_array_equal(run.models.w, expected.models.w)
    assert run.rounds == 1
    with pytest.raises(InputError, match=r"^Expected a pleasant surprise, got a mistake.$"):
        fit(network, Failing(), rounds=9, engine=Ray(2), **UNSEEN)


def test_the_sites_of_a_network_are_sent_once(monkeypatch):
    network, sent = difficult_network(), []
    bare = ray_carrier._bare
    monkeypatch.setattr(ray_carrier, "_bare", lambda site: sent.append(site) or bare(site))
    for lam in (0.1, 0.2):
        fit(network, GTVMin(lam=lam), rounds=2, stop=None, engine=Ray(2), progress=False)
    assert len(sent) == 2


def test_a_run_goes_on_from_another_engine():
    network = difficult_network()
    settings = {"stop": None, "participation": 0.6, "progress": False}
    part = fit(network, FedAvg(), rounds=4, engine=Ray(2), **settings)
    there = fit(network, FedAvg(), rounds=4, start=part, engine=Ray(2), **settings)
    here = fit(network, FedAvg(), rounds=8, engine=InProcess(2), **settings)
    assert_identical(here, fit(network, FedAvg(), rounds=8, engine=Ray(2), **settings))
    np.testing.assert_array_equal(there.models.w, here.models.w)


def test_bad_input_gets_a_sentence(monkeypatch):
    with pytest.raises(InputError, match="Expected a Network for Ray, got a Problem without rows"):
        fit(difficult_network().problem, GTVMin(), engine=Ray())
    with pytest.raises(InputError, match=r"The 'actors' parameter of Ray must be a whole number ≥ 1\. Got 0"):
        fit(difficult_network(), GTVMin(), engine=Ray(0))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r'it is not installed: pip install "kinfolk\[ray\]"'):
        fit(difficult_network(), GTVMin(), engine=Ray(address="elsewhere:1"))


SCRIPT = """
import os, signal, sys, time
from kinfolk import GTVMin, fit
from kinfolk.engine.ray import Ray
from kinfolk.engine.ray_actors import POOLS
from kinfolk.testing import difficult_network

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it

def stay(row, snapshot):
    if row["round"] == 2:
        pool = POOLS[None]
        print(pool.folder, *[pool.ray.get(actor.ready.remote()) for actor in pool.actors], flush=True)
        if sys.argv[1] == "failure":
            raise ZeroDivisionError
        if sys.argv[1] == "wait":
            time.sleep(600)

fit(difficult_network(), GTVMin(), rounds=3, stop=None, engine=Ray(2), callbacks=[stay], progress=False)
"""


@pytest.mark.parametrize("how", ["success", "failure", "wait"])
def test_nothing_is_left_behind(how, tmp_path):
    """After success, failure and Ctrl-C; nor is a token in the user's home."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=HERE,
        env={**environment, "HOME": str(tmp_path)},
    )  # fmt: skip
    folder, *actors = process.stdout.readline().split()
    assert len(actors) == 2
    if how == "wait":
        process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert (process.wait(60) == 0) == (how == "success")
    assert not Path(folder).exists()
    assert not (tmp_path / ".ray").exists()
    assert [command for command in commands_with(folder, actors) if still_there_after(command, 20)] == []


def commands_with(folder: str, actors: list[str]) -> list[Path]:
    """The processes that name a folder, or have one of some numbers."""
    found = [Path("/proc") / number for number in actors]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if folder in path.read_text():
                found.append(path.parent)
        except OSError:
            continue
    return found


def still_there_after(process: Path, seconds: float) -> bool:
    """Whether a process is still there after so many seconds."""
    end = time.monotonic() + seconds
    while process.exists() and time.monotonic() < end:
        time.sleep(0.1)
    return process.exists()
