"""Shuffled sums, against NumPy and an implementation of Philox with Python's integers."""

import numpy as np

import simgrad as sg

WORD = 2**32 - 1


def splitmix64(z):
    z = (z + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def philox(key, counter):
    """w0 2^32 + w1 of Philox4x32-10."""
    low, high = key & WORD, key >> 32
    c = [number & WORD for number in counter]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ low, b & WORD, (a >> 32) ^ c[3] ^ high, a & WORD]
        low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
    return c[0] << 32 | c[1]


def permutation(seed, n):
    """Of n numbers outside sites."""
    key = splitmix64(seed ^ splitmix64(0))
    places = list(range(n))
    for i in range(n - 1, 0, -1):
        j = int((philox(key, (i, n, 0, 0)) >> 11) / 2**53 * (i + 1))
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
        np.testing.assert_array_equal(r.final["total"], expected)
        rows = [[in_order(row[row_places]) for row in one.reshape(4, 25)] for one in x]
        np.testing.assert_array_equal(r.final["rows"], rows)
        seen.add(tuple(expected))
    assert len(seen) == 3


def test_the_answer_says_the_order_and_the_seed(client):
    policy = sg.Policy("bf16_safe").role("termination", order="shuffled(3)")
    world = sg.bouncing_ball(elements=9)
    r = client.rollout(world, steps=2, initial={"y": np.ones(9), "v": np.zeros(9)}, policy=policy)
    orders = {role.role: role.setting.order for role in r.program.policy.roles}
    assert orders["termination"] == "shuffled(3)" and orders["solver"] == "pairwise"
    assert "order=shuffled(3)" in r.program.text
    other = client.rollout(
        world,
        steps=2,
        initial={"y": np.ones(9), "v": np.zeros(9)},
        policy=policy.role("termination", order="shuffled(4)"),
    )
    assert other.program.fingerprint != r.program.fingerprint
    assert "shuffled(seed)" in client.info().orders
