"""The round loop: history, stopping, participation, warm starts, bytes, progress."""

import io
from dataclasses import replace

import numpy as np
import pandas
import pytest
import rich.console

from kinfolk import (
    FedAvg,
    FedGD,
    GTVMin,
    InProcess,
    InputError,
    Logistic,
    Network,
    Pooled,
    Run,
    Squared,
    SquaredNorm,
    Tolerance,
    fit,
    graphs,
    progress,
    resume,
)
from kinfolk.network.site import sites_of
from kinfolk.testing import difficult_network


def test_history_has_a_row_for_every_measured_round():
    run = fit(difficult_network(), GTVMin(), rounds=35, stop=None, measure_every=10)
    assert run.history.index.tolist() == [*range(11), 20, 30, 35]
    columns = ["objective", "residual", "gap", "stationarity", "complementarity", "error", "bytes", "seconds"]
    assert run.history.columns.tolist() == [*columns, "seconds_per_round"]
    assert (run.history["gap"] >= 0).all()
    assert run.history["seconds"].is_monotonic_increasing
    assert run.stopped == "stopped after the 35 rounds it was given"
    assert run.error() == pytest.approx(run.history["error"].iloc[-1])


def test_stop_rule_of_the_user():
    run = fit(difficult_network(), GTVMin(), stop=lambda row: "enough" if row["round"] >= 3 else None)
    assert (run.stopped, run.rounds) == ("enough", 3)
    assert "enough" in repr(run)


def test_bytes_count_every_message_as_if_every_node_were_a_site():
    network = difficult_network()
    run = fit(network, GTVMin(steps="published"), rounds=4, stop=None)
    per_round = 2 * network.graph.edge_count * 3 * 8
    assert run.history["bytes"].diff().dropna().tolist() == [per_round] * 4
    # Round 0: everybody tells the coordinator two numbers and hears two.
    assert run.history["bytes"].iloc[0] == 24 * 4 * 8
    averaged = fit(network, FedAvg(), rounds=4, stop=None, participation=lambda _: [1, 2])
    words, reply = 3 + 1, 3 + 1 + 1
    assert averaged.history["bytes"].diff().dropna().tolist() == [2 * (words + reply) * 8] * 4


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    network = difficult_network()
    runs = [fit(network, GTVMin(), rounds=9, stop=None, participation=0.3, seed=seed) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0].models.w, runs[1].models.w)
    assert np.abs(runs[0].models.w - runs[2].models.w)[network.informed].max() > 1e-6


def test_a_schedule_names_who_takes_part():
    network = Network(graphs.Graph.from_edges([("a", "b"), ("b", "c")]), [([[1.0]], [k]) for k in (1.0, 2.0, 3.0)])
    began = fit(network, GTVMin(), rounds=0)
    run = fit(network, GTVMin(), rounds=5, stop=None, participation=lambda round_: ["a", "b"] if round_ % 2 else ["a"])
    assert run.models.w[2] == began.models.w[2]
    assert run.models.w[0] != began.models.w[0]


def test_warm_start_goes_on_and_needs_fewer_rounds():
    network = difficult_network()
    cold = fit(network, GTVMin(lam=0.11))
    warm = fit(network, GTVMin(lam=0.11), start=fit(network, GTVMin(lam=0.1101)))
    np.testing.assert_allclose(warm.models.w, cold.models.w, atol=1e-4)
    assert warm.history.index[-1] - warm.history.index[0] < cold.rounds
    again = fit(network, GTVMin(lam=0.11), start=cold, stop=Tolerance(1e-9))
    assert again.history.index.is_unique
    assert again.history.index[0] == 0
    assert again.history.index[-1] > cold.rounds


def test_callbacks_see_every_row():
    rows = []
    fit(difficult_network(), GTVMin(), rounds=3, stop=None, callbacks=[lambda row, _: rows.append(row)])
    assert [row["round"] for row in rows] == [0, 1, 2, 3]


