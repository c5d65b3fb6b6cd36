"""A role that saturates clamps every state it stores and every input it uses, in any format."""

import math

import numpy as np
import pytest

import simgrad as sg

LARGEST = {"f64": np.finfo(np.float64).max, "f32": np.finfo(np.float32).max, "f16": 65504.0}


@pytest.mark.parametrize("dynamics", LARGEST)
@pytest.mark.parametrize("state", LARGEST)
def test_states_are_clamped_in_whatever_format_they_were_computed(client, dynamics, state):
    policy = sg.Policy("f32").role("dynamics", format=dynamics)
    policy = policy.role("state", format=state, overflow="saturate")
    # The acceleration is infinite, and so are the height and the speed that it gives.
    r = client.rollout(
        sg.World("bouncing_ball", contact="penalty"),
        steps=2,
        initial={"y": [1.0], "v": [1.0]},
        params={"k": 1.0},
        controls={"u": [math.inf]},
        policy=policy,
        record=["y", "v"],
    )
    for name in ("y", "v"):
        assert r.trajectory[name][0, :, 0].tolist() == [1.0, LARGEST[state], LARGEST[state]], name


@pytest.mark.parametrize("solver", LARGEST)
def test_an_infinite_parameter_is_clamped_where_it_is_used(client, solver):
    r = client.rollout(
        sg.World("boundary_projection", elements=2, max_iter=1),
        steps=1,
        initial={"y": [-1.0, 0.5]},
        params={"k": math.inf, "alpha": 0.5},
        policy=sg.Policy("f64").role("solver", format=solver, overflow="saturate"),
    )
    # y + (alpha k) relu(-y); a gain that stayed infinite would turn the second into 0 Inf = NaN.
    assert r.state["y"].tolist() == [[0.5 * LARGEST[solver], 0.5]]
