"""Requests that make a server go through everything it counts, each named after what it causes."""

import contextlib

import numpy as np
import simgrad as sg

PROJECTION = dict(contact="projection", clamp=False)


def ball(**config):
    return sg.World("bouncing_ball", **{**PROJECTION, **config})


def heights(instances, elements=1, low=-0.2, high=1.0):
    y = np.random.default_rng(7).uniform(low, high, (instances, elements))
    return {"y": y, "v": np.zeros_like(y)}


def ordinary(client):
    """Contacts made and broken, stops that converge, gradients that are connected."""
    world = ball(elements=4, max_iter=200)
    client.rollout(world, steps=60, initial=heights(32, 4), params={"k": 0.5}, record=["y"])
    client.gradient(
        world,
        steps=60,
        initial=heights(8, 4),
        params={"k": 0.5},
        objective="final_height",
        checkpoint_interval=16,
    )


def unary(client):
    client.info()
    client.worlds()
    client.program(ball())


def near_boundary_stops(client):
    """Five elements whose sum is the tolerance or one ulp below it, by the order of summation."""
    tol = 2.0**-10
    y = -np.array([tol - 2.0**-21] + [2.0**-23] * 4)
    world = sg.World("boundary_projection", elements=5, tol=tol)
    for order in ("sequential", "reversed"):
        policy = sg.Policy("f16_unsafe").role("termination", format="f16", order=order)
        client.rollout(
            world, steps=1, initial={"y": y}, params={"k": 0.5}, policy=policy, instances=16
        )


def caps(client):
    client.rollout(
        ball(max_iter=2), steps=10, initial=heights(32, low=-9, high=-5), params={"k": 1e-3}
    )


def not_entered(client):
    client.rollout(
        ball(tol=1e-4, tol_enter=0.1), steps=3, initial=heights(8, low=1, high=2), params={"k": 0.5}
    )


def nonfinite_forward(client, instances=8):
    """A gain so large that the correction overflows f16: Inf in the loop, then NaN."""
    for action in ("report", "stop"):
        client.rollout(
            ball(max_iter=20),
            steps=5,
            initial=heights(instances, low=-9, high=-5),
            params={"k": 6e4},
            policy=sg.Policy("f16_unsafe").nonfinite(action),
        )


def nonfinite_inputs(client, instances=4):
    y = np.full((instances, 1), 0.5)
    y[0], y[1:2] = np.nan, np.inf
    client.rollout(ball(), steps=3, initial={"y": y, "v": np.zeros_like(y)}, params={"k": 0.5})


def nonfinite_backward(client):
    """A loss scale that no f16 can hold: the rollout is finite, the cotangent is not."""
    client.gradient(
        ball(),
        steps=5,
        initial=heights(8, low=1, high=2),
        params={"k": 0.5},
        objective="final_height",
        policy=sg.Policy("f16_unsafe").loss_scale(2.0**40),
    )


def disconnected(client):
    """Balls in the air: k was never used."""
    client.gradient(
        ball(),
        steps=3,
        initial=heights(32, low=5, high=6),
        params={"k": 0.5},
        objective="final_height",
        wrt=["k"],
    )


def underflow_and_overflow(client):
    """Heights below the normal numbers of f16, and such as grow beyond the largest."""
    tiny = {"y": np.full((4, 1), 3e-6), "v": np.zeros((4, 1))}
    client.gradient(
        ball(tol=1e-6),
        steps=5,
        initial=tiny,
        params={"k": 0.5},
        objective="final_penetration",
        policy="f16_unsafe",
    )
    high = {"y": np.full((4, 1), 6e4), "v": np.full((4, 1), 6e4)}
    client.rollout(ball(), steps=40, initial=high, params={"k": 0.5}, policy="f16_unsafe", stride=1, arithmetic=2)


def small_loss_scale(client):
    client.gradient(
        ball(),
        steps=3,
        initial=heights(4),
        params={"k": 0.5},
        objective="final_height",
        policy=sg.Policy("f16_safe").loss_scale(0.25),
    )


def own_world(client):
    """A program that comes inline: world and site `custom`."""
    world = sg.World(program=client.program(sg.World("boundary_projection", elements=3)).source)
    client.gradient(
        world,
        steps=2,
        initial={"y": [-1.0, -0.5, 1.0]},
        params={"k": 0.5, "alpha": 0.5},
        objective="final_penetration",
    )


def mistakes(client):
    with contextlib.suppress(sg.InvalidArgument):
        client.rollout(ball(), steps=-1, initial=heights(1), params={"k": 0.5})
    with contextlib.suppress(sg.InvalidArgument):
        client.program(sg.World("bouncing_ball", contact="glue"))


def endless(client, **options):
    """A stream that has begun; it runs until it is closed or its deadline passes."""
    return client.rollout_stream(
        ball(contact="penalty", elements=8),
        steps=5_000_000,
        initial=heights(256, 8),
        params={"k": 1.0},
        chunk_steps=64,
        **options,
    )


@contextlib.contextmanager
def running(client):
    """An endless stream whose first message has come; left behind, it is cancelled."""
    with endless(client) as stream:
        blocks = iter(stream)  # held: an iterator that nobody holds cancels its call
        next(blocks)
        yield


def cancelled(client):
    with running(client):
        pass


def expired(client):
    with contextlib.suppress(sg.DeadlineExceeded):
        endless(client, timeout=0.3).result


NUMERIC_TROUBLES = (
    near_boundary_stops,
    caps,
    nonfinite_forward,
    nonfinite_inputs,
    nonfinite_backward,
    disconnected,
)
EVERYTHING = (
    ordinary,
    unary,
    not_entered,
    underflow_and_overflow,
    own_world,
    mistakes,
    cancelled,
    expired,
    small_loss_scale,
    *NUMERIC_TROUBLES,
)
