"""Random worlds, policies and calls for arithmetic_oracle_test.py: small numbers, large ones, and sums of both."""

import random
from typing import NamedTuple

import numpy as np

import simgrad as sg

FORMATS = ["f64", "f32", "bf16", "f16"]
ORDERS = ["sequential", "reversed", "pairwise", "compensated", "exact"]
PRODUCTS = ["fma_chain", *ORDERS]
PRESETS = ["f64", "f32", "bf16_unsafe", "f16_unsafe", "bf16_safe", "f16_safe"]
ROLES = "state dynamics solver network objective tape adjoint gradient event termination".split()
ONLY_FORMAT = {"state", "tape", "gradient"}


class Case(NamedTuple):
    """Arguments of `Client.gradient`, and how many instances are counted."""

    arguments: dict
    counted: int


# ---- Expressions: each takes the generator and three values of n elements ----


def scattered(rng, a, b, c):
    places = np.array([rng.randrange(len(a)) for _ in range(len(a) + 1)])
    factors = np.array([rng.choice([1e-3, 1.0, 300.0]) for _ in places])
    return (a * 1.0).at[places].add(factors * b[places])


def of_a_role(rng, a, b, c):
    with sg.role(rng.choice(["solver", "network"]), rng.choice(["first", "second"])):
        return a * b + np.sum(a * 1e-4)


def looped(rng, a, b, c):
    return sg.while_loop(
        lambda q: q * 0.5 + 1e-3,
        a,
        until=lambda q: np.sum(np.abs(q)) < 1.0,
        max_iter=rng.choice([2, 5]),
        site=f"loop{rng.randrange(1 << 30)}",
    )


def scanned(rng, a, b, c):
    last, each = sg.scan(lambda x, e: (x + e, x * e), a, np.array([1e-3, 1.0, 7.0]), reverse=rng.random() < 0.5)
    return last + each[1] * 1e-2


def mixed(rng, a, b, c):
    """A matrix product, at times of numbers that are subnormal in f16, or whose products are in f32."""
    n = len(a)
    size, other = rng.choice([(1.0, 1.0), (1e-6, 1.0), (1e-6, 1e-6), (1e-20, 1e-20)])
    return b + (a * size) @ (np.ones((n, n)) * (0.3 * other) + np.eye(n))


def residue(rng, a, b, c):
    """The error of a product, which is subnormal in f16."""
    x, y = np.sin(a), np.sin(b) * 0.1
    return c + sg.builder().fma(x, y, -(x * y))


EXPRESSIONS = {
    "sum of two": lambda rng, a, b, c: a + b,
    "difference": lambda rng, a, b, c: a - b,
    "product": lambda rng, a, b, c: a * b,
    "quotient": lambda rng, a, b, c: a / (b * b + 1.0),
    "bell": lambda rng, a, b, c: np.exp(-a * a),
    "power of two": lambda rng, a, b, c: np.exp2(-a * 3.0),
    "sine": lambda rng, a, b, c: np.sin(a),
    "tangent": lambda rng, a, b, c: np.tanh(a) * b,
    "gate": lambda rng, a, b, c: b * sg.builder().sigmoid(a * rng.choice([1.0, -20.0, 1e3])),
    "size": lambda rng, a, b, c: np.abs(a) + np.sign(b) * 1e-3,
    "choice": lambda rng, a, b, c: np.where(a > b, a, b * 0.5),
    "running sum": lambda rng, a, b, c: np.cumsum(a),
    "sum": lambda rng, a, b, c: a + np.sum(b),
    "sum of small numbers": lambda rng, a, b, c: a + np.sum(b * 1e-6),
    "factors": lambda rng, a, b, c: a * np.prod(b),
    "matrix": mixed,
    "product of matrices": lambda rng, a, b, c: np.outer(a, b) @ c,
    "scatter": scattered,
    "scaled": lambda rng, a, b, c: a * rng.choice([1e-3, 1e-8, 1e5, 1e-25, 1e20, 0.1, 3.0]),
    "moved": lambda rng, a, b, c: a + rng.choice([1e-4, 1e-9, 1e3, 0.1]),
    "role": of_a_role,
    "while": looped,
    "cond": lambda rng, a, b, c: sg.cond(
        np.sum(a) > rng.choice([0, 5, -5]), lambda q: q * 2 + a, lambda q: q - b * 1e-4, b
    ),
    "scan": scanned,
    "for": lambda rng, a, b, c: sg.for_loop(3, lambda i, q: q * 0.9 + b, a),
    "bounded": lambda rng, a, b, c: np.maximum(np.minimum(a, 100.0), -100.0),
    "fma": lambda rng, a, b, c: sg.builder().fma(a, b, c),
    "residue": residue,
    "outer": lambda rng, a, b, c: np.sum(np.outer(a, b), axis=rng.choice([0, 1])),
}


