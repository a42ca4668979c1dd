"""The paper's tables and figures, in their quick settings, against what the paper prints and what theory says."""

import re

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

from kinfolk import InputError, graphs
from kinfolk.cli import app
from kinfolk.datasets import block_regression, chain_regression, clustered_regression, star_regression
from kinfolk.experiments import (
    EXPERIMENTS,
    fedrelax,
    fedrelax_runs,
    fedrelax_trees,
    fedrelax_variation,
    find,
    gtv,
    unfinished,
)
from kinfolk.testing import check_graph


def verdicts(outcome):
    return {claim.text: claim.holds for claim in outcome.claims}


def test_table_1():
    outcome = gtv.table1(quick=True)
    mse = outcome.table.set_index("method")["median"]
    assert 1e-5 <= mse["GTVMin, summed, ‖·‖₁"] <= 2.1e-5  # the paper prints 1.42e-5
    assert mse["GTVMin, averaged, ‖·‖₂"] == pytest.approx(2.5e-5, rel=0.4)
    assert 2.5 < mse["FedAvg"] < 4.5  # the paper prints 2.86
    assert mse["IFCA, start {0, ½}"] < 2e-7
    assert mse["IFCA, start {0, 5}"] > 1  # a start ten times too large
    assert mse["FedAvgC (clusters known)"] == pytest.approx(mse["Oracle (clusters known)"], rel=0.01)
    assert mse["Oracle (clusters known)"] == pytest.approx(1.1e-7, rel=0.2)
    for descent in ("FedGD", "Adam (torch)"):
        assert mse[f"{descent}, 900 rounds"] < mse[f"{descent}, 300 rounds"]
    held = verdicts(outcome)
    assert held["Nodes of a cluster get the same model (36)"]
    assert held["The deviation from the oracle obeys (37)"]
    assert not held["Condition (35) holds where clusters are recovered"]
    assert not held["Algorithm 1 is better than IFCA started in {0, 1}"]


def test_figure_2():
    table = gtv.fig2(quick=True).table.set_index("method")
    assert (table.loc["GTVMin"] < 1e-4).all()
    assert (table.loc["FedAvgC"] < table.loc["GTVMin"]).all()
    assert (table.loc["FedAvg"] > 1).all()


def test_figure_3():
    share = gtv.fig3(quick=True)
    assert all(verdicts(share).values()), share.claims
    # Without noise, pooled clusters are pulled towards each other: the error grows as (λε)².
    error = share.table.set_index(["graph", "λ", "ε"])["ρ = 1"]["star"]
    assert error[0.1, 0.5] / error[0.01, 0.5] == pytest.approx(100, rel=0.05)
    assert error[0.1, 0.5] / error[0.1, 0.01] == pytest.approx(2500, rel=0.05)


def test_the_problem_of_table_1():
    problem = block_regression()
    assert problem.network.graph.node_count == 200
    assert problem.network.data.X.shape == (2_000, 100)
    assert set(np.unique(problem.truth)) == {0.0, 0.5}
    X, y = problem.network.data[7]
    assert np.abs(X @ problem.truth[7] - y).std() == pytest.approx(1e-3, rel=0.5)
    assert problem.error(problem.truth + 0.1) == pytest.approx(1.0)  # summed over the 100 features
    np.testing.assert_array_equal(problem.truth, block_regression().truth)


@pytest.mark.parametrize("make", [chain_regression, star_regression])
def test_chain_and_star(make):
    problem = make(10, link=0.25, share=0.55, seed=3)
    graph = problem.network.graph
    across = problem.cluster[graph.head] != problem.cluster[graph.tail]
    assert graph.weights[across].tolist() == [0.25]
    assert (graph.weights[~across] == 1).all()
    assert graph.edge_count == 19
    assert (problem.network.data.sizes > 0).sum() == 11
    check_graph(graph)
    assert make(10, link=0.0).network.graph.components.max() == 1


def test_bad_input_is_a_sentence():
    with pytest.raises(InputError, match="The 'share' parameter of clustered_regression must be a number in"):
        clustered_regression(graphs.chain(2), np.array([0, 1]), share=0.0)
    with pytest.raises(InputError, match="The 'node_count' parameter of double_star must be a whole number ≥ 2"):
        graphs.double_star(1)
    with pytest.raises(InputError, match=r"Expected one of gtv-table1, .*, fedcg-mixed, got 'fig1'"):
        find("fig1")


