"""Networks: data with names, ragged sizes, and sentences for what cannot be."""

import numpy as np
import pandas
import pytest

from kinfolk import Graph, GTVMin, InputError, Logistic, Network, datasets, fit, graphs
from kinfolk.engine.selection import select_lam
from kinfolk.network.data import Data
from kinfolk.network.site import sites_of
from kinfolk.objective.losses import SquaredDistance
from kinfolk.testing import difficult_network

ONE = ([[1.0]], [1.0])


def test_points_by_name_in_order_and_from_a_table_give_the_same_network():
    graph = Graph.from_edges([("b", "a"), ("a", "c")])
    frame = pandas.DataFrame({"town": ["a", "c", "a"], "x": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0]})
    by_name = Network.of_points(graph, {"a": [[1.0, 4.0], [3.0, 6.0]], "c": [2.0, 5.0]})
    by_order = Network.of_points(graph, [None, [[1.0, 4.0], [3.0, 6.0]], [2.0, 5.0]])
    by_frame = Network.from_frame(frame, node="town", target=None, graph=graph)
    for other in (by_order, by_frame):
        np.testing.assert_array_equal(by_name.data.X, other.data.X)
        np.testing.assert_array_equal(by_name.data.starts, other.data.starts)
        assert np.isnan(other.data.y).all()
    assert by_frame.features == ["x", "y"]


def test_points_have_centres_and_distances_but_no_labels():
    network = Network.of_points(graphs.chain(3), [[0.0, 0.0], [2.0, 0.0], None], test=[None, [2.0, 3.0], [1.0, 0.0]])
    run = fit(network, GTVMin(SquaredDistance(), lam=10.0))
    np.testing.assert_allclose(run.models.w, [[1.0, 0.0]] * 3, atol=1e-5)
    np.testing.assert_allclose(run.predict([[7.0, 7.0]], [2]), [[1.0, 0.0]], atol=1e-5)
    np.testing.assert_allclose(run.models.error(network.test.X, network.test.y, [1, 2]), [10.0, 0.0], atol=1e-4)
    assert run.error() == pytest.approx(5.0, abs=1e-4)
    assert network.hide([1]).test.sizes.tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="Expected numbers as labels for Squared, got nan"):
        fit(network, GTVMin())
    with pytest.raises(InputError, match="Expected finite numbers for the features of node 1"):
        Network.of_points(graphs.chain(2), [[0.0], [np.nan]])
    with pytest.raises(InputError, match="Expected points with equally many entries at every node, got ragged ones"):
        Network.of_points(graphs.chain(2), [[[0.0], [1.0, 2.0]], None])
    with pytest.raises(InputError, match="Expected data for each of the 3 nodes"):
        Network.of_points(graphs.chain(3), np.zeros((2, 2)))


def test_lam_for_points_is_chosen_by_the_distance_to_points_held_out():
    rng = np.random.default_rng(0)
    graph, planted = graphs.stochastic_block([8, 8], 0.9, 0.1, seed=0)
    network = Network.of_points(graph, 4.0 * planted[:, None, None] + rng.normal(size=(16, 4, 2)))
    chosen = select_lam(network, GTVMin(SquaredDistance()), [1e-3, 0.3, 1e3], over="samples", folds=4)
    assert chosen.lam == 0.3


def test_mapping_sequence_and_frame_give_the_same_network():
    graph = Graph.from_edges([("b", "a"), ("a", "c")])
    frame = pandas.DataFrame({"town": ["a", "c", "a"], "x": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0]})
    by_name = Network(graph, {"a": ([[1.0], [3.0]], [4.0, 6.0]), "c": ([[2.0]], [5.0])})
    by_order = Network(graph, [None, ([[1.0], [3.0]], [4.0, 6.0]), ([[2.0]], [5.0])])
    by_frame = Network.from_frame(frame, node="town", target="y", graph=graph)
    for other in (by_order, by_frame):
        np.testing.assert_array_equal(by_name.data.X, other.data.X)
        np.testing.assert_array_equal(by_name.data.y, other.data.y)
        np.testing.assert_array_equal(by_name.data.starts, other.data.starts)
    assert by_frame.features == ["x"]
    assert by_frame.data.sizes.tolist() == [0, 2, 1]


