"""Worlds lowered from JAX and what JAX gave for them (tests/data/jax), and how far the server is from it.

usage: python tests/integration/jax_results.py   writes the table of docs/jax.md
"""

from __future__ import annotations

import functools
import json
import lzma
import pathlib
import re

import numpy as np

import simgrad as sg
from simgrad.v1 import program_pb2

ROOT = pathlib.Path(__file__).parent.parent.parent
FOLDER = ROOT / "tests/data/jax"
INDEX = json.loads((FOLDER / "worlds.json").read_text())
WORLDS = INDEX["worlds"]
KEPT = [1, 2, 5, 10, 20, 50, 100]
GRADIENT_STEPS = 3
TITLE = "| world | operations | lines that decide | error, step 1 | error, step 100 | it grows to | gradient against | JAX / ours, time |"
RULE = "|---|---|---|---|---|---|---|---|"


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
def errors(client, name):
    """By real leaf of the state: at each kept step the largest difference from JAX, by the largest number
    of the leaf then, or 1."""
    expected = group(name, "expected")
    r = client.rollout(
        world(name), steps=KEPT[-1], policy="f64", record=list(expected), **inputs(name)
    )
    found = {}
    for leaf, theirs in expected.items():
        if theirs.dtype.kind != "f":
            continue  # counters and neighbour lists follow from what is compared
        ours = r.trajectory[leaf][0][KEPT]
        assert (np.isnan(ours) == np.isnan(theirs)).all(), leaf
        largest = np.abs(theirs).reshape(len(KEPT), -1).max(1, initial=0.0)
        worst = np.abs(ours - theirs).reshape(len(KEPT), -1).max(1, initial=0.0)
        found[leaf] = worst / np.maximum(1.0, largest)
    return found


@functools.cache
def slope(client, name):
    """The derivative of the objective along the stored direction."""
    watch = WORLDS[name]["watch"]
    g = client.gradient(
        world(name),
        steps=GRADIENT_STEPS,
        policy="f64",
        objective="watched",
        wrt=[f"state.{watch}"],
        **inputs(name),
    )
    return float(np.sum(g.initial[watch][0] * arrays(name)["direction"]))


@functools.cache
def at_level(name, level):
    """The world with the tests of another level."""
    program = program_pb2.Program()
    program.CopyFrom(world(name).program)
    program.level = level
    return sg.World(program=program)


@functools.cache
def slope_between(client, name):
    """The central difference of the objective along the direction, over the widest step that changes
    path of loops; None where each does. In a converged line search comparisons of numbers that are equal but
    for rounding flip without any consequence."""
    watch = WORLDS[name]["watch"]
    given = inputs(name)
    for width in (1e-5, 1e-6, 1e-7):
        answers = []
        for sign in (0.0, 1.0, -1.0):
            start = dict(given["initial"])
            start[watch] = start[watch] + sign * width * arrays(name)["direction"]
            answers.append(
                client.rollout(
                    at_level(name, "loops"),
                    steps=GRADIENT_STEPS,
                    policy="f64",
                    objective="watched",
                    **{**given, "initial": start},
                )
            )
        if len({int(a.path_signature) for a in answers}) == 1:
            return (answers[1].value - answers[2].value) / (2 * width)
    return None


@functools.cache
def times():
    """By world, how many times as long jit(vmap) of JAX takes, and in which size: processor seconds of one core in f64, as
    docs/performance.md has them of scripts/bench; none of a world that was not measured."""
    page = (ROOT / "docs/performance.md").read_text()
    measured = r"^\| (\w+) in f64, rollout: (\d+ × \d+) \|[^|]*\|[^|]*\| (\S+) \|"
    return {name: f"{ratio} ({size})" for name, size, ratio in re.findall(measured, page, re.MULTILINE)}


def row(client, name):
    """A line of the table."""
    facts = WORLDS[name]
    by_leaf = errors(client, name)
    worst = np.max([e for e in by_leaf.values()], axis=0)
    ours = slope(client, name)
    uses_jax = "slope" in arrays(name) and not facts["implicit"]
    theirs = float(arrays(name)["slope"]) if uses_jax else slope_between(client, name)
    against = "jax.grad" if uses_jax else "central differences"
    difference = abs(ours - theirs) / max(1.0, abs(theirs))
    return (
        f"| {name} | {facts['operations']} | {len(facts['sites'])} | {worst[0]:.0e} | {worst[-1]:.0e} | "
        f"{facts['growth']:.0e} | {against}: {difference:.0e} | {times().get(name, '')} |"
    )


def main():
    from live_server import LiveServer

    server = LiveServer()
    try:
        with sg.Client(server.target, timeout=600) as client:
            rows = [row(client, name) for name in sorted(WORLDS)]
    finally:
        server.stop()
    page = ROOT / "docs/jax.md"
    before, _, rest = page.read_text().partition("<!-- worlds -->\n")
    after = rest.partition("<!-- worlds end -->")[2]
    table = "\n".join([TITLE, RULE, *rows])
    page.write_text(f"{before}<!-- worlds -->\n{table}\n<!-- worlds end -->{after}")


if __name__ == "__main__":
    main()