def test_predict_by_name():
    network = Network(graphs.Graph.from_edges([("a", "b")]), [([[1.0]], [2.0]), ([[1.0]], [2.0])])
    run = fit(network, GTVMin())
    np.testing.assert_allclose(run.predict([[1.0], [3.0]], ["b", "a"]), [2.0, 6.0], rtol=1e-4)
    frame = pandas.DataFrame({"noise": [7.0], "x0": [3.0]})
    np.testing.assert_allclose(run.predict(frame, ["a"]), [6.0], rtol=1e-4)
    for X, node, sentence in (
        ([[1.0]], ["z"], "got unknown 'z'"),
        ([[1.0, 2.0]], ["a"], "Expected 1 features and one node for every row"),
        ([[1.0]], ["a", "b"], "Expected 1 features and one node for every row"),
        ([[np.nan]], ["a"], "Expected finite numbers for the features"),
        (frame[["noise"]], ["a"], "Expected columns 'x0', the table has no 'x0'"),
    ):
        with pytest.raises(InputError, match=sentence):
            run.predict(X, node)


def test_probabilities_of_classes():
    network = difficult_network(classes=True)
    run = fit(network, GTVMin(Logistic(), lam=0.1))
    p = run.predict_proba(network.test.X, network.test.owner)
    np.testing.assert_allclose(p.sum(axis=1)[network.informed[network.test.owner]], 1.0)
    known = ~np.isnan(p[:, 1])
    labels = run.predict(network.test.X, network.test.owner)
    np.testing.assert_array_equal(labels[known] == 1, p[known, 1] > 0.5)
    with pytest.raises(InputError, match="Expected a Logistic loss for probabilities"):
        fit(difficult_network(), GTVMin()).predict_proba(network.test.X, network.test.owner)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rounds": -1}, "The 'rounds' parameter of fit must be a whole number ≥ 0. Got -1 instead."),
        ({"participation": 0.0}, "The 'participation' parameter of fit must be a number in (0, 1]. Got 0.0 instead."),
        (
            {"measure_every": 0},
            "The 'measure_every' parameter of fit must be a whole number ≥ 1 or None. Got 0 instead.",
        ),
        ({"engine": InProcess(sites=0)}, "The 'sites' parameter of InProcess must be a whole number ≥ 1."),
        ({"engine": InProcess(lost=2.0)}, "The 'lost' parameter of InProcess must be a number in [0, 1]."),
        ({"participation": lambda _: ["nobody"]}, "got unknown 'nobody'"),
        ({"participation": lambda _: 0.5}, "Expected the names of those who take part in round 1, got 0.5."),
        ({"engine": 7}, "Expected an engine such as InProcess(), got 7."),
        ({"stop": 1e-8}, "Expected a stop rule such as Tolerance(1e-8), got 1e-08."),
        ({"stop": Tolerance(-1)}, "The 'residual' parameter of Tolerance must be a number ≥ 0. Got -1 instead."),
        ({"seed": -1}, "The 'seed' parameter of fit must be a whole number ≥ 0. Got -1 instead."),
        ({"start": 7}, "Expected a run of GTVMin to start from, got 7."),
    ],
)
def test_wrong_arguments_get_a_sentence(options, sentence):
    with pytest.raises(InputError) as error:
        fit(difficult_network(), GTVMin(), **options)
    assert sentence in str(error.value)


def test_a_graph_is_no_network_and_a_start_must_fit():
    with pytest.raises(InputError, match="Expected a Network, got Graph"):
        fit(graphs.chain(3), GTVMin())
    for wrong in (GTVMin, None, "GTVMin"):
        with pytest.raises(InputError, match="Expected an algorithm such as"):
            fit(difficult_network(), wrong)
    other = fit(Network(graphs.chain(2), [([[1.0]], [1.0]), None]), GTVMin())
    with pytest.raises(InputError, match="Expected a start on the same graph"):
        fit(difficult_network(), GTVMin(), start=other)
    here = fit(difficult_network(), GTVMin(), rounds=1)
    with pytest.raises(InputError, match="Expected a run of Pooled to start from"):
        fit(difficult_network(), Pooled(), start=here)
    with pytest.raises(InputError, match="Expected a start with as many parameters"):
        fit(difficult_network(), GTVMin(Squared(intercept=True)), start=here)


def test_a_diverged_run_says_so():
    network = Network(graphs.chain(2), [([[1e160]], [1e160]), ([[1.0]], [1.0])])
    with np.errstate(all="ignore"):
        run = fit(network, GTVMin())
    assert run.stopped.startswith("diverged: the objective is ")


