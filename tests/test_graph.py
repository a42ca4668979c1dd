"""Graphs: validated once, converted without loss, built as asked."""

import networkx
import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk import Graph, InputError, datasets, graphs
from kinfolk.testing import check_graph, difficult_network

BUILT = {
    "knn": graphs.knn(np.random.default_rng(0).random((30, 2)), 4),
    "knn, weighted": graphs.knn(np.random.default_rng(0).random((30, 2)), 4, scale=0.5),
    "distances": graphs.from_distances([[0, 1, 9], [1, 0, 2], [9, 2, 0]], cutoff=5.0, names=list("abc")),
    "nearest by distance": graphs.from_distances([[0, 1, 9], [1, 0, 2], [9, 2, 0]], k=1),
    "overlap": graphs.overlap(np.random.default_rng(0).dirichlet(np.ones(3), 8), names=list("abcdefgh")),
    "blocks": graphs.stochastic_block([10, 15], 0.5, 0.1, seed=2)[0],
    "chain": graphs.chain(7, weak_link=0.1),
    "cut chain": graphs.chain(6, weak_link=0.0),
    "star": graphs.star(5),
    "complete": graphs.complete(6),
    "edgeless": graphs.edgeless(4, names=list("abcd")),
    "one node": graphs.complete(1),
    "counties": datasets.load_us_counties().graph,
    "difficult": difficult_network().graph,
    "random": graphs.random_like(graphs.stochastic_block([10, 15], 0.5, 0.1, seed=2)[0], seed=1),
}


@pytest.mark.parametrize("name", BUILT)
def test_built_graphs_are_sound(name):
    check_graph(BUILT[name])


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_simple_graph_is_sound(data):
    count = data.draw(st.integers(1, 8))
    pairs = [(i, j) for i in range(count) for j in range(i)]
    chosen = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    weights = data.draw(st.lists(st.floats(1e-6, 1e6), min_size=len(chosen), max_size=len(chosen)))
    check_graph(Graph(count, chosen, weights))


def test_neighbours_in_the_plane_and_on_the_globe():
    line = graphs.knn([[0.0], [1.0], [2.5], [2.6]], k=1)
    assert list(zip(line.head, line.tail, strict=True)) == [(0, 1), (2, 3)]
    # Across the date line Fiji and Samoa are neighbours; in degrees they would be far apart.
    places = {"Fiji": (-17.7, 178.0), "Samoa": (-13.8, -171.8), "Darwin": (-12.5, 130.8), "Perth": (-31.9, 115.9)}
    globe = graphs.knn(list(places.values()), k=1, metric="great-circle", scale=1000.0, names=list(places))
    assert globe.to_frame()[["head", "tail"]].values.tolist() == [["Fiji", "Samoa"], ["Darwin", "Perth"]]
    kilometres = -1000 * np.log(globe.weights)
    np.testing.assert_allclose(kilometres, [1168, 2652], rtol=0.01)  # haversine by hand


def test_nodes_at_the_same_place_are_no_self_loops():
    check_graph(graphs.knn(np.zeros((5, 2)), k=2))


def test_exponential_kernel():
    graph = graphs.from_distances([[0, 2.0], [2.0, 0]], scale=4.0)
    np.testing.assert_allclose(graph.weights, np.exp(-0.5))


def test_block_model_has_the_asked_density():
    graph, block = graphs.stochastic_block([100, 100], 0.5, 0.01, seed=0)
    inside = block[graph.head] == block[graph.tail]
    assert abs(inside.sum() - 0.5 * 9900) < 4 * np.sqrt(9900 / 4)
    assert abs((~inside).sum() - 100) < 40


def test_laplacian_against_networkx():
    graph = BUILT["difficult"]
    expected = networkx.laplacian_matrix(graph.to_networkx(), nodelist=list(graph.names)).toarray()
    np.testing.assert_allclose(graph.laplacian.toarray(), expected)


