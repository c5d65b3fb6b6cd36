"""The cost of a reversal and of a comparison beside the runs that they are made of: figures of run.py, by processor time.

The reversal in a small size with five times the room; under --long both in the sizes of docs/performance.md, and as asked.
A normal run counts the calls of comparisons (compare_test.py, tune_test.py).
"""

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "rows")]

import run  # noqa: E402

SLACK = 5


@pytest.fixture
def is_long(pytestconfig):
    return pytestconfig.getoption("--long")


def test_a_reversal_costs_what_a_gradient_does_beyond_its_rollout(is_long):
    found = run.kept_rollout(9) if is_long else run.kept_rollout(3, 512, 400)
    assert set(found) == {"one", "four"} and min(found.values()) > 0
    assert max(found.values()) <= 1.15 * (1 if is_long else SLACK), found


@pytest.mark.long  # compiles gradients under twenty policies
def test_compare_sensitivity_and_tune_cost_what_their_runs_cost():
    found = run.whys(9)
    assert found.pop("plain") > 0
    assert set(found) == {"compare", "sensitivity", "tune"} and min(found.values()) > 0
    assert max(found.values()) <= 1.1, found
