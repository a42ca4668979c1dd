"""The judgement on worlds whose truth is known: intervals, verdicts, power, gains of nodes, prediction intervals."""

import sys
from functools import partial
from pathlib import Path

import networkx
import numpy as np
import pandas
import pytest
import scipy.stats
from sklearn.metrics import log_loss, roc_auc_score

import kinfolk
from kinfolk.checks import InputError
from kinfolk.network.graph import Graph
from kinfolk.report.facts import Role
from kinfolk.report.page import templates
from kinfolk.report.words import roughly
from kinfolk.tables.class_scores import calibration_curve, class_scores
from kinfolk.tables.held_out import HeldOutErrors
from kinfolk.tables.intervals import Moments, Scales, Shrinkage, TimeSums
from kinfolk.tables.judging import gain_over, judge
from kinfolk.tables.node_gains import NodeSums, clearly_worse, node_gains, node_means, share_better
from kinfolk.tables.target import Target
from kinfolk.tables.uncertainty import by_times, missed_by_blocks, neighbourhoods, uncertainty

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import calibration
from calibration import Windows, intervals_of

PLAIN = Target(classes=("a", "b"))  # losses are shown as they are
ROOTS = Target()  # losses are shown as their roots


def errors_of(base, ours, owner, target=PLAIN, times=None):
    return HeldOutErrors({"pooled": base, "final": ours}, owner, target, times)


def judged(base, ours, owner, nodes, target=PLAIN, times=None):
    return judge(errors_of(base, ours, owner, target, times), kinfolk.graphs.chain(nodes), [Role.POOLED])


# ---------------------------------------------------------------------- the interval


@pytest.mark.parametrize("cell", list(calibration.cells(quick=True, count=60)), ids=lambda cell: cell.name)
def test_intervals_cover_the_truth_and_verdicts_are_right(cell):
    """The quick setting of the benchmark: a cell fails if its Monte Carlo interval excludes the bound."""
    assert cell.judged == 60
    assert not cell.fails, cell.line


def test_a_cell_that_covers_too_rarely_or_is_false_too_often_fails():
    assert calibration.Cell("", 400, 400, 340, 0, 0).fails
    assert calibration.Cell("", 400, 400, 400, 40, 40).fails
    assert not calibration.Cell("", 400, 400, 356, 0, 20).fails


def test_the_interval_covers_the_truth_where_neighbours_err_alike():
    graph, hits = kinfolk.graphs.chain(100), 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        common = np.repeat(rng.gamma(4.0, size=20), 5)  # blocks of five err alike
        base = common * rng.gamma(20.0, size=100) / 20
        ours = 0.8 * common * rng.gamma(20.0, size=100) / 20
        found = gain_over(errors_of(base, ours, np.arange(100)), graph, "pooled", "final")
        hits += found.low <= 20.0 <= found.high
    assert 0.90 <= hits / 200 <= 0.99


@pytest.mark.parametrize(("nodes", "rows"), [(10, 1), (10, 2), (5, 8), (60, 3)])
def test_equal_methods_are_rarely_told_apart(nodes, rows):
    """Two methods with the same expected error: a clear verdict is wrong, and comes about one time in twenty."""
    owner, clear = np.repeat(np.arange(nodes), rows), 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        common = rng.gamma(2.0, size=len(owner))
        base, ours = (common * rng.gamma(4.0, size=len(owner)) for _ in range(2))
        clear += judged(base, ours, owner, nodes).verdict != "no clear difference"
    assert scipy.stats.binomtest(clear, 400).proportion_ci().low <= 0.05


def test_with_few_nodes_rows_are_the_units():
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(3), 400)
    base, ours = rng.gamma(1.0, size=1200), 0.9 * rng.gamma(1.0, size=1200)
    found = gain_over(errors_of(base, ours, owner), kinfolk.graphs.chain(3), "pooled", "final")
    deviation = np.sqrt(2 / 1200)  # of the logarithm of a ratio of two means of exponentials
    assert found.uncertainty.unit == "rows"
    assert found.uncertainty.error == pytest.approx(deviation, rel=0.1)
    assert np.log((100 - found.low) / (100 - found.high)) == pytest.approx(2 * 1.96 * deviation, rel=0.1)