def test_figure_4_from_the_command_line(tmp_path):
    options = ["reproduce", "gtv-fig4", "--quick", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, options, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    shown, written = result.output.split("Written: ")
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"^holds The more noise, the larger the error", shown, re.M)
    assert re.search(r"^fails The weaker the edge between clusters, the smaller the error, at σ = 1", shown, re.M)
    assert str(tmp_path / "gtv-fig4.csv") in written
    runs = pandas.read_csv(tmp_path / "gtv-fig4.csv")
    assert set(runs.columns) == {"graph", "λ", "ε", "σ", "seed", "mse"}
    assert (tmp_path / "gtv-fig4.png").stat().st_size > 10_000


def test_names_are_listed_and_unknown_ones_refused():
    listed = CliRunner().invoke(app, ["reproduce", "--list"]).output
    assert [line.split()[0] for line in listed.splitlines()] == list(EXPERIMENTS)
    refused = CliRunner().invoke(app, ["reproduce", "fig1"])
    assert refused.exit_code == 1
    assert refused.stderr.strip() == f"kinfolk: Expected one of {', '.join(EXPERIMENTS)}, got 'fig1'."


def test_an_interrupted_experiment_goes_on(tmp_path, monkeypatch):
    options = ["reproduce", "fedrelax-fig5a", "--quick", "--out"]
    made, whole = [], fedrelax_variation._variations

    def counted(network, lam, seed):
        if len(made) == stop_after:
            raise KeyboardInterrupt
        made.append(lam)
        return whole(network, lam, seed)

    monkeypatch.setattr(fedrelax_variation, "_variations", counted)
    stop_after = 2
    assert CliRunner().invoke(app, [*options, str(tmp_path / "cut")]).exit_code != 0
    kept = tmp_path / "cut" / "fedrelax-fig5a.unfinished"
    with kept.open("a") as file:
        file.write('\n[["fedrelax-fig5a", true')  # killed while it wrote
    stop_after = 3
    assert CliRunner().invoke(app, [*options, str(tmp_path / "cut")]).exit_code != 0
    stop_after = -1
    resumed = CliRunner().invoke(app, [*options, str(tmp_path / "cut")])
    assert "Going on after 3 finished parts" in resumed.output
    assert len(made) == 6  # two noises, three α, each once
    assert not kept.exists()
    straight = CliRunner().invoke(app, [*options, str(tmp_path / "straight")])
    assert len(made) == 12
    assert "Going on" not in straight.output
    one, other = ((tmp_path / part / "fedrelax-fig5a.csv").read_bytes() for part in ("cut", "straight"))
    assert one == other


def test_what_is_kept_of_another_experiment_is_left_out(tmp_path):
    def interrupted(about, number):
        with unfinished.resuming(tmp_path / "kept", about):
            found.extend(unfinished.once((0,), lambda: [number]))
            raise KeyboardInterrupt

    found = []
    for number, about in enumerate((["a", "version 1"], ["a", "version 2"], ["a", "version 1"])):
        with pytest.raises(KeyboardInterrupt):
            interrupted(about, number)
    assert found == [0, 1, 0]


# ---------------------------------------------------------------------- FedRelax


def test_fedrelax_figure_1a():
    outcome = fedrelax.fig1a(quick=True)
    error = outcome.table.set_index(["α", "method"])
    assert error.loc[(0.0, fedrelax_runs.ALONE), "d = 2"] < 1e-20  # ten samples of two features, no noise
    assert error.loc[(0.0, fedrelax_runs.ALONE), "d = 20"] == pytest.approx(0.5, rel=0.4)  # half is unseen
    for lam in fedrelax_runs.LAMS:
        exact, steps = (error.loc[(lam, method)] for method in (fedrelax_runs.EXACT, fedrelax_runs.STEPS))
        np.testing.assert_allclose(steps, exact, rtol=0.15)
    held = verdicts(outcome)
    assert held["FedRelax (α = 0.01) is better than nodes alone for d/m ≥ 2"]
    assert not held["... for d/m = 0.2"]  # pooling hurts where nodes can learn alone


def test_fedrelax_figure_1b():
    held = verdicts(fedrelax.fig1b(quick=True))
    assert held["α = 0.01: better than least squares alone at σ = 5"]
    assert not held["α = 0.01: better than least squares alone at σ = 0"]
    assert held["α = 0.01: better than 500 steps alone at σ = 0"]  # with few neighbours; with 150 nodes it fails


