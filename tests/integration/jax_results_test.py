"""Worlds lowered from JAX against what JAX gave, without JAX: tests/data/jax, by make_results.py.

A world is compared at steps 1, 2, 5, ... 100. The first step agrees to 1e-12. Later ones to 30 times what
a perturbation of 1e-13 of the start has become in JAX by then, which is how fast errors grow in the
world itself, and never less than 1e-12.
"""

import functools
import hashlib
import json
import lzma
import pathlib

import numpy as np
import pytest

import simgrad as sg
from simgrad.v1 import program_pb2

FOLDER = pathlib.Path(__file__).parent.parent / "data/jax"
INDEX = json.loads((FOLDER / "worlds.json").read_text())
WORLDS = INDEX["worlds"]
KEPT = [1, 2, 5, 10, 20, 50, 100]
GRADIENT_STEPS = 3
FIRST, GROWN = 1e-12, 30
LARGE = 2200  # operations: what compiles for long runs under --long
NAMES = [
    pytest.param(n, marks=pytest.mark.long) if WORLDS[n]["operations"] > LARGE else n
    for n in sorted(WORLDS)
]


@functools.cache
def arrays(name):
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)


@functools.cache
def world(name):
    program = program_pb2.Program()
    program.ParseFromString(lzma.decompress((FOLDER / f"{name}.program.xz").read_bytes()))
    return sg.World(program=program)


def group(name, kind):
    return {k.partition("/")[2]: x for k, x in arrays(name).items() if k.startswith(f"{kind}/")}


def inputs(name):
    found = {"initial": {k: x[None] for k, x in group(name, "state").items()}}
    declared = {i.name for i in world(name).program.inputs}
    if "control" in arrays(name) and "control" in declared:
        found["controls"] = {"control": arrays(name)["control"]}
    return found


@functools.cache
def loops_alone(name):
    """The world with a path signature of its loops: in a converged line search comparisons of numbers
    that are equal but for rounding flip without any consequence."""
    program = program_pb2.Program()
    program.CopyFrom(world(name).program)
    program.level = "loops"
    return sg.World(program=program)


def slope_between(client, name, steps, width):
    """The central difference of the objective along the direction, and whether no path changed."""
    watch = WORLDS[name]["watch"]
    given, answers = inputs(name), []
    for sign in (0.0, 1.0, -1.0):
        start = dict(given["initial"])
        start[watch] = start[watch] + sign * width * arrays(name)["direction"]
        answers.append(
            client.rollout(
                loops_alone(name),
                steps=steps,
                policy="f64",
                objective="watched",
                **{**given, "initial": start},
            )
        )
    same = len({int(a.path_signature) for a in answers}) == 1
    return (answers[1].value - answers[2].value) / (2 * width), same


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_a_stored_world_is_the_one_that_was_measured(name):
    program = lzma.decompress((FOLDER / f"{name}.program.xz").read_bytes())
    assert hashlib.sha256(program).hexdigest() == WORLDS[name]["digest"]


@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_steps_are_those_of_jax(client, name):
    expected, grown = group(name, "expected"), group(name, "grown")
    r = client.rollout(
        world(name), steps=KEPT[-1], policy="f64", record=list(expected), **inputs(name)
    )
    for leaf, theirs in expected.items():
        ours = r.trajectory[leaf][0][KEPT]
        if theirs.dtype.kind != "f":
            continue  # counters and neighbour lists follow from what is compared
        assert (np.isnan(ours) == np.isnan(theirs)).all(), leaf
        largest = np.abs(theirs).reshape(len(KEPT), -1).max(1, initial=0.0)
        worst = np.abs(ours - theirs).reshape(len(KEPT), -1).max(1, initial=0.0)
        worst /= np.maximum(1.0, largest)
        allowed = np.maximum(FIRST, GROWN * grown[leaf])
        allowed[0] = FIRST
        assert (worst <= allowed).all(), f"{leaf}: {worst} beyond {allowed} at steps {KEPT}"


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_is_that_of_jax_or_of_central_differences(client, name):
    watch, facts = WORLDS[name]["watch"], arrays(name)
    g = client.gradient(
        world(name),
        steps=GRADIENT_STEPS,
        policy="f64",
        objective="watched",
        wrt=[f"state.{watch}"],
        **inputs(name),
    )
    ours = float(np.sum(g.initial[watch][0] * facts["direction"]))
    implicit = WORLDS[name]["implicit"]  # JAX's is then the derivative of an exact solution
    if "slope" in facts:
        near = dict(rel=1e-2, abs=1e-6) if implicit else dict(rel=1e-7, abs=1e-9)
        assert ours == pytest.approx(float(facts["slope"]), **near)
    if "slope" in facts and not implicit:
        return
    for width in (1e-5, 1e-6, 1e-7):
        difference, same_path = slope_between(client, name, GRADIENT_STEPS, width)
        if same_path:
            assert ours == pytest.approx(difference, rel=2e-5, abs=1e-6)
            return
    pytest.fail("the path changes within 1e-7 of the start: choose another start")


@pytest.mark.parametrize("name", NAMES)
def test_every_line_that_decides_is_a_site_and_cheap_policies_run(client, name):
    for policy in ("f32", "bf16_safe"):
        r = client.rollout(world(name), steps=2, policy=policy, **inputs(name))
        found = {site.partition("#")[0] for site in (*r.sites, *r.events)}
        assert found <= set(WORLDS[name]["sites"])
        loops = {op.decision_site for op in walk(world(name).program.step) if op.code == "while"}
        assert loops <= {site.partition("#")[0] for site in r.sites}


def walk(region):
    for op in region.ops:
        yield op
        for nested in op.regions:
            yield from walk(nested)