def test_where_nodes_are_new_they_are_the_units_however_few():
    """Six nodes of twenty rows, each with a gain of its own: their rows say nothing about other nodes."""
    graph, owner = kinfolk.graphs.edgeless(6), np.repeat(np.arange(6), 20)
    hits = {True: 0, False: 0}
    for seed in range(300):
        rng = np.random.default_rng(seed)
        base = rng.gamma(1.0, size=120)
        ours = base * np.exp(rng.normal(-0.045, 0.3, 6))[owner]  # on average exactly as good
        for new_nodes in hits:
            found = gain_over(errors_of(base, ours, owner), graph, "pooled", "final", new_nodes)
            hits[new_nodes] += found.low <= 0 <= found.high
    assert hits[True] >= 0.9 * 300
    assert hits[False] < 0.7 * 300


@pytest.mark.parametrize(("hold", "unit"), [("rows", "rows"), ("nodes", "nodes")])
def test_the_judgement_knows_whether_nodes_are_new(hold, unit):
    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"shop": np.repeat(list("abcdefghij"), 30), "price": rng.normal(size=300)})
    table["sales"] = table["price"] + rng.normal(size=300)
    run = kinfolk.learn(
        table, node="shop", target="sales", hold=hold, members=["pooled"], lam=1.0, folds=2, progress=False
    )
    assert run.judgement.unit == unit
    tested = run.nodes["test_rows"] > 0
    assert run.nodes["error_alone"][tested].isna().all() == (hold == "nodes")  # no rows, no model of their own


def test_the_error_of_the_logarithm_is_that_of_the_jackknife():
    """Leave out one node at a time: the classical estimate of the same standard error."""
    rng = np.random.default_rng(1)
    base, ours, owner = rng.gamma(9.0, size=40), rng.gamma(9.0, size=40), np.arange(40)
    ratio = errors_of(base, ours, owner).summed(40).ratio("final", "pooled")
    assert ratio.value == pytest.approx(np.log(ours.mean() / base.mean()))
    assert ratio.influence.total.sum() == pytest.approx(0, abs=1e-12)
    left = [np.log(np.delete(ours, k).mean() / np.delete(base, k).mean()) for k in range(40)]
    jackknife = np.sqrt(39 / 40 * ((left - np.mean(left)) ** 2).sum())
    found = uncertainty(ratio.influence, kinfolk.graphs.edgeless(40))
    assert found.error == pytest.approx(jackknife, rel=0.02)
    assert (found.unit, found.units, found.block, found.freedom) == ("nodes", 40, 1, 39)


def test_blocks_are_connected_and_small():
    graph = kinfolk.graphs.knn(np.random.default_rng(0).random((300, 2)), 4)
    block = neighbourhoods(graph)
    assert np.bincount(block).max() <= round(np.sqrt(300) / 2)
    joined = graph.to_networkx()
    assert all(networkx.is_connected(joined.subgraph(np.flatnonzero(block == k))) for k in range(block.max() + 1))


def test_the_better_baseline_is_not_taken_for_known():
    """Over two baselines that cannot be told apart, the interval begins where the first of theirs begins."""
    rng = np.random.default_rng(2)
    rows = {name: rng.gamma(2.0, size=60) for name in ("alone", "pooled", "final")}
    errors, graph = HeldOutErrors(rows, np.arange(60), PLAIN), kinfolk.graphs.chain(60)
    each = [gain_over(errors, graph, name, "final") for name in ("alone", "pooled")]
    found = judge(errors, graph, [Role.ALONE, Role.POOLED])
    assert found.low == min(one.low for one in each)
    assert found.high == min(one.high for one in each)
    assert found.gain == min(one.gain for one in each)


