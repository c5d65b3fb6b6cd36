"""The cost of a reversal and of a comparison beside the runs that they are made of, and of first answers: figures of run.py.

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


def test_first_answers_are_timed_of_programs_that_the_server_does_not_know():
    found = run.first_answers(2, ((4096, 10), (4, 3)))
    assert list(found) == [(4096, 10), (4, 3)]
    assert all(len(made[clock]) == 2 and min(made[clock]) > 0 for made in found.values() for clock in ("wall", "processor"))
    # Code of its own for each that is too much for the reference.
    assert min(found[4096, 10]["compiles"]) > 0
    page = (run.ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for lines in (run.first_rows(found), run.first_rows(dict(zip(run.FIRST_SIZES, found.values())))):
        shares = {name: share for name, share, _ in lines}
        assert len(shares) == 8
        for name, share in shares.items():
            assert share <= shares[name.replace("median", "worst")]
    assert all(f"| {name} |" in page for name in shares)


def test_a_program_that_the_server_knows_has_no_first_answer(monkeypatch):
    world = run.falling_ball(1)
    monkeypatch.setattr(run, "falling_ball", lambda number: world)
    with pytest.raises(RuntimeError, match="the server knew the program"):
        run.first_answers(1, ((4, 3),))