def test_fedrelax_figure_1c():
    mse = fedrelax.fig1c(quick=True).table.set_index("method")["mean"]
    assert mse["Oracle (clusters known)"] < 1e-20
    assert mse["IFCA, K = 5, best of ten starts"] < 1e-3
    assert mse["Oracle (clusters known)"] < mse["FedRelax, α = 0.01, exact"] < mse["FedAvg"]
    assert mse["FedRelax, α = 0.01, exact"] < mse[fedrelax_runs.ALONE] < mse["alone, RMSprop"]


@pytest.mark.parametrize("figure", [fedrelax_trees.fig2a, fedrelax_trees.fig2b, fedrelax_trees.fig4])
def test_fedrelax_figures_with_trees(figure, tmp_path):
    outcome = figure(quick=True)
    assert sorted(outcome.runs["round"].unique()) == list(range(fedrelax_trees.TREE_ROUNDS + 1))
    assert np.isfinite(outcome.runs["normalised"]).all()
    assert all(path.stat().st_size > 0 for path in outcome.write(tmp_path))


def test_a_strong_alpha_hurts_if_it_ends_above_the_weak_one():
    index = pandas.MultiIndex.from_product([[2, 10], [0.0], [fedrelax_trees.TREE_LAM, 0.1]])
    means = pandas.DataFrame([[1.0, 0.8, 0.7], [1.0, 0.6, 0.75], [1.0, 0.8, 0.7], [1.0, 0.6, 0.65]], index)
    harm, none = (fedrelax_trees._strong_hurts(means, features, 0.1) for features in (2, 10))
    assert harm.holds
    assert not none.holds
    assert harm.numbers == "0.75 against 0.7 of nodes alone; its best is 0.6, in round 1"


def test_fedrelax_figure_3():
    outcome = fedrelax.fig3(quick=True)
    held = verdicts(outcome)
    assert held["α = 0.01 is better than the paper's 500 steps alone, for every d and σ"]
    table = outcome.table.set_index(["d", "σ"])
    np.testing.assert_allclose(table["α = 0.05, exact"], table["α = 0.05, RMSprop"], rtol=0.1)


@pytest.mark.parametrize("figure", [fedrelax_variation.fig5a, fedrelax_variation.fig5b])
def test_fedrelax_figure_5(figure):
    outcome = figure(quick=True)
    assert all(verdicts(outcome).values()), outcome.claims


def test_mixtures_follow_algorithm_3():
    network = fedrelax_runs.mixture(12, features=3, noise=0.0, seed=1)
    assert network.graph.edge_count == 66
    assert ((network.graph.weights > 0) & (network.graph.weights <= 1)).all()  # (21)
    assert (network.data.sizes == 10).all()
    assert (network.test.sizes == 100).all()
    for node in range(12):
        X, y = network.test[node]
        assert np.linalg.matrix_rank(np.column_stack([X, y])) > 3  # no single regression explains a mixture


# ---------------------------------------------------------------------- graph-aware federated learning


def test_figure_10_1_from_the_command_line(tmp_path):
    pytest.importorskip("torch")
    result = CliRunner().invoke(
        app, ["reproduce", "gfl-fig1", "--quick", "--out", str(tmp_path)], env={"COLUMNS": "80"}
    )
    assert result.exit_code == 0, result.output
    shown = result.output.split("Written: ")[0]
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"^holds DFL-GT is ahead of DFL-SGD after 20 rounds", shown, re.M)
    assert re.search(r"^fails Steps of 15/√t, as printed, train all three", shown, re.M)
    runs = pandas.read_csv(tmp_path / "gfl-fig1.csv")
    assert set(runs["method"]) == {"FedAvg", "DFL-SGD", "DFL-GT"}
    assert runs.groupby(["tau", "lost"])["round"].max().to_dict() == {(2, 0.0): 100, (10, 0.0): 20, (10, 0.5): 20}
    assert (tmp_path / "gfl-fig1.png").stat().st_size > 10_000


def test_the_five_nodes_of_figure_10_1_differ_and_share_one_scale():
    from kinfolk.experiments import gfl

    network = gfl.draw_network(0)
    assert network.data.sizes.tolist() == [100] * 5
    np.testing.assert_allclose([network.data.X.mean(), network.data.y.mean()], 0, atol=1e-12)
    np.testing.assert_allclose([network.data.X.std(), network.data.y.std()], 1, rtol=1e-6)
    ranges = [np.ptp(network.data[k][0][:, 0]) for k in range(5)]
    np.testing.assert_allclose(np.array(ranges) / ranges[0], [1, 1, 5 / 60, 2 / 60, 0.2 / 60], rtol=0.05)