# ---------------------------------------------------------------------- time


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_blocks_of_times_know_the_error_of_a_mean(memory, monkeypatch):
    """With the memory that is there, the mean of the squared error is the variance of the mean, by simulation."""
    monkeypatch.setattr("kinfolk.tables.uncertainty.MEMORY", memory)
    rng = np.random.default_rng(0)
    series = calibration.remembering(rng, 40, 4000, memory)
    truth = series.mean(axis=0).var()
    found = np.mean([by_times((x - x.mean()) / 40).error ** 2 for x in series.T])
    assert found == pytest.approx(truth, rel=0.1)
    assert missed_by_blocks(40, 10) == pytest.approx(4 / 3, rel=1e-9) if memory == 0 else missed_by_blocks(40, 10) > 2


def test_times_are_drawn_for_all_nodes_alike():
    """A shock at half of the times that all nodes share: rows would be taken for much evidence, times are not."""
    rng = np.random.default_rng(0)
    shock = np.repeat(rng.gamma(0.5, size=12), 10)
    base, ours = rng.gamma(9.0, size=120), rng.gamma(9.0, size=120) * (0.5 + shock)
    owner, times = np.tile(np.arange(10), 12), np.repeat(np.arange(12.0), 10)
    by_rows, by_blocks = judged(base, ours, owner, 10), judged(base, ours, owner, 10, times=times)
    assert (by_rows.unit, by_blocks.unit, by_blocks.block) == ("rows", "times", 3)
    assert by_blocks.high - by_blocks.low > 2 * (by_rows.high - by_rows.low)
    assert "by blocks of 3 successive times" in by_blocks.text


def test_with_many_nodes_the_wider_interval_counts():
    rng = np.random.default_rng(0)
    owner, times = np.tile(np.arange(30), 100), np.repeat(np.arange(100.0), 30)
    noise = rng.gamma(4.0, size=3000)
    differ = judged(noise, noise * np.exp(rng.normal(size=30))[owner], owner, 30, times=times)
    shaken = judged(noise, noise * np.exp(rng.normal(size=100))[times.astype(int)], owner, 30, times=times)
    assert (differ.unit, shaken.unit) == ("nodes", "times")


def test_few_times_are_no_evidence_on_time():
    rng = np.random.default_rng(0)
    few, many = (rng.gamma(50.0, size=3 * n) for n in (5, 30))
    times = [np.repeat(np.arange(3.0), n) for n in (5, 30)]
    alone = judged(few, 0.5 * few, np.tile(np.arange(5), 3), 5, times=times[0])
    assert (alone.verdict, alone.low, alone.few_times) == ("no clear difference", None, 3)
    assert "Only 3 different times are held out" in alone.text
    found = judged(many, 0.5 * many, np.tile(np.arange(30), 3), 30, times=times[1])
    assert found.verdict == "helps"
    assert "for these 3 times only" in found.text


# ---------------------------------------------------------------------- what could have been seen, and what cannot


def test_one_unit_gives_no_interval_and_no_verdict():
    found = judged(np.array([4.0]), np.array([1.0]), np.array([2]), 3)
    assert (found.verdict, found.low, found.high, found.visible) == ("no clear difference", None, None, None)
    assert found.gain == 75
    assert "whether that is chance cannot be told" in found.text
    assert "interval" not in found.text.split("chance")[0]


def test_the_smallest_visible_gain_is_seen_four_times_in_five():
    """Simulate a gain as large as what is called visible, and count how often it is found."""
    rng, owner = np.random.default_rng(0), np.arange(100)
    visible = np.median([
        judged(rng.gamma(4.0, size=100), rng.gamma(4.0, size=100), owner, 100).visible for _ in range(40)
    ])  # fmt: skip
    left = 1 - visible / 100
    seen = [
        judged(rng.gamma(4.0, size=100), left * rng.gamma(4.0, size=100), owner, 100).verdict == "helps"
        for _ in range(300)
    ]
    assert np.mean(seen) == pytest.approx(0.8, abs=0.08)