def test_test_rows_are_split_off_by_column_or_mask():
    frame = pandas.DataFrame({"n": [0, 1, 1], "x": [1.0, 2, 3], "y": [4.0, 5, 6], "held": [False, True, False]})
    for test in ("held", frame["held"].to_numpy()):
        features = ["x"]
        network = Network.from_frame(frame, node="n", target="y", features=features, graph=graphs.chain(2), test=test)
        assert network.data.y.tolist() == [4.0, 6.0]
        assert network.test.y.tolist() == [5.0]


def test_hidden_nodes_move_to_the_test_data():
    network = difficult_network().hide([0, 5])
    assert network.data.sizes[[0, 5]].tolist() == [0, 0]
    mask = np.isin(np.arange(24), [0, 5])
    np.testing.assert_array_equal(difficult_network().hide(mask).data.X, network.data.X)
    whole = difficult_network()
    assert network.test.sizes.tolist() == [whole.data.sizes[0], 0, 0, 0, 0, whole.data.sizes[5], *[0] * 18]
    np.testing.assert_array_equal(network.test[5][0], whole.data[5][0])


@pytest.mark.parametrize("count", [1, 2, 7, 24, 100])
def test_sites_hold_every_node_once_and_nothing_foreign(count):
    network = difficult_network()
    sites = sites_of(network, count)
    np.testing.assert_array_equal(np.concatenate([site.nodes for site in sites]), np.arange(24))
    assert sum(len(site.data.y) for site in sites) == len(network.data.y)
    assert sum(site.at_smaller_end(np.ones(len(site.head))).sum() for site in sites) == network.graph.edge_count
    w = np.random.default_rng(0).normal(size=(24, 3))
    flow = np.random.default_rng(1).normal(size=(network.graph.edge_count, 3))
    for site in sites:
        own, heard = w[site.nodes], w[site.outside]
        expected = w[network.graph.head[site.edges]] - w[network.graph.tail[site.edges]]
        np.testing.assert_array_equal(site.difference(own, heard), expected)
        summed = network.graph.to_sparse() @ w
        np.testing.assert_allclose(site.neighbour_sum(own, heard), summed[site.nodes], rtol=1e-12)
        whole = network.site.divergence(flow)
        np.testing.assert_array_equal(site.divergence(flow[site.edges]), whole[site.nodes])
        np.testing.assert_array_equal(site.own_degrees, network.graph.degrees[site.nodes])


def test_divergence_is_the_adjoint_of_difference():
    site, rng = difficult_network().site, np.random.default_rng(0)
    w, u = rng.normal(size=(24, 3)), rng.normal(size=(37, 3))
    assert (site.difference(w, w[:0]) * u).sum() == pytest.approx((w * site.divergence(u)).sum())


def test_a_round_leaves_out_who_is_away_and_what_does_not_carry():
    network = difficult_network()
    present = np.ones(24, dtype=bool)
    present[[0, 9]] = False
    live = present[network.graph.head] & present[network.graph.tail]
    live[np.flatnonzero(live)[0]] = False
    here = network.site.as_of_round(present, live)
    assert set(here.outside) <= {0, 9}
    w = np.random.default_rng(0).normal(size=(24, 2))
    own, heard = w[here.nodes], np.full((len(here.outside), 2), np.nan)
    full = w[network.graph.head] - w[network.graph.tail]
    full[~live] = 0
    np.testing.assert_array_equal(here.difference(own, heard), full[here.edges])
    adjacency = Graph(24, np.stack([network.graph.head, network.graph.tail], axis=1)[live], network.graph.weights[live])
    np.testing.assert_allclose(here.neighbour_sum(own, heard), (adjacency.to_sparse() @ w)[here.nodes], rtol=1e-12)
    np.testing.assert_array_equal(here.degrees, network.graph.degrees[np.r_[here.nodes, here.outside]])


