"""Random instances of unpleasant kinds, the quick setting: none wrong, no certificate unsound, and few left open."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cvxpy")
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
instances = pytest.importorskip("instances")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(42))
def test_a_random_instance_is_solved_and_proven(number):
    verdict = instances.judge(instances.instance(number))
    assert verdict.outcome == "right", verdict
    assert verdict.proven <= 1e-6
    assert np.isnan(verdict.above) or verdict.above <= 1e-6


def test_the_verdict_sees_wrong_answers():
    given = instances.instance(0)
    right = instances.judge(given)
    spoilt = instances.Verdict(given, right.run, above=1e-3, proven=1e-7, seconds=0.0)
    assert spoilt.outcome == "unsound"
    assert instances.Verdict(given, right.run, above=1e-3, proven=1e-2, seconds=0.0).outcome == "wrong"