def test_a_gain_is_visible_only_if_it_shows_over_every_baseline():
    """A second baseline that is a little worse in the mean and much noisier hides gains over the first."""
    rng, owner, graph = np.random.default_rng(0), np.arange(100), kinfolk.graphs.chain(100)
    both = [Role.POOLED, Role.ALONE]

    def compared(left):
        ours = rng.gamma(4.0, size=100)
        rows = {
            "final": left * ours,
            "pooled": ours * rng.gamma(50.0, size=100) / 50,
            "alone": rng.gamma(4.2, size=100),
        }
        return judge(HeldOutErrors(rows, owner, PLAIN), graph, both)

    found = [compared(1.0) for _ in range(40)]
    visible = float(np.median([each.visible for each in found]))
    seen = [compared(1 - visible / 100).verdict == "helps" for _ in range(300)]
    assert np.mean(seen) == pytest.approx(0.8, abs=0.08)


@pytest.mark.parametrize("target", [PLAIN, ROOTS])
def test_so_many_rows_show_five_per_cent(target):
    """With the number of rows that is told, the smallest visible gain is 5 %."""
    rng = np.random.default_rng(0)
    found = judged(rng.gamma(4.0, size=200), rng.gamma(4.0, size=200), np.arange(200), 200, target)
    count = found.rows_needed
    more = judged(rng.gamma(4.0, size=count), rng.gamma(4.0, size=count), np.arange(count), count, target)
    assert more.visible == pytest.approx(5.0, rel=0.15)
    assert f"one of 5 % takes about {roughly(count)} held-out rows" in found.text


def test_no_error_at_all_is_judged_too():
    owner, base = np.arange(30), np.random.default_rng(0).gamma(2.0, size=30)
    perfect = judged(base, np.zeros(30), owner, 30, ROOTS)
    assert perfect.verdict == "helps"
    assert perfect.low > 99.9
    same = judged(base, base, owner, 30, ROOTS)
    assert (same.verdict, same.gain, same.low, same.high) == ("no clear difference", 0, 0, 0)
    assert "predictions are the same" in same.text
    assert judged(np.zeros(30), np.zeros(30), owner, 30).gain == 0


def test_a_model_that_is_worse_does_not_help():
    rng = np.random.default_rng(0)
    base = rng.gamma(9.0, size=60)
    found = judged(base, 1.5 * base, np.arange(60), 60)
    assert found.verdict == "does not help"
    assert found.text.startswith("Learning together does not help: 50 % more error than one model for all")


def test_a_gain_that_few_rows_make_is_called_so():
    """Nodes on very different scales: one in five gains much, the others lose, and the mean is about the first."""
    rng = np.random.default_rng(0)
    large = np.arange(200) % 5 == 0
    base = np.where(large, 100.0, 1.0) * rng.gamma(20.0, size=200)
    found = judged(base, base * np.where(large, 0.5, 1.5), np.arange(200), 200)
    assert found.verdict == "helps"
    assert "Nearer on 20 % of the held-out rows (fewer rows with larger errors make the gain)" in found.text


# ---------------------------------------------------------------------- who gains


def test_one_row_per_node_tells_nothing_about_nodes():
    rng = np.random.default_rng(0)
    base = rng.gamma(2.0, size=200)
    errors = errors_of(base, base * rng.uniform(0.2, 1.2, size=200), np.arange(200))
    gain, error = node_gains(errors, "final", "pooled", 201)
    assert len(np.unique(gain[:200].round(9))) == 1
    assert (error[:200] > 10).all()
    assert np.isnan([gain[200], error[200]]).all()
    found = judge(errors, kinfolk.graphs.chain(201), [Role.POOLED])
    assert "which or how many nodes are worse off cannot be told" in found.text
    assert found.nearer == 100 * np.mean(errors.rows["final"] < base)