def test_counties():
    counties = datasets.load_us_counties()
    network = counties.network()
    assert (network.graph.degrees == 0).sum() == 4
    assert network.names[0] == "Autauga County, AL"
    assert len(set(network.names)) == 3107
    assert np.exp(counties.frame["log_turnout"]).max() == pytest.approx(1.105, abs=5e-4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Network(graphs.chain(2), [None, None]), "Expected data at one node at least, got an empty network"),
        (lambda: Network(graphs.chain(3), [ONE]), "Expected data for each of the 3 nodes of the graph, got 1"),
        (lambda: Network(graphs.chain(2), {0: ONE, 7: ONE}), "Expected names of nodes in the graph, got unknown 7"),
        (
            lambda: Network(graphs.chain(2), [ONE, ([[1.0, 2.0]], [1.0])]),
            "Expected the same number of features at every node, got [1, 2]: give all nodes the same columns.",
        ),
        (
            lambda: Network(graphs.chain(1), [([[1.0], [np.inf]], [1.0, 2.0])]),
            "Expected finite numbers for the features of node 0, got NaN or infinity in 1 of 2 rows (first in row 1)",
        ),
        (lambda: Network(graphs.chain(1), [([[1.0]], [np.nan])]), "finite numbers for the target of node 0, got NaN"),
        (lambda: Network(graphs.chain(1), [([[1.0]], [1.0, 2.0])]), "Expected as many labels as samples at node 0"),
        (
            lambda: Network(graphs.chain(1), [([["red"]], [1.0])]),
            "got values that are not: encode text, categories and dates first.",
        ),
        (
            lambda: Network(graphs.chain(1), [([[np.datetime64("2020-01-01")]], [1.0])]),
            "encode text, categories and dates",
        ),
        (lambda: Network("map", [ONE]), "Expected a Graph, got str: convert it, as with Graph.from_networkx."),
        (lambda: Network(graphs.chain(1), [(np.empty((1, 0)), [1.0])]), "Expected at least one feature, got none"),
        (lambda: Network(Graph(1, names=["Rome"]), [([[np.nan]], [1.0])]), "for the features of node 'Rome', got NaN"),
        (lambda: difficult_network().hide(["Rome"]), "got unknown 'Rome'"),
        (lambda: frame_network(features=["x", "y"]), "Expected features without the target, got 'y' among them"),
        (lambda: Data.from_rows([[1.0]], [1.0], [3], 2), "Expected a label and a node from 0 to 1 for every row"),
        (lambda: Network(graphs.chain(1), [ONE], public=[[1.0, 2.0]]), "Expected public points with 1 features, got 2"),
        (lambda: Network(graphs.chain(1), [ONE], test=[([[1.0, 2.0]], [1.0])]), "Expected test data with 1 features"),
        (lambda: Network(graphs.chain(1), [ONE], features=["a", "b"]), "Expected names for 1 features, got 2."),
        (lambda: Data.from_nodes([([1.0], [1.0])]), "Expected an array with 2 axes for the features of node 0"),
        (lambda: frame_network(target="z"), "Expected columns 'z', the table has 'town', 'x', 'y'."),
        (lambda: frame_network(graph=graphs.chain(2)), "Expected names of nodes in the graph, got unknown 'a'"),
        (lambda: frame_network(test=[1, 0]), "Expected one True or False for each of 2 rows or nodes, got int64"),
    ],
)
def test_bad_networks_get_a_sentence(make, sentence):
    with pytest.raises(InputError) as error:
        make()
    assert sentence in str(error.value)


def frame_network(**changes):
    frame = pandas.DataFrame({"town": ["a", "b"], "x": [1.0, 2.0], "y": [3.0, 4.0]})
    options = {"node": "town", "target": "y", "graph": Graph.from_edges([("a", "b")])} | changes
    return Network.from_frame(frame, **options)


def test_labels_outside_the_range_of_the_loss_are_refused_before_any_work():
    with pytest.raises(
        InputError, match=r"Expected 0 or 1 as labels for Logistic, got 3 \(1 of 2 labels are outside\)"
    ):
        fit(Network(graphs.chain(2), [([[1.0]], [1.0]), ([[1.0]], [3.0])]), GTVMin(Logistic()))


def test_features_of_very_different_scale_are_said():
    X = np.array([[5e4, 0.01], [6e4, 0.02]])
    network = Network(graphs.chain(2), [(X, [1.0, 2.0]), (X, [1.0, 2.0])], features=["income", "rate"])
    assert "Features differ in scale by a factor of 3e+06 ('income' against 'rate')" in network.remarks()[0]
