"""Shuffled sums, against NumPy and an implementation of Philox with Python's integers."""

import numpy as np
from philox import key_of, words

import simgrad as sg

def permutation(seed, n):
    """Of n numbers outside sites."""
    key = key_of(seed, 0)
    places = list(range(n))
    for i in range(n - 1, 0, -1):
        j = int((words(key, (i, n, 0, 0)) >> 11) / 2**53 * (i + 1))
        places[i], places[j] = places[j], places[i]
    return places


def in_order(numbers):
    total = np.float32(0)
    for number in numbers:
        total = np.float32(total + number)
    return total


@sg.world(x=sg.State(100), total=sg.State(), rows=sg.State(4))
def totals(x, total, rows):
    return {"x": x, "total": x.sum(), "rows": np.reshape(x, (4, 25)).sum(axis=1)}


def test_a_shuffled_sum_is_that_of_numpy_over_the_permutation(client):
    x = np.random.default_rng(5).normal(size=(3, 100)).astype(np.float32)
    seen = set()
    for seed in (0, 7, 2**64 - 1):
        r = client.rollout(
            totals,
            steps=1,
            initial={"x": x, "total": np.zeros(3), "rows": np.zeros((3, 4))},
            policy=sg.Policy("f32").role("dynamics", order=f"shuffled({seed})"),
        )
        places, row_places = permutation(seed, 100), permutation(seed, 25)
        expected = [in_order(row[places]) for row in x]
        np.testing.assert_array_equal(r.state["total"], expected)
        rows = [[in_order(row[row_places]) for row in one.reshape(4, 25)] for one in x]
        np.testing.assert_array_equal(r.state["rows"], rows)
        seen.add(tuple(expected))
    assert len(seen) == 3


def test_the_answer_says_the_order_and_the_seed(client):
    def ran(policy):
        return client.rollout(
            sg.World("bouncing_ball", elements=9, contact="projection"),
            steps=2,
            initial={"y": np.ones(9), "v": np.zeros(9)},
            params={"k": 100.0},
            policy=policy,
        )

    policy = sg.Policy("bf16_safe").role("termination", order="shuffled(3)")
    r = ran(policy)
    roles = r.program.policy.roles
    assert roles["termination"].order == "shuffled(3)" and roles["solver"].order == "pairwise"
    other = ran(policy.role("termination", order="shuffled(4)"))
    assert other.program.fingerprint != r.program.fingerprint
    assert "shuffled(seed)" in client.info().orders