def test_gains_of_nodes_are_posterior_means():
    """Means N(1, 2²) and noise N(0, 3²): the posterior mean and its deviation are known in closed form."""
    rng = np.random.default_rng(0)
    truth, owner = rng.normal(1.0, 2.0, size=3000), np.repeat(np.arange(3000), 5)
    values = truth[owner] + 3.0 * rng.normal(size=15_000)
    found = node_means(NodeSums.of(values, owner, 3001))
    trust = 4 / (4 + 9 / 5)
    expected = 1 + trust * (values.reshape(-1, 5).mean(axis=1) - 1)
    np.testing.assert_allclose(found.mean[:3000], expected, atol=0.25)
    assert found.error[0] == pytest.approx(np.sqrt(4 * (1 - trust)), rel=0.05)
    assert found.mean[3000] == pytest.approx(1.0, abs=0.15)
    assert found.error[3000] == pytest.approx(2.0, rel=0.05)
    assert np.mean(np.abs(truth - found.mean[:3000]) < 1.96 * found.error[:3000]) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_errors_of_gains_hold_with_few_rows(spread):
    """True gains of 10 nodes with 4 rows each lie within two standard errors, also where nodes do not differ."""
    inside = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        left, owner = np.exp(spread * rng.normal(size=10)) * 0.8, np.repeat(np.arange(10), 4)
        base, ours = rng.gamma(2.0, size=40), rng.gamma(2.0, size=40) * left[owner]
        gain, error = node_gains(errors_of(base, ours, owner), "final", "pooled", 10)
        inside += list(np.abs(gain - 100 * (1 - left)) < 2 * error)
    assert np.mean(inside) >= 0.93


def test_shares_contain_the_truth():
    hits = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        truth, owner = rng.normal(0.5, 1.0, size=60), np.repeat(np.arange(60), 6)
        found = share_better(NodeSums.of(truth[owner] + 2 * rng.normal(size=360), owner))
        if found is not None:
            hits.append(found[0] - 1 <= 100 * np.mean(truth > 0) <= found[1] + 1)
    assert len(hits) > 150
    assert np.mean(hits) >= 0.9
    assert share_better(NodeSums.of(np.ones(60), np.arange(60))) is None
    assert share_better(NodeSums.of(rng.normal(size=40), np.repeat(np.arange(5), 8))) is None
    outsiders = np.where(np.arange(60) < 3, 50.0, 0.1)[owner] + rng.normal(size=360)
    assert share_better(NodeSums.of(outsiders, owner)) is None


def test_few_nodes_are_wrongly_named():
    """A fifth of the nodes lose: some are found, and at most one in ten of the named is wrongly named."""
    wrong, named = [], 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        truth, owner = np.where(np.arange(50) < 10, -1.5, 0.0), np.repeat(np.arange(50), 10)
        worse = clearly_worse(NodeSums.of(truth[owner] + rng.normal(size=500), owner))
        named += len(worse)
        wrong.append(np.mean(worse >= 10) if len(worse) else 0.0)
    assert named > 1000
    assert np.mean(wrong) <= 0.1


def test_nodes_that_lose_are_named_with_the_bound():
    rng = np.random.default_rng(0)
    owner, base = np.repeat(np.arange(20), 40), rng.gamma(9.0, size=800)
    ours = base * np.where(owner == 7, 1.4, 0.7) * rng.uniform(0.9, 1.1, size=800)
    found = judged(base, ours, owner, 20)
    assert found.worse == ("7",)
    assert "Worse off, with at most one in ten wrongly named: '7'" in found.text
    in_time = judged(base, ours, owner, 20, times=np.tile(np.arange(40.0), 20))
    assert in_time.worse == ()


# ---------------------------------------------------------------------- prediction intervals