@pytest.mark.parametrize("rounds", [10, 60, 2_000])
def test_steps_that_are_too_large_are_called_diverged_with_what_to_do(rounds):
    network = difficult_network()
    with np.errstate(all="ignore"):
        run = fit(network, FedGD(step_size=100.0), rounds=rounds)
    assert run.stopped.startswith("diverged: the objective ")
    assert run.stopped.endswith("take a smaller step_size, or bring features and target to the scale of 1")


@pytest.mark.parametrize("rounds", [60, 2_000])
@pytest.mark.parametrize("engine", [InProcess(), InProcess(3, lost=0.1)], ids=repr)
def test_a_diverged_run_hands_out_its_best_iterate(rounds, engine):
    network, algorithm, seen = difficult_network(), FedGD(step_size=0.1), {}

    def keep(row, snapshot):
        seen[row["round"]] = row["objective"], snapshot().state.w.copy()

    with np.errstate(all="ignore"):
        run = fit(network, algorithm, rounds=rounds, engine=engine, participation=0.9, callbacks=[keep])
    best = min((round_ for round_ in seen if np.isfinite(seen[round_][0])), key=lambda round_: seen[round_][0])
    assert 0 < best < max(seen)
    assert f"so the models are those of round {best}, where it was {seen[best][0]:.3g}: " in run.stopped
    assert run.rounds == run.history.index[-1] == best
    assert run.last_row["objective"] == seen[best][0]
    np.testing.assert_array_equal(run.state.w, seen[best][1])
    np.testing.assert_array_equal(run.models.w, seen[best][1])
    assert (run.history["bytes"].diff().dropna() >= 0).all()
    cut = fit(network, algorithm, rounds=best, engine=engine, participation=0.9, stop=None)
    assert run.last_row["bytes"] == cut.last_row["bytes"]


def test_a_run_that_goes_on_and_diverges_is_back_where_it_went_on():
    network = difficult_network()
    good = fit(network, FedGD(step_size=0.01), rounds=100, stop=None)
    before = good.history.copy()
    with np.errstate(all="ignore"):
        run = fit(network, FedGD(step_size=100.0), rounds=60, start=good)
    begun = fit(network, FedGD(step_size=100.0), rounds=0, start=good)
    assert run.stopped.startswith("diverged: the objective ")
    assert run.rounds == 100
    np.testing.assert_array_equal(run.models.w, begun.models.w)
    pandas.testing.assert_frame_equal(good.history, before)


def test_a_diverged_run_that_was_interrupted_hands_out_the_best_since_its_checkpoint(tmp_path):
    network = difficult_network()
    with np.errstate(all="ignore"):
        run = fit(network, FedGD(step_size=0.1), rounds=60, checkpoint=tmp_path / "kept", checkpoint_every=7)
        again = resume(tmp_path / "kept", network)
    assert run.stopped.startswith("diverged: the objective ")
    assert again.stopped == run.stopped
    np.testing.assert_array_equal(again.models.w, run.models.w)


def test_few_rounds_from_a_good_start_are_not_called_diverged():
    network = difficult_network()
    solved = fit(network, GTVMin(lam=1e-3))
    run = fit(network, GTVMin(lam=1e3), rounds=30, stop=None, start=solved)
    assert run.stopped == "stopped after the 30 rounds it was given"
    assert fit(network, GTVMin(lam=1e3), rounds=3, stop=None, start=solved).stopped.startswith("stopped after the 3")


def test_steps_follow_the_mode_after_a_warm_start():
    network = difficult_network()
    balanced = fit(network, GTVMin(), rounds=30, stop=None)
    published = fit(network, GTVMin(steps="published"), rounds=30, stop=None, start=balanced)
    assert (published.snapshot.to_all["eta"], published.snapshot.to_all["rho"]) == (1.0, 1.0)
    again = fit(network, GTVMin(), rounds=30, stop=None, start=published)
    assert again.snapshot.to_all["rho"] > 1.0


