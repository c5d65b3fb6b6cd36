"""A test that steers nothing, in the test region of a loop: no path holds it, and comparisons know it all the same."""

import numpy as np
import pytest

import simgrad as sg
from simgrad.program import ProgramBuilder

POLICIES = ["f32", "bf16_unsafe"]
# 3 * 0.10005 is above 0.3 in f32, and 0.3 in bf16.
STATES = {"x": [0.1, 0.10005, 0.2]}


@pytest.fixture(scope="module")
def world():
    b = ProgramBuilder("watched")
    x, k = b.state("x"), b.param("k")

    def test(carried):
        b.event("watch", carried * 3.0, "gt", b.literal(0.3))
        return [b.abs(carried), b.literal(1e-3)]

    b.while_loop("solve", [x], test, lambda c, _: [c[0] * 0.01], max_iter=5, comparison="lt")
    b.next(x=x * k)
    b.objective("J", terminal=lambda states, _: states["x"])
    return sg.World(program=b)


@pytest.fixture(scope="module")
def inputs():
    return {"steps": 3, "initial": STATES, "params": {"k": 0.5}}


def test_a_path_leaves_it_out_and_signatures_do_not(client, world, inputs):
    a, b = (client.rollout(world, policy=policy, path=True, **inputs) for policy in POLICIES)
    assert list(a.path.columns) == ["solve"]
    assert np.array_equal(a.path_signatures != b.path_signatures, [False, True, False])


def test_compare_names_it(client, world, inputs):
    compared = client.compare(world, policies=POLICIES, objective="J", **inputs)
    forks = compared.pairs["bf16_unsafe"].forks
    assert np.array_equal(forks.parted, [False, True, False])
    assert np.array_equal(forks.step, [-1, 0, -1])
    assert forks.site == ["", "watch", ""]
    assert forks.first.site == "watch" and forks.first.instance == 1
    assert not forks.first.other.held and forks.first.reference.held
    assert "`watch`" in str(compared.why)


def test_an_earlier_fork_of_the_path_stays_the_first(client, world, inputs):
    # 0.0009999 is below 1e-3 in f32, and equal to it in bf16.
    states = {"x": [0.1, 0.10005, 0.0009999]}
    compared = client.compare(world, policies=POLICIES, objective="J", **{**inputs, "initial": states})
    forks = compared.pairs["bf16_unsafe"].forks
    a, b = (client.rollout(world, policy=policy, **{**inputs, "initial": states}) for policy in POLICIES)
    assert np.array_equal(forks.parted, a.path_signatures != b.path_signatures)
    assert forks.parted[1] and forks.site[1] == "watch"
    assert forks.parted[2] and forks.site[2] == "solve"
    assert forks.first.instance == 1  # of equal steps the lowest