@pytest.mark.parametrize("spread", [0.0, 0.6])
def test_prediction_intervals_cover_all_rows_and_most_nodes(spread):
    """Deviations of nodes differ, noise has heavy tails: 88–92 % of all rows, 80 % at the tenth percentile of nodes."""
    found = np.mean([calibration.interval_coverage(seed, 60, 50, spread) for seed in range(6)], axis=0)
    assert 0.88 <= found[0] <= 0.92
    assert found[1] >= 0.80
    assert 0.86 <= found[2] <= 0.94


def test_skewed_residuals_have_uneven_intervals():
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(20), 500)
    found = intervals_of(rng.exponential(size=10_000) - 1, np.zeros(10_000), owner, 20)
    low, high = found.interval(np.zeros(20), np.arange(20), 0.9)
    assert low.mean() == pytest.approx(-np.log(0.95) - 1, abs=0.1)
    assert high.mean() == pytest.approx(-np.log(0.05) - 1, rel=0.1)


def test_a_node_with_few_residuals_borrows_the_scale_of_all():
    """Logarithms of variances N(0, 1), each known from 20 normal rows with variance 2 / 20: trust is 1 / 1.1."""
    rng = np.random.default_rng(0)
    owner, truth = np.repeat(np.arange(2000), 20), rng.normal(size=2000)
    residuals = np.exp(truth / 2)[owner] * rng.normal(size=40_000)
    found = intervals_of(residuals, np.zeros(40_000), owner, 2001)
    own = np.log(np.bincount(owner, residuals**2) / 20)
    shrunk = 2 * np.log(found.scale[:2000])
    assert np.polyfit(own, shrunk, 1)[0] == pytest.approx(1 / 1.1, abs=0.01)
    assert np.mean((shrunk - truth) ** 2) < np.mean((own - truth) ** 2)
    assert not found.seen[2000]
    low, high = found.interval(np.zeros(3), np.array([-1, 2000, int(truth.argmin())]), 0.9)
    assert (low[0], high[0]) == (low[1], high[1])
    assert high[0] > 2 * high[2]


def test_intervals_of_nodes_never_seen_can_use_residuals_of_a_model_that_knows_no_node():
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(20), 50)
    residuals, elsewhere = rng.normal(size=1000), 3 * rng.normal(size=1000)
    found = intervals_of(residuals, np.zeros(1000), owner, 20, elsewhere)
    low, high = found.interval(np.zeros(1), np.array([-1]), 0.9)
    assert high[0] - low[0] == pytest.approx(2 * 3 * 1.645, rel=0.1)


def test_intervals_grow_with_the_prediction_where_residuals_do():
    """With one scale for a node 98 % of the quarter with the smallest predictions were covered, 78 % of the largest."""
    found = np.mean([calibration.level_coverage(seed, 30, 50, 0.5) for seed in range(4)], axis=0)
    np.testing.assert_allclose(found, 0.9, atol=0.03)


def test_there_are_no_intervals_with_next_to_nothing_to_learn_from():
    few = np.r_[np.full(3, np.nan), np.ones(9)]
    assert intervals_of(few, np.zeros(12), np.zeros(12, dtype=np.int64), 1) is None
    found = intervals_of(np.zeros(10), np.arange(10.0), np.zeros(10, dtype=np.int64), 1)
    assert [end.tolist() for end in found.interval(np.ones(1), np.zeros(1, dtype=np.int64), 0.5)] == [[1.0], [1.0]]
    with pytest.raises(InputError, match="between 0 and 1"):
        found.interval(np.ones(1), np.zeros(1, dtype=np.int64), 90)


def test_intervals_for_later_times_know_that_times_are_few_and_alike():
    """Residuals that remember, half of them common to all nodes; as if rows were independent it would be 81 %."""
    found = [calibration.later_coverage(seed, 12, 24, 0.9, 0.5) for seed in range(60)]
    assert 0.86 <= np.mean(found) <= 0.94


