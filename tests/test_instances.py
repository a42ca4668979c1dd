"""Random instances of unpleasant kinds, the quick setting: none wrong, no certificate unsound, and few left open."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cvxpy")
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
instances = pytest.importorskip("instances")

COVERED = [number for number in range(42) if instances.COUPLINGS[number // 7 % 6] != "PNorm"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", COVERED)
def test_a_random_instance_is_solved_and_proven(number):
    verdict = instances.judge(instances.instance(number))
    assert verdict.outcome == "right", verdict
    assert verdict.proven <= 1e-6
    assert np.isnan(verdict.above) or verdict.above <= 1e-6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(28, 35))
def test_with_other_norms_nothing_is_wrong_though_it_may_stay_open(number):
    verdict = instances.judge(instances.instance(number), rounds=1_000)
    assert verdict.outcome in ("right", "open"), verdict


def test_the_verdict_sees_wrong_answers():
    given = instances.instance(0)
    right = instances.judge(given)
    spoilt = instances.Verdict(given, right.run, above=1e-3, proven=1e-7, seconds=0.0)
    assert spoilt.outcome == "unsound"
    assert instances.Verdict(given, right.run, above=1e-3, proven=1e-2, seconds=0.0).outcome == "wrong"
