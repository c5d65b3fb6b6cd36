"""The budget of repeats, over a clock of its own."""

from simgrad.retry_budget import CAPACITY, FLOOR, RetryBudget


def spend(budget, now):
    taken = 0
    while budget.take(now):
        taken += 1
    return taken


def test_a_client_begins_with_the_floor():
    assert spend(RetryBudget(0.1, 0.0), 0.0) == FLOOR


def test_ten_calls_pay_for_one_repeat():
    budget = RetryBudget(0.1, 0.0)
    spend(budget, 0.0)
    for _ in range(9):
        budget.add_call(0.0)
    assert not budget.take(0.0)
    budget.add_call(0.0)
    assert budget.take(0.0) and not budget.take(0.0)


def test_the_floor_comes_back_one_in_ten_seconds_and_no_higher():
    budget = RetryBudget(0.1, 0.0)
    spend(budget, 0.0)
    assert spend(budget, 9.9) == 0
    assert spend(budget, 20.0) == 2
    assert spend(budget, 1e6) == FLOOR


def test_what_is_kept_is_bounded():
    budget = RetryBudget(0.1, 0.0)
    for _ in range(100_000):
        budget.add_call(0.0)
    assert spend(budget, 0.0) == CAPACITY


def test_no_more_repeats_than_promised_whichever_calls_fail():
    budget, taken = RetryBudget(0.1, 0.0), 0
    for call in range(1, 5000):
        now = 0.01 * call
        budget.add_call(now)
        taken += call % 7 != 0 and budget.take(now)
        assert taken <= 0.1 * call + FLOOR + now / 10
    assert taken >= 500


def test_every_call_in_flight_survives_a_server_that_goes_away():
    budget = RetryBudget(0.1, 0.0)
    spend(budget, 0.0)
    assert [budget.take_for_departure(0.0, 64) for _ in range(65)] == [True] * 64 + [False]
    assert not budget.take_for_departure(0.5, 64)
    assert budget.take_for_departure(1.0, 64)


def test_departures_go_on_with_the_budget():
    budget = RetryBudget(0.1, 0.0)
    assert sum(budget.take_for_departure(0.0, 1) for _ in range(100)) == 1 + FLOOR
