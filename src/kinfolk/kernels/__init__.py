"""Compiled loops, and nothing else: the only place with numba."""

from kinfolk.kernels.balls import ball_aim, ball_follow, ball_move, ball_stiffness
from kinfolk.kernels.cholesky import add_to_ends, factorise, find_fronts, postorder
from kinfolk.kernels.draws import draw_batches, node_keys
from kinfolk.kernels.edges import (
    HUGE,
    add_at_heads,
    add_elastic_flows,
    add_elastic_response,
    add_flows,
    add_scaled,
    clip_rows,
    difference,
    dual_look,
    dual_step,
    edge_sum,
    project_power_ball,
    squared_distance,
)
from kinfolk.kernels.graph import first_fit_colours, swap_edges
from kinfolk.kernels.graph_systems import solve_blocks, solve_in_order
from kinfolk.kernels.kinked import prox_kinked
from kinfolk.kernels.rows import (
    add_curved_rows,
    combine_rows,
    combine_squared_rows,
    conjugate_direction,
    conjugate_step,
    gram,
    group_gram,
    group_sums,
    permute_rows,
    predict_rows,
    prox_quadratic,
    quadratic_primal_step,
    subtract_rows,
    sum_rows,
    sum_vectors,
)
from kinfolk.kernels.trees import tree_sums
from kinfolk.kernels.trees_of_nodes import drain, grow_trees
from kinfolk.kernels.windows import add_windows

__all__ = [
    "HUGE",
    "add_at_heads",
    "add_curved_rows",
    "add_elastic_flows",
    "add_elastic_response",
    "add_flows",
    "add_scaled",
    "add_to_ends",
    "add_windows",
    "ball_aim",
    "ball_follow",
    "ball_move",
    "ball_stiffness",
    "clip_rows",
    "combine_rows",
    "combine_squared_rows",
    "conjugate_direction",
    "conjugate_step",
    "difference",
    "drain",
    "draw_batches",
    "dual_look",
    "dual_step",
    "edge_sum",
    "factorise",
    "find_fronts",
    "first_fit_colours",
    "gram",
    "group_gram",
    "group_sums",
    "grow_trees",
    "node_keys",
    "permute_rows",
    "postorder",
    "predict_rows",
    "project_power_ball",
    "prox_kinked",
    "prox_quadratic",
    "quadratic_primal_step",
    "solve_blocks",
    "solve_in_order",
    "squared_distance",
    "subtract_rows",
    "sum_rows",
    "sum_vectors",
    "swap_edges",
    "tree_sums",
]