def world(rng, size):
    seed, costs = rng.randrange(1 << 30), rng.choice(["terminal", "stage", "both"])

    @sg.world
    def w(x: sg.State[size], z: sg.State[size], k: sg.Param[size] = 1.0):
        own = random.Random(seed)
        values = [x, z, k * x]
        for _ in range(own.randrange(6, 14)):
            expression = EXPRESSIONS[own.choice(list(EXPRESSIONS))]
            values.append(expression(own, *[own.choice(values) for _ in range(3)]))
        after, rest = values[-1], sum(values[-5:-1])
        if own.random() < 0.7:
            after, rest = [np.maximum(np.minimum(y, 30.0), -30.0) for y in (after, rest)]
        return {"x": after, "z": z * 0.9 + rest * 1e-3}

    if costs != "stage":

        @w.objective
        def cost(x, z):
            return np.sum(x * x) * 1e-3 + np.sum(z)

    if costs != "terminal":

        @w.stage_cost
        def cost(x, k):  # noqa: F811
            return np.sum(x * k)

    return w


def policy(rng):
    made = sg.Policy(rng.choice(PRESETS))
    for role in ROLES:
        if rng.random() < 0.5:
            continue
        settings = {}
        if rng.random() < 0.6:
            settings["format"] = rng.choice(FORMATS)
        if rng.random() < 0.5 and role not in ONLY_FORMAT:
            settings["order"] = rng.choice([*ORDERS, "compensated"])
        if rng.random() < 0.5 and role not in ONLY_FORMAT:
            settings["accumulator"] = rng.choice([*FORMATS, "f16"])
        if rng.random() < 0.5 and role not in ONLY_FORMAT:
            settings["products"] = rng.choice(PRODUCTS)
        if settings:
            made = made.role(role, **settings)
    if rng.random() < 0.3:
        role = rng.choice(["dynamics", "adjoint"])
        made = made.role(role, format=rng.choice(["f32", "bf16"]), accumulator="f16", products=rng.choice(PRODUCTS))
    return made


def case(seed):
    rng = random.Random(seed)
    size, instances = rng.choice([2, 3, 4]), rng.choice([1, 2, 3])
    scale = rng.choice([1.0, 1.0, 1e3, 1e-4])

    def numbers(*shape):
        return np.array([rng.gauss(0, 1) for _ in range(int(np.prod(shape)))]).reshape(shape)

    sizes = np.array([10.0 ** rng.randrange(-4, 3) for _ in range(instances * size)]).reshape(instances, size)
    arguments = dict(
        world=world(rng, size),
        steps=rng.choice([0, 1, 2, 3, 5]),
        initial={"x": numbers(instances, size) * scale * sizes, "z": numbers(instances, size)},
        params={"k": numbers(instances, size)},
        policy=policy(rng),
        stride=rng.choice([1, 1, 2, 3]),
        objective="cost",
    )
    return Case(arguments, rng.randrange(1, instances + 1))