def test_random_control_keeps_degrees_and_weights_but_no_structure():
    graph = BUILT["counties"]
    control = graphs.random_like(graph, seed=0)
    np.testing.assert_array_equal(control.degrees, graph.degrees)
    np.testing.assert_array_equal(np.sort(control.weights), np.sort(graph.weights))
    kept = set(zip(graph.head, graph.tail, strict=True)) & set(zip(control.head, control.tail, strict=True))
    assert len(kept) < 0.01 * graph.edge_count


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Graph(2, [[0, 0]]), "Expected no self-loops, got one at node 0: drop it."),
        (lambda: Graph(2, [[0, 1], [1, 0]]), "Expected each edge once, got the edge between 0 and 1 more than once"),
        (lambda: Graph(2, [[0, 1]], [0.0]), "Expected edge weights > 0, got 0 between 0 and 1"),
        (lambda: Graph(2, [[0, 1]], [np.nan]), "Expected finite numbers for the edge weights, got NaN or infinity"),
        (lambda: Graph(2, [[0, 1]], [1.0, 2.0]), "Expected one weight for each of 1 edges, got 2 weights."),
        (lambda: Graph(2, [[0, 5]]), "Expected node numbers from 0 to 1, got an edge to node 5"),
        (lambda: Graph(2.0), "The 'node_count' parameter of Graph must be a whole number ≥ 1. Got 2.0 instead."),
        (lambda: graphs.knn([[0.0]], 1), "Expected at least two points to be neighbours, got 1."),
        (
            lambda: graphs.stochastic_block([2.5], 0.5, 0),
            "The 'sizes' parameter of stochastic_block must be a whole number",
        ),
        (lambda: Graph(2, [["a", "b"]]), "Expected edge ends as whole numbers of shape (edges, 2)"),
        (lambda: Graph(2, names=["a", "a"]), "Expected distinct node names, got 'a' more than once."),
        (lambda: Graph(2, names=["a"]), "Expected one name for each of 2 nodes, got 1 names."),
        (lambda: Graph.from_edges([("a", "b")], nodes=["a"]), "got unknown names 'b': add them to nodes or drop"),
        (lambda: Graph.from_edges([("a",)]), "Expected edges as (a, b) or (a, b, weight), got ('a',)."),
        (lambda: Graph.from_sparse([[0, 1], [0, 0]]), "Expected a symmetric adjacency matrix"),
        (lambda: Graph.from_sparse([[1, 0], [0, 0]]), "Expected no self-loops, got a non-zero diagonal"),
        (lambda: Graph.from_networkx(networkx.DiGraph([(0, 1)])), "Expected an undirected graph"),
        (
            lambda: Graph.from_frame(pandas.DataFrame({"a": [1]}), ("a", "b")),
            "Expected edge columns ['a', 'b'], the frame has no 'b'.",
        ),
        (lambda: BUILT["distances"].number("z"), "got unknown 'z': the graph has 3 nodes such as 'a', 'b', 'c'."),
        (lambda: BUILT["chain"].number(9), "got unknown 9"),
        (lambda: graphs.knn([[0.0], [1.0]], k=2), "The 'k' parameter of knn must be a whole number in [1, 1]. Got 2"),
        (lambda: graphs.knn([[100.0, 0.0], [0, 0]], 1, metric="great-circle"), "Expected columns latitude"),
        (lambda: graphs.knn([[0.0], [1.0]], 1, scale=-1.0), "The 'scale' parameter of knn must be a number > 0."),
        (lambda: graphs.from_distances([[0, 1], [2, 0]]), "Expected a symmetric matrix of distances"),
        (lambda: graphs.stochastic_block([2], 1.5, 0), "The 'p_in' parameter of stochastic_block must be a number in"),
        (lambda: graphs.random_like(graphs.complete(3)), "Expected a graph whose edges can be swapped"),
    ],
)
def test_bad_graphs_get_a_sentence(make, sentence):
    with pytest.raises(InputError) as error:
        make()
    assert sentence in str(error.value)