def test_intervals_for_later_times_include_changes_from_window_to_window():
    """A scale that doubles and halves from window to window: intervals are wider than with rows in random windows."""
    rng = np.random.default_rng(0)
    times = np.repeat(np.arange(300.0), 10)
    window, owner = (times // 100).astype(np.int64), np.tile(np.arange(10), 300)
    residuals = np.array([1.0, 4.0, 1.0])[window] * rng.normal(size=3000)
    whole = intervals_of(residuals, np.zeros(3000), owner, 10)
    found = intervals_of(residuals, np.zeros(3000), owner, 10, windows=Windows(window, times))
    assert found.quantiles[950] > 1.2 * whole.quantiles[950]
    np.testing.assert_array_equal(found.scale, whole.scale)


def test_a_level_that_rises_with_time_does_not_stand_for_what_time_changes():
    rng = np.random.default_rng(0)
    times = np.repeat(np.arange(300.0), 10)
    window, owner = (times // 100).astype(np.int64), np.tile(np.arange(10), 300)
    predicted, residuals = window + 0.5 * rng.normal(size=3000), 2.0**window * rng.normal(size=3000)
    found = intervals_of(residuals, predicted, owner, 10, windows=Windows(window, times))
    assert abs(found.growth[2]) < 0.1
    assert intervals_of(residuals, predicted, owner, 10).growth[2] > 0.3


def test_independent_times_change_next_to_nothing():
    rng = np.random.default_rng(0)
    times = np.repeat(np.arange(300.0), 10)
    residuals, owner = rng.normal(size=3000), np.tile(np.arange(10), 300)
    found = intervals_of(residuals, np.zeros(3000), owner, 10, windows=Windows((times // 100).astype(np.int64), times))
    np.testing.assert_allclose(found.quantiles[[50, 950]], scipy.stats.norm.ppf([0.05, 0.95]), atol=0.1)
    assert (np.diff(found.quantiles) >= 0).all()


def test_sums_of_sites_give_the_scales_and_the_freedom_of_all_rows():
    """Nodes at two sites, one of which has no rows in the first window and the first times."""
    rng = np.random.default_rng(1)
    times = np.repeat(np.arange(90.0), 4)
    window, owner = (times // 30).astype(np.int64), np.tile(np.arange(4), 90)
    kept = (owner < 2) | (window > 0)
    times, window, owner = times[kept], window[kept], owner[kept]
    residuals = np.array([1.0, 3.0, 1.0])[window] * (1 + owner) * rng.normal(size=len(owner))
    whole = Moments.of(residuals, owner, 4, window, 3)
    sites = [owner < 2, owner >= 2]
    parts = [Moments.of(residuals[own], owner[own] % 2, 2, window[own], 3) for own in sites]
    scales = Scales.from_array(Scales.of(Moments(*map(np.hstack, zip(*parts, strict=True)))).to_array())
    assert scales == Scales.of(whole)
    ratio = scales.ratios(residuals, owner, window, whole)
    sums = []
    for own, moments in zip(sites, parts, strict=True):
        mine = scales.ratios(residuals[own], owner[own] % 2, window[own], moments)
        np.testing.assert_allclose(mine, ratio[own], rtol=1e-12)
        sums.append(TimeSums.of(mine, times[own], np.arange(100.0)))
    added = TimeSums(sums[0].rows + sums[1].rows, sums[0].squares + sums[1].squares)
    np.testing.assert_allclose(added.freedom(), TimeSums.of(ratio, times, np.unique(times)).freedom(), rtol=1e-9)
    first = window == 0  # by hand: over the scale in the two later windows
    later = Moments.of(residuals[~first], owner[~first], 4, np.zeros((~first).sum(), dtype=int), 1).added()
    scale = Shrinkage.of(later).scale(later.squares, later.sizes)
    np.testing.assert_allclose(ratio[first], residuals[first] / scale[owner[first]], rtol=1e-12)


def test_one_window_or_two_times_still_give_intervals():
    owner = np.tile(np.arange(5), 2)
    one = Windows(np.zeros(10, dtype=np.int64), np.repeat([1.0, 2.0], 5))
    found = intervals_of(np.linspace(-1, 1, 10), np.zeros(10), owner, 5, windows=one)
    assert np.isfinite(found.quantiles).all()
    assert np.isfinite(found.unseen).all()


def test_what_the_blend_costs_beside_its_members_is_measured_on_fresh_rows():
    """One model for all nodes is the truth: nothing is far better than that, and the blend is near it."""
    found = calibration.blend_losses("same", 0, 10, 8)
    assert {"final", "pooled", "slopes", "tailored", "trees"} <= set(found)
    assert min(found.values()) > 1.0
    assert found["final"] <= 1.05 * found["pooled"]


# ---------------------------------------------------------------------- classes


def test_a_calibration_that_was_stopped_goes_on(tmp_path):
    made = []

    def line(cell, count):
        made.append((cell, count))
        return f"| {cell} |"

    for _ in range(2):
        assert calibration.Kept(tmp_path / "kept").line(partial(line, "same", 5)) == "| same |"
    assert made == [("same", 5)]
    calibration.Kept(tmp_path / "kept").line(partial(line, "same", 6))
    assert made == [("same", 5), ("same", 6)]


def test_all_parts_of_the_calibration_have_lines_of_their_own():
    """Lines are kept by what makes them: two alike would be one."""
    for quick in (True, False):
        made = [make for part in calibration.parts(quick, None).values() for make in part.lines]
        assert len({calibration.key_of(make) for make in made}) == len(made) > 20


def test_scores_of_classes_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    chance = rng.dirichlet([1, 1, 1], size=500)
    y = np.array([rng.choice(3, p=row) for row in chance]).astype(float)
    found = class_scores(chance, y, ["a", "b", "c"])
    assert found.log_loss == pytest.approx(log_loss(y, chance))
    assert found.auc == pytest.approx(roc_auc_score(y, chance, multi_class="ovr"))
    assert sum(each["rows"] for each in found.counts) == sum(each["predicted"] for each in found.counts) == 500
    assert sum(each["right"] for each in found.counts) == (chance.argmax(axis=1) == y).sum()
    assert found.rare == []
    expected, seen, count = np.array(found.calibration).T
    np.testing.assert_array_less(np.abs(expected - seen), 4 * np.sqrt(0.25 / count))  # drawn from these very chances


def test_rare_and_untested_classes_are_told():
    chance, y = np.full((20, 2), 0.5), np.zeros(20)
    found = class_scores(chance, y, ["well", "ill"])
    assert found.auc is None
    assert found.rare == ["ill"]
    assert found.counts[1] == {"class": "ill", "rows": 0, "predicted": 0, "right": 0}
    assert calibration_curve(chance, y.astype(int)) == [(0.5, 0.0, 20)]


def test_impossible_probabilities_cost_much_but_not_everything():
    found = class_scores(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, 1.0]), ["a", "b"])
    assert 10 < found.log_loss < 20


def test_graph_of_one_node_is_judged():
    rng = np.random.default_rng(0)
    base = rng.gamma(9.0, size=40)
    errors = errors_of(base, 0.5 * base, np.zeros(40, dtype=np.int64))
    assert judge(errors, Graph(1, np.zeros((0, 2), dtype=np.int64)), [Role.POOLED]).verdict == "helps"


def test_the_page_draws_an_interval_only_if_there_is_one():
    drawing = templates().get_template("interval.html")
    one = judged(np.array([4.0]), np.array([1.0]), np.array([2]), 3)
    assert "no interval" in drawing.render(judgement=one, against="alone")
    assert "<svg" not in drawing.render(judgement=one, against="alone")
    base = np.random.default_rng(0).gamma(9.0, size=60)
    assert "<svg" in drawing.render(judgement=judged(base, base / 2, np.arange(60), 60), against="alone")
