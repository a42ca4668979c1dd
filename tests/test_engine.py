"""The contract between algorithms, the loop and engines: the defects that it was made against, one by one."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import probes
from kinfolk import (
    DFL,
    IFCA,
    SCAFFOLD,
    BiGFL,
    FedAvg,
    FedGD,
    FedProx,
    FedRelax,
    FeSEM,
    GTVMin,
    InProcess,
    InputError,
    LinearModel,
    Local,
    Network,
    PFedMe,
    Pooled,
    Squared,
    SquaredNorm,
    fit,
    graphs,
    testing,
)
from kinfolk.algorithms.bigfl import CosineEmbedding
from kinfolk.algorithms.ifca import Given, Uniform
from kinfolk.checks import LearningError
from kinfolk.engine.in_process import WorkersHere
from kinfolk.engine.protocol import Coordinated, Messages, Missing, Outbox, PerNode, Reply, Request, Sends, Sent, Turn
from kinfolk.engine.session import Session
from kinfolk.engine.worker import SiteWorker
from kinfolk.network.problem import Problem
from kinfolk.network.site import _site, sites_of
from kinfolk.testing import check_algorithm, difficult_network


def session_of(network: Network, algorithm: Any, sites: int = 1) -> Session:
    return Session(network, algorithm, InProcess(sites).open(network, algorithm))


def everybody(network: Network, round_: int = 0) -> Turn:
    return Turn(round_, np.arange(network.graph.node_count), 0)


def arrays_of(state: Any) -> list[Any]:
    return [np.array(field) for field in state]


# ---------------------------------------------------------------------- 1 and 2: nobody has moved, snapshots are copies


@dataclass(frozen=True)
class Stumbling(GTVMin):
    """GTVMin that fails at one node, in one round, after the others have stepped."""

    node: int = 20
    at: int = 3

    def step(self, site, state, inbox, turn):
        answer = super().step(site, state, inbox, turn)
        if turn.round == self.at and self.node in site.nodes:
            raise LearningError(f"node {self.node} stumbles")
        return answer


class Unread(FedAvg):
    """Its coordinator says that it does not read, and nodes send all the same."""

    def reads(self, round_):
        return round_ != 3


def test_what_is_sent_to_a_coordinator_that_does_not_read_gets_a_sentence():
    with pytest.raises(
        InputError, match=r"Expected Unread to send nothing to the coordinator in round 3, .* got 'share'"
    ):
        fit(difficult_network(), Unread(), rounds=5, stop=None, progress=False)


@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_a_failed_round_leaves_nobody_moved(participation):
    network = difficult_network()
    options = {"stop": None, "participation": participation, "engine": InProcess(4)}
    failed = fit(network, Stumbling(), rounds=9, **options)
    before = fit(network, GTVMin(), rounds=2, **options)
    assert failed.stopped == "stopped before round 3: node 20 stumbles"
    assert failed.rounds == 2
    for ours, theirs in zip(failed.state, before.state, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert failed.snapshot.bytes_sent == before.snapshot.bytes_sent


def test_one_site_that_steps_in_place_says_that_the_round_was_half_made():
    run = fit(difficult_network(), Stumbling(), rounds=9, stop=None)
    assert "The round was half made" in run.stopped


def test_one_site_falls_back_to_its_checkpoint(tmp_path):
    network = difficult_network()
    run = fit(network, Stumbling(at=8), rounds=9, stop=None, checkpoint=tmp_path, checkpoint_every=2)
    before = fit(network, GTVMin(), rounds=6, stop=None)
    assert run.stopped.endswith("The state is that of the checkpoint after round 6.")
    assert run.rounds == 6
    for ours, theirs in zip(run.state, before.state, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_snapshot_is_not_overwritten_by_the_next_round():
    network = difficult_network()
    session = session_of(network, GTVMin())
    session.begin(everybody(network))
    for round_ in (1, 2):
        session.step(everybody(network, round_))
    taken = session.snapshot()
    kept = arrays_of(taken.state)
    session.step(everybody(network, 3))
    for now, then in zip(taken.state, kept, strict=True):
        np.testing.assert_array_equal(now, then)
    assert not np.array_equal(session.snapshot().state.w_bar, taken.state.w_bar)


# ---------------------------------------------------------------------- 3 and 4: going on is the same run


@pytest.mark.parametrize("algorithm", [GTVMin(lam=0.1), FedRelax(LinearModel(), lam=0.5)], ids=["GTVMin", "FedRelax"])
def test_going_on_with_equal_objects_is_the_same_run(algorithm):
    network, twin = difficult_network(), difficult_network()
    straight = fit(network, algorithm, rounds=34, stop=None)
    part = fit(network, algorithm, rounds=13, stop=None)
    again = fit(twin, replace(algorithm), rounds=21, stop=None, start=part)
    assert again.history.index.tolist() == straight.history.index.tolist()
    columns = [name for name in straight.history.columns if not name.startswith("seconds")]
    np.testing.assert_array_equal(again.history[columns], straight.history[columns])
    test = network.test
    np.testing.assert_array_equal(again.models.predict(test.X, test.owner), straight.models.predict(test.X, test.owner))


def test_going_on_with_trees_is_the_same_run():
    from sklearn.tree import DecisionTreeRegressor

    network = difficult_network()
    models = [FedRelax(DecisionTreeRegressor(max_depth=3), lam=0.5) for _ in range(2)]
    straight = fit(network, models[0], rounds=6, stop=None)
    again = fit(network, models[1], rounds=4, stop=None, start=fit(network, models[0], rounds=2, stop=None))
    assert again.history.index.tolist() == straight.history.index.tolist()
    np.testing.assert_array_equal(again.state.predicted, straight.state.predicted)


def test_other_data_are_another_problem():
    network = difficult_network()
    other = network.hold_out(np.arange(len(network.data.y)) == 0)
    run = fit(network, GTVMin(), rounds=12, stop=None)
    again = fit(other, GTVMin(), rounds=3, stop=None, start=run)
    assert again.history.index.tolist() == [12, 13, 14, 15]


# ---------------------------------------------------------------------- 5: callbacks can take a snapshot


def test_callbacks_get_every_row_and_can_take_a_snapshot():
    network, taken = difficult_network(), {}

    def keep(row, snapshot):
        taken[row["round"]] = snapshot()

    run = fit(network, GTVMin(), rounds=3, stop=None, callbacks=[keep])
    assert list(taken) == [0, 1, 2, 3]
    np.testing.assert_array_equal(taken[3].state.w_bar, run.state.w_bar)
    shorter = fit(network, GTVMin(), rounds=2, stop=None)
    np.testing.assert_array_equal(taken[2].state.u, shorter.state.u)


# ---------------------------------------------------------------------- 6: no state field without an axis


class Axisless(NamedTuple):
    w: PerNode
    clock: float


@dataclass(frozen=True)
class Ticking(probes.SampledFedAvg):
    def init(self, site, turn):
        state, outbox = super().init(site, turn)
        return Axisless(state.w, 1.0), outbox


def test_a_field_without_an_axis_is_refused():
    with pytest.raises(InputError, match="Expected an axis for the field 'clock' of Axisless"):
        fit(difficult_network(), Ticking(), rounds=1)


# ---------------------------------------------------------------------- 7: a memory changed in place


@dataclass(frozen=True)
class Forgetful(probes.SampledFedAvg):
    """A coordinator that adds to its memory in place."""

    def start(self, problem, turn, before=None):
        return {"rounds": []}

    def combine(self, memory, outbox, turn):
        memory["rounds"].append(turn.round)
        return memory, Reply(to_all={"w": outbox["w"].mean(axis=0)})


def test_a_memory_that_is_changed_in_place_is_noticed_and_does_not_leak():
    network = difficult_network()
    run = fit(network, Forgetful(), rounds=2, stop=None)
    fit(network, Forgetful(), rounds=2, stop=None, start=run)
    assert run.snapshot.memory == {"rounds": [0, 1, 2]}
    with pytest.raises(AssertionError, match="combine changed the memory it was given"):
        check_algorithm(Forgetful())


@dataclass(frozen=True)
class InPlace(probes.GradientTracking):
    """A step that writes into its state without saying so."""

    def step(self, site, state, inbox, turn):
        answer = super().step(site, state, inbox, turn)
        state.w[:] = 7.0
        return answer


def test_a_step_in_place_that_is_not_declared_is_noticed():
    with pytest.raises(AssertionError, match="a step changed the state it was given"):
        check_algorithm(InPlace())


@dataclass(frozen=True)
class Rude(probes.SampledFedAvg):
    """A step that writes into what the coordinator sent to all."""

    def step(self, site, state, inbox, turn):
        answer = super().step(site, state, inbox, turn)
        inbox.to_all["w"] *= 1.0 + 1e-3
        return answer


def test_a_step_that_changes_what_it_received_is_noticed():
    with pytest.raises(AssertionError):
        check_algorithm(Rude())
    with pytest.raises(AssertionError, match="a step changed what it received"):
        fit(difficult_network(), testing._watched(Rude()), rounds=2, stop=None)


# ---------------------------------------------------------------------- 8: a round costs what those present cost


def test_a_round_of_few_nodes_does_not_copy_the_state_of_all(monkeypatch):
    network = Network(graphs.edgeless(500), [(np.ones((1, 1)), [0.0])] * 500)
    session = session_of(network, FedAvg())
    session.begin(everybody(network))
    few = [Turn(k, np.arange(3), 0) for k in (1, 2, 3)]
    session.step(few[0])  # the first round makes the arrays its own
    worker = session.carrier.workers[0]
    before = worker.state.w
    session.step(few[1])
    session.step(few[2])
    assert worker.state.w is before


# ---------------------------------------------------------------------- 9: routing


def test_messages_between_sites_hold_boundary_rows_only():
    network = difficult_network()
    carrier = InProcess(4).open(network, GTVMin())
    session = Session(network, GTVMin(), carrier)
    session.begin(everybody(network))
    sent = sum(len(part["w_bar"]) for parts in session.outgoing.values() for part in parts.values())
    assert sent == sum(len(site.outside) for site in sites_of(network, 4))


# ---------------------------------------------------------------------- 10: held-out nodes have the common model


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(),
        PFedMe(lam=1.0),
        IFCA(model_count=2, initial=Uniform(-1.0, 1.0)),
        probes.Scaffold(),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_nodes_that_never_took_part_are_scored_with_the_coordinators_model(algorithm):
    rng = np.random.default_rng(0)
    truth = np.array([1.0, -2.0, 0.5])
    sets = [(X, X @ truth + 0.1 * rng.normal(size=20)) for X in rng.normal(size=(20, 20, 3))]
    network = Network(graphs.edgeless(20), sets, test=sets)
    held_out = list(range(15, 20))

    def three(round_):
        return np.random.default_rng(round_).choice(15, 3, replace=False).tolist()

    run = fit(network, algorithm, rounds=200, stop=None, participation=three, measure_every=200)
    errors = run.models.error(network.test.X, network.test.y, network.test.owner)
    assert errors[np.isin(network.test.owner, held_out)].mean() < 0.03
    initial = fit(network, algorithm, rounds=0, stop=None)
    np.testing.assert_array_equal(run.state.w[15:], initial.state.w[15:])


# ---------------------------------------------------------------------- 11: who is drawn, and true notes


def test_a_share_is_drawn_among_those_who_have_something_to_tell():
    network = difficult_network()
    asked = []

    @dataclass(frozen=True)
    class Asking(FedAvg):
        def combine(self, memory, outbox, turn):
            asked.extend(turn.active.tolist() if turn.round else [])
            return super().combine(memory, outbox, turn)

    fit(network, Asking(), rounds=40, stop=None, participation=0.2)
    assert set(asked) <= set(np.flatnonzero(network.has_data).tolist())
    assert len(set(asked)) == network.has_data.sum()
    relayed = fit(network, GTVMin(), rounds=60, stop=None, participation=0.5)
    moved = np.abs(relayed.state.w_bar).max(axis=1) > 0
    assert moved[[3, 8]].all()  # without data, but with neighbours


def test_an_edgeless_network_is_no_news_to_an_algorithm_without_messages_between_neighbours():
    network = Network(graphs.edgeless(3), [([[1.0]], [1.0]), ([[1.0]], [2.0]), None])
    assert fit(network, FedAvg(), rounds=3).notes == []
    assert fit(network, Local(), rounds=3).notes == []
    assert fit(network, GTVMin(), rounds=3).notes[0] == "The graph has 3 components: nothing is learnt across them."


# ---------------------------------------------------------------------- 12: sentences for authors


class OneField(NamedTuple):
    w: PerNode


@dataclass(frozen=True)
class Author(probes.Plain):
    """An algorithm with one mistake."""

    mistake: str = ""

    def init(self, site, turn):
        w = site.local_losses(self.loss).start
        return OneField(w), Outbox({"w": w})

    def step(self, site, state, inbox, turn):
        w = state.w
        if self.mistake == "reads another name":
            inbox["weights"]
        if self.mistake == "reads a coordinator that is not there":
            inbox.to_all["eta"]
        if self.mistake == "state of another length":
            return OneField(w[:-1]), Outbox({"w": w})
        if self.mistake == "state is a list":
            return OneField(w.tolist()), Outbox({"w": w})
        if self.mistake == "sends objects":
            return OneField(w), Outbox({"w": np.array([object()] * len(w))})
        if self.mistake == "sends too few rows":
            return OneField(w), Outbox({"w": w[:-1]})
        if self.mistake == "sends another name":
            return OneField(w), Outbox({"v": w})
        if self.mistake == "returns no outbox":
            return OneField(w)
        if self.mistake == "sends more than it declares":
            return OneField(w), Outbox({"w": w}, {"rows": w})
        if self.mistake == "sends another type":
            return OneField(w), Outbox({"w": w.astype(np.float32)})
        return OneField(w), Outbox({"w": w})

    def sends(self, problem):
        return Sends(neighbours={"w": Sent("parameters", (self.width(problem),))})


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("reads another name", "Expected the neighbours in Author to send 'weights', it sends 'w'"),
        ("reads a coordinator that is not there", "Expected the coordinator of Author to send 'eta', it sends nothing"),
        ("state of another length", "Expected 24 rows, one per node, in the field 'w' of Author, got shape (23, 3)."),
        ("state is a list", "Expected an array for the field 'w' of Author, got list."),
        ("sends objects", "Expected an array of numbers for 'w', which Author sends to the neighbours"),
        ("sends too few rows", "Expected 24 rows, one per node present, in 'w', which Author sends to the neighbours"),
        ("sends another name", "Expected Author to send 'w' to the neighbours in every round, as in round 0, got 'v'."),
        ("returns no outbox", "Expected (state, Outbox) from the step or init of Author, got OneField"),
        ("sends more than it declares", "Expected Author to send the coordinator only what it declares (nothing), got"),
        ("sends another type", "as float64 of shape (3,) per node at most, as declared, got float32 of shape (3,)."),
    ],
)
def test_mistakes_of_authors_get_a_sentence_with_the_name_of_the_algorithm(mistake, sentence):
    with pytest.raises(InputError) as error:
        fit(difficult_network(), Author(mistake=mistake), rounds=2, stop=None)
    assert sentence in str(error.value)
    fit(difficult_network(), Author(), rounds=2, stop=None)


@dataclass(frozen=True)
class Late(Author):
    """An algorithm that sends more than it declares, but not at once."""

    def step(self, site, state, inbox, turn):
        state, outbox = super().step(site, state, inbox, turn)
        late = {"rows": state.w} if turn.round == 4 else {}
        return state, Outbox(outbox.neighbours, late)


def test_what_is_not_declared_is_refused_in_every_round():
    with pytest.raises(InputError, match=r"only what it declares \(nothing\), got 'rows'"):
        fit(difficult_network(), Late(), rounds=6, stop=None)


@dataclass(frozen=True)
class Drifting(Author):
    """An algorithm whose state changes its type."""

    def init(self, site, turn):
        state, outbox = super().init(site, turn)
        return OneField(state.w.astype(int)), outbox

    def step(self, site, state, inbox, turn):
        return OneField(state.w + 0.5), Outbox({"w": state.w + 0.5})


def test_a_state_that_changes_its_type_is_refused():
    with pytest.raises(InputError, match=r"Expected the field 'w' of Drifting to stay as in round 0, int64 of shape"):
        fit(difficult_network(), Drifting(), rounds=2, stop=None)


class Talkative(FedAvg):
    """Its coordinator replies more than it declares."""

    def combine(self, memory, outbox, turn):
        memory, reply = super().combine(memory, outbox, turn)
        more = {"more": {"more": memory.w}, "wider": {"w": np.zeros((2, 3))}, "whole": {"w": memory.w.astype(int)}}
        return memory, Reply({**reply.to_all, **more[self.extra]})

    extra = "more"


@pytest.mark.parametrize("how", ["more", "wider", "whole"])
def test_what_a_coordinator_does_not_declare_is_refused(how, monkeypatch):
    monkeypatch.setattr(Talkative, "extra", how)
    with pytest.raises(InputError, match="Expected the coordinator of Talkative to answer only what it declares"):
        fit(difficult_network(), Talkative(), rounds=2, stop=None)


# ---------------------------------------------------------------------- a problem without rows


class RowsElsewhere:
    """An engine whose sites have the rows; the coordinator sees messages only."""

    def __init__(self, network: Network, sites: int) -> None:
        self.network, self.sites = network, sites

    def open(self, problem, algorithm):
        carrier = WorkersHere.of(self.network, algorithm, self.sites, 0.0)
        carrier.sees_all = False
        return carrier


@pytest.mark.parametrize(
    "algorithm", [GTVMin(lam=0.1), FedAvg(), FedRelax(LinearModel())], ids=lambda a: type(a).__name__
)
def test_a_run_over_a_problem_has_the_same_history_and_says_what_it_lacks(algorithm):
    network = difficult_network()
    assert not hasattr(network.problem, "data")
    near = fit(network, algorithm, rounds=15, stop=None, engine=InProcess(4))
    far = fit(network.problem, algorithm, rounds=15, stop=None, engine=RowsElsewhere(network, 4))
    columns = [name for name in near.history.columns if not name.startswith("seconds")]
    np.testing.assert_array_equal(far.history[columns], near.history[columns])
    assert "this run has no models, no errors of rows and no sharp certificate" in " ".join(far.notes)
    for lacking in (
        lambda: far.predict(network.test.X, network.test.owner), far.error, lambda: far.certificate, lambda: far.state,
        lambda: far.models, lambda: far.network,
    ):  # fmt: skip
        with pytest.raises(InputError, match="the rows and models of this one stay at the sites: ask there"):
            lacking()


def test_the_models_of_a_site_stay_there_and_are_those_of_the_run():
    network = difficult_network()
    carrier = InProcess(3).open(network, GTVMin())
    session = Session(network.problem, GTVMin(), carrier)
    session.begin(everybody(network))
    for round_ in range(1, 6):
        session.step(everybody(network, round_))
    expected = fit(network, GTVMin(), rounds=5, stop=None).models.w
    for site, worker in enumerate(carrier.workers):
        models = worker.models(session._request("measure", site, everybody(network)))
        np.testing.assert_allclose(models.w, expected[worker.site.nodes], atol=1e-12)


def test_a_problem_needs_an_engine_that_has_the_rows():
    with pytest.raises(InputError, match="Expected a Network for InProcess, got a Problem without rows"):
        fit(difficult_network().problem, GTVMin())
    with pytest.raises(InputError, match="Expected True or False for each of 2 nodes"):
        Problem(graphs.chain(2), features=["x"], has_data=[True])


# ---------------------------------------------------------------------- a site that does not answer


class Flaky(WorkersHere):
    """A carrier that loses a site in some rounds, after it has done its work."""

    silent = frozenset[tuple[int, int]]()

    def exchange(self, requests):
        answers = super().exchange(requests)
        return {
            site: Missing("gone") if (site, requests[site].turn.round) in self.silent else answer
            for site, answer in answers.items()
        }


def test_a_site_that_does_not_answer_is_away_for_the_round_and_nobody_has_moved_twice():
    network = difficult_network()
    flaky = Flaky.of(network, GTVMin(), 4, 0.0)
    flaky.silent = frozenset({(1, 2), (3, 3)})
    session = Session(network, GTVMin(), flaky)
    session.begin(everybody(network))
    for round_ in range(1, 6):
        session.step(everybody(network, round_))
    gone = {2: flaky.sites[1].nodes, 3: flaky.sites[3].nodes}

    def present(round_):
        return np.setdiff1d(np.arange(24), gone.get(round_, [])).tolist()

    expected = fit(network, GTVMin(), rounds=5, stop=None, participation=present, engine=InProcess(4))
    for ours, theirs in zip(session.snapshot().state, expected.state, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert session.bytes_sent == expected.snapshot.bytes_sent


def test_sites_of_any_partition_receive_the_rows_of_the_right_nodes():
    """Nodes of a site need neither be consecutive nor ascend."""
    network, algorithm = difficult_network(), GTVMin()
    shuffled = np.random.default_rng(0).permutation(24)
    parts = [shuffled[:5], shuffled[5:14], shuffled[14:]]
    home = np.empty(24, dtype=np.int64)
    for k, nodes in enumerate(parts):
        home[nodes] = k
    graph = network.graph
    sites = [
        _site(network, nodes, np.flatnonzero((home[graph.head] == k) | (home[graph.tail] == k)))
        for k, nodes in enumerate(parts)
    ]
    workers = [
        SiteWorker(site, algorithm, home[site.outside], algorithm.sends(network), undoable=True) for site in sites
    ]
    session = Session(network, algorithm, WorkersHere(workers))
    session.begin(everybody(network))
    for round_ in range(1, 15):
        session.step(everybody(network, round_))
    expected = fit(network, algorithm, rounds=14, stop=None)
    for ours, theirs in zip(session.snapshot().state, expected.state, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


class EachState(NamedTuple):
    w: PerNode
    seen: PerNode


@dataclass(frozen=True)
class Answered(probes.Plain, Coordinated[Any, Any]):
    """Two exchanges a round; the coordinator answers each node; site 2 can fail in the second exchange."""

    fails_at: int = 0

    def exchanges(self, round_, memory):
        return 2

    def init(self, site, turn):
        w = site.local_losses(self.loss).start
        return EachState(w, np.zeros(site.node_count)), Outbox({"w": w}, {"number": site.nodes.astype(float)})

    def step(self, site, state, inbox, turn):
        if turn.round == self.fails_at and turn.exchange == 1 and 23 in site.nodes:
            raise LearningError("the last site is down")
        seen = inbox.to_each["twice"] + turn.round
        return EachState(state.w + 1.0, seen), Outbox({"w": state.w + 1.0}, {"number": seen})

    def start(self, problem, turn, before=None):
        return 0

    def combine(self, memory, outbox, turn):
        assert len(turn.active) == len(outbox["number"])
        new = {"new": outbox["number"]} if turn.round == 2 else {}
        return memory + 1, Reply(to_each={"twice": 2 * outbox["number"], **new})


@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_a_failure_in_a_later_exchange_undoes_the_whole_round(participation):
    network = difficult_network()
    options = {"stop": None, "participation": participation, "engine": InProcess(3), "seed": 5}
    before = fit(network, Answered(), rounds=1, **options)
    failed = fit(
        network,
        Answered(fails_at=2),
        rounds=9,
        **{**options, "participation": lambda r: run_with(network, participation, r)},
    )
    again = fit(
        network, Answered(), rounds=1, **{**options, "participation": lambda r: run_with(network, participation, r)}
    )
    assert failed.rounds == 1
    assert failed.stopped == "stopped before round 2: the last site is down"
    for ours, theirs in zip(failed.state, again.state, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert failed.snapshot.memory == again.snapshot.memory == before.snapshot.memory
    assert set(failed.snapshot.to_each) == {"twice"}
    np.testing.assert_array_equal(failed.snapshot.to_each["twice"], again.snapshot.to_each["twice"])
    assert failed.snapshot.bytes_sent == again.snapshot.bytes_sent


def run_with(network, share, round_):
    """Who takes part: always the last node."""
    drawn = np.random.default_rng(round_).choice(23, round(share * 23), replace=False)
    return [*drawn.tolist(), 23] if share < 1 else list(range(24))


def test_a_mask_of_edges_is_asked_for_once_a_round():
    network, asked = difficult_network(), []

    def mask(round_):
        asked.append(round_)
        return np.ones(37, dtype=bool)

    fit(network, probes.PowerMean(), rounds=3, stop=None, edges=mask)
    assert asked == [1, 2, 3]


def test_nodes_without_data_get_a_model_of_the_coordinator():
    x = [[1.0]]
    network = Network(graphs.edgeless(4), [(x, [5.0]), (x, [5.1]), (x, [9.0]), None])
    for share in (1.0, 0.7):
        ifca = fit(network, IFCA(model_count=2, initial=Given(((4.0,), (9.0,)))), rounds=60, participation=share)
        assert ifca.models.w[3] in ifca.snapshot.to_all["w"]
        assert ifca.models.w[3] != 0
        common = fit(network, PFedMe(), rounds=5, stop=None, participation=lambda r: [0, 1, 2, 3] if r == 1 else [0, 1])
        np.testing.assert_array_equal(common.models.w[3], common.snapshot.to_all["w"])


def test_a_start_with_other_clusters_begins_anew():
    network = difficult_network()
    one = fit(network, FedAvg(), rounds=3, stop=None)
    two = fit(network, FedAvg(clusters=tuple(k % 2 for k in range(24))), rounds=3, stop=None, start=one)
    assert two.snapshot.to_all["w"].shape == (2, 3)
    gradients = fit(network, FedAvg(average="gradients"), rounds=3, stop=None, start=one)
    assert gradients.rounds == 6


def test_a_state_given_to_a_run_is_started_from_on_any_number_of_sites():
    network = difficult_network()
    run = fit(network, GTVMin(), rounds=5, stop=None)
    guess = run.with_state(run.state._replace(w=run.state.w + 1.0, w_bar=run.state.w_bar + 1.0))
    one, four = (fit(network, GTVMin(), rounds=5, stop=None, start=guess, engine=InProcess(k)) for k in (1, 4))
    np.testing.assert_allclose(one.models.w, four.models.w, atol=1e-12)
    assert one.history.index[0] == 5


def test_a_callback_cannot_change_the_history():
    run = fit(difficult_network(), FedGD(), rounds=2, stop=None, callbacks=[lambda row, _: row.update(objective=7.0)])
    assert (run.history["objective"] != 7.0).all()


def test_no_site_answers():
    network = difficult_network()
    flaky = Flaky.of(network, GTVMin(), 2, 0.0)
    flaky.silent = frozenset({(0, 1), (1, 1)})
    session = Session(network, GTVMin(), flaky)
    session.begin(everybody(network))
    before = arrays_of(session.snapshot().state)
    with pytest.raises(LearningError, match="no site answered in round 1"):
        session.step(everybody(network, 1))
    for now, then in zip(session.snapshot().state, before, strict=True):
        np.testing.assert_array_equal(now, then)


# ---------------------------------------------------------------------- edges, names, the rest


def test_a_mask_of_edges_per_round():
    network = difficult_network()
    first_half = np.arange(network.graph.edge_count) < 20

    def mask(round_):
        return first_half if round_ % 2 else ~first_half

    run = fit(network, GTVMin(lam=0.1), rounds=20_000, edges=mask)
    best = fit(network, GTVMin(lam=0.1))
    np.testing.assert_allclose(run.models.w, best.models.w, atol=1e-4)
    sites = fit(network, GTVMin(lam=0.1), rounds=30, stop=None, edges=mask, engine=InProcess(5))
    whole = fit(network, GTVMin(lam=0.1), rounds=30, stop=None, edges=mask)
    np.testing.assert_allclose(sites.models.w, whole.models.w, atol=1e-12)
    none = fit(network, FedGD(lam=1.0), rounds=5, stop=None, edges=lambda _: np.zeros(37, dtype=bool))
    assert none.history["bytes"].iloc[-1] == 0
    for wrong in (lambda _: [True], lambda _: np.ones(37)):
        with pytest.raises(InputError, match="Expected True or False for each of 37 edges in round 1"):
            fit(network, GTVMin(), edges=wrong)


def test_randomness_is_keyed_by_node_round_exchange_and_name():
    def draw(turn, node, name=""):
        return turn.rng(node, name).random()

    turn = Turn(3, np.arange(4), 7)
    others = [draw(turn, 2), draw(turn, 1, "batch"), draw(replace(turn, round=4), 1), draw(replace(turn, seed=8), 1)]
    others += [draw(replace(turn, exchange=1), 1), draw(turn, 1, "noise")]
    assert draw(turn, 1) == draw(Turn(3, np.arange(2), 7), 1)
    assert len({draw(turn, 1), *others}) == 7


def test_the_coordinator_knows_the_scene():
    """Nobody sends its start only to tell its shape."""
    network = difficult_network()
    for algorithm in (FedAvg(), PFedMe(), IFCA(model_count=2, initial=Uniform(0.0, 1.0)), Pooled()):
        carrier = InProcess().open(network, algorithm)
        first = carrier.workers[0].begin(Request("begin", everybody(network)))
        assert isinstance(first, Messages)
        assert "w" not in first.coordinator
        assert isinstance(algorithm, Coordinated)


SHIPPED = [
    GTVMin(), GTVMin(coupling=SquaredNorm()), Local(), Pooled(), FedAvg(), FedAvg(average="gradients"), FedGD(),
    PFedMe(), IFCA(model_count=2, initial=Uniform(-1.0, 1.0), starts=2), FedRelax(LinearModel()),
    FedProx(), SCAFFOLD(), FeSEM(model_count=2), DFL(step_size=0.02), DFL(step_size=0.02, tracking=True),
    BiGFL(), BiGFL(phi="learn", warm_up=2, phi_every=3),
    BiGFL(phi="learn", warm_up=2, phi_every=3, upper=CosineEmbedding(2)),
]  # fmt: skip


@pytest.mark.parametrize("algorithm", SHIPPED, ids=repr)
def test_every_shipped_algorithm_declares_all_that_leaves_a_node(algorithm):
    network = difficult_network()
    sends = algorithm.sends(network)
    assert sends is not None
    seen = {"neighbours": {}, "coordinator": {}}

    class Recording(WorkersHere):
        def exchange(self, requests):
            answers = super().exchange(requests)
            for site, answer in answers.items():
                seen["coordinator"].update(answer.coordinator)
                seen["neighbours"].update(self.workers[site].sent)
            return answers

    session = Session(network, algorithm, Recording.of(network, algorithm, 2, 0.0))
    session.begin(everybody(network))
    for round_ in range(1, 12):
        session.step(everybody(network, round_))
    for to, arrays in seen.items():
        declared = getattr(sends, to)
        assert set(arrays) == set(declared)
        for name, values in arrays.items():
            assert values.shape[1:] == declared[name].shape
            assert str(values.dtype) == declared[name].dtype
            assert values[:1].nbytes == declared[name].largest_bytes
    assert Squared().start(3).tolist() == [0.0, 0.0, 0.0]