def test_absence_between_reports_is_noticed():
    network = difficult_network()
    everybody = list(range(24))

    def most(round_):
        return [k for k in everybody if round_ % 10 == 0 or k % 5 != round_ % 5]

    run = fit(network, GTVMin(lam=0.1), participation=most, rounds=5000)
    assert run.snapshot.to_all["rho"] == 1.0
    assert run.stopped.startswith("converged")


def test_error_without_test_data_is_refused():
    run: Run = fit(Network(graphs.chain(2), [([[1.0]], [1.0]), None]), GTVMin())
    with pytest.raises(InputError, match="Expected a network with test data"):
        run.error()


def test_a_log_gets_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0.0)
    fit(difficult_network(), GTVMin(), rounds=5, stop=None)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("GTVMin: ") and " of 5, " in line and " seconds" in line for line in lines)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 60.0)
    fit(difficult_network(), GTVMin(), rounds=5, stop=None)
    assert capsys.readouterr().err == ""


def test_progress_shows_on_a_terminal_only(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    for terminal in (True, False):
        written = io.StringIO()
        real = rich.console.Console
        monkeypatch.setattr(
            rich.console,
            "Console",
            lambda **_: real(file=written, force_terminal=terminal, width=80),  # noqa: B023
        )
        fit(difficult_network(), GTVMin(), rounds=50, stop=None)
        monkeypatch.setattr(rich.console, "Console", real)
        assert ("GTVMin" in written.getvalue()) == terminal


@pytest.mark.parametrize("algorithm", [GTVMin(coupling=SquaredNorm()), Pooled(), FedAvg()], ids=repr)
def test_a_path_of_warm_starts_ends_where_cold_starts_do(algorithm):
    network, run = difficult_network(), None
    for ridge in (1.0, 0.1, 0.01, 100.0):
        step = replace(algorithm, loss=Squared(ridge=ridge))
        run = fit(network, step, start=run, stop=Tolerance(1e-9), rounds=20_000)
        assert run.stopped.startswith("converged")
        cold = fit(network, step, stop=Tolerance(1e-9), rounds=20_000)
        np.testing.assert_allclose(run.models.w, cold.models.w, atol=1e-6)


@pytest.mark.parametrize("lost", [0.0, 0.2])
@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("algorithm", [GTVMin(lam=0.1), FedAvg(), FedGD()], ids=repr)
def test_a_large_site_orders_its_nodes_and_nothing_else_changes(algorithm, participation, lost, monkeypatch):
    network = difficult_network()
    options = {"rounds": 23, "stop": None, "participation": participation, "engine": InProcess(lost=lost)}
    plain = fit(network, algorithm, **options)
    monkeypatch.setattr("kinfolk.network.site.ORDERED_FROM", 0)
    assert not np.array_equal(sites_of(network, 1)[0].nodes, network.site.nodes)
    ordered = fit(network, algorithm, **options)
    assert ordered.history["objective"].iloc[-1] == pytest.approx(plain.history["objective"].iloc[-1], rel=1e-10)
    for name in plain.state._fields:
        np.testing.assert_allclose(getattr(ordered.state, name), getattr(plain.state, name), atol=1e-10)
    further = [fit(network, algorithm, start=run, **options).models.w for run in (plain, ordered)]
    np.testing.assert_allclose(*further, atol=1e-10)


def test_an_objective_that_grows_with_those_who_have_taken_part_is_no_divergence():
    """One of ten nodes a round: whoever has not been there yet counts nothing."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from kinfolk import FedCG, TorchLoss
    from kinfolk.algorithms.fedcg import GivenDomains

    rng = np.random.default_rng(0)
    data = [(np.column_stack([rng.normal(size=(6, 2)), np.zeros(6)]), rng.integers(0, 2, 6).astype(float))] * 10
    loss = TorchLoss(torch.nn.Sequential(torch.nn.Linear(2, 2)), "cross-entropy", step_size=0.01)
    algorithm = FedCG(loss, layers=["0"], domains=1, discovery=GivenDomains(), graph=None)
    run = fit(Network(graphs.edgeless(10), data), algorithm, rounds=20, stop=None, participation=0.1, progress=False)
    assert run.history["objective"].iloc[-1] > 2 * run.history["objective"].iloc[1]
    assert run.stopped == "stopped after the 20 rounds it was given"
    assert run.rounds == 20
