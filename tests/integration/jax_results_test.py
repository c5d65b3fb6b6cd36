"""Worlds lowered from JAX against what JAX gave, without JAX: tests/data/jax, by tests/with_jax/make_results.py.

A world is compared at steps 1, 2, 5, ... 100. The first step agrees to 1e-12. Later ones to 30 times what
a perturbation of 1e-13 of the start has become in JAX by then, which is how fast errors grow in the
world itself, and never less than 1e-12.
"""

import hashlib
import importlib.machinery
import importlib.util
import lzma
import os
import pathlib
import re
import urllib.request

import numpy as np
import pytest
from jax_results import (
    FOLDER,
    KEPT,
    ROOT,
    WORLDS,
    arrays,
    at_level,
    errors,
    group,
    inputs,
    row,
    slope,
    slope_between,
    world,
)

import simgrad as sg

FIRST, GROWN = 1e-12, 30
LARGE = 2200  # operations: what compiles for long runs under --long
NAMES = [
    pytest.param(n, marks=pytest.mark.long) if WORLDS[n]["operations"] > LARGE else n
    for n in sorted(WORLDS)
]


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_a_stored_world_is_the_one_that_was_measured(name):
    program = lzma.decompress((FOLDER / f"{name}.program.xz").read_bytes())
    assert hashlib.sha256(program).hexdigest() == WORLDS[name]["digest"]


@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_steps_are_those_of_jax(client, name):
    for leaf, worst in errors(client, name).items():
        allowed = np.maximum(FIRST, GROWN * group(name, "grown")[leaf])
        allowed[0] = FIRST
        assert (worst <= allowed).all(), f"{leaf}: {worst} beyond {allowed} at steps {KEPT}"


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_is_that_of_jax_or_of_central_differences(client, name):
    ours, facts = slope(client, name), arrays(name)
    assert abs(ours) > 1e-3, "a gradient that is zero tells nothing: watch a leaf that a step reads"
    if "slope" in facts:
        # jaxopt's is the derivative of an exact solution, ours that of the iterations that ran.
        near = dict(rel=1e-2, abs=1e-6) if WORLDS[name]["implicit"] else dict(rel=1e-7, abs=1e-9)
        assert ours == pytest.approx(float(facts["slope"]), **near)
    if "slope" not in facts or WORLDS[name]["implicit"]:
        difference = slope_between(client, name)
        assert difference is not None, "the path changes within 1e-7 of the start"
        assert ours == pytest.approx(difference, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_the_docs_is_what_is_measured(client, name):
    lines = (ROOT / "docs/jax.md").read_text().splitlines()
    assert row(client, name) in lines, "python tests/integration/jax_results.py writes it"


@pytest.mark.parametrize("name", NAMES)
def test_every_line_that_decides_is_a_site_and_cheap_policies_run(client, name):
    known = {*WORLDS[name]["sites"]}
    for policy, level in (("f32", "all"), ("bf16_safe", "decisions")):
        r = client.rollout(at_level(name, level), steps=2, policy=policy, **inputs(name))
        found = {site.partition("#")[0] for site in (*r.sites, *r.events)} - {*CHOICES}
        assert found == known if level == "all" else found <= known
        loops = {op.decision_site for op in walk(world(name).program.step) if op.code == "while"}
        assert loops <= {site.partition("#")[0] for site in r.sites}
        ends = [x for x in r.state.values() if np.issubdtype(x.dtype, np.floating)]
        assert ends and all(np.isfinite(x).all() for x in ends) == (name not in NOT_FINITE[policy])
        assert bool(r.ok.all()) == (name not in NOT_FINITE[policy] | NOT_OK[policy])


def test_the_docs_name_the_worlds_that_are_not_finite():
    page = " ".join((ROOT / "docs/jax.md").read_text().split())
    [ends] = re.findall(r"two steps in f32, and all end in finite numbers; in bf16_safe all but (.*?) do, where", page)
    assert set(ends.split(" and ")) == NOT_FINITE["bf16_safe"] and not NOT_FINITE["f32"]
    [masked] = re.findall(r"in every format, (.*?), and those of brax_hopper in bf16_safe, although all end", page)
    assert set(re.split(", | and ", masked)) == NOT_OK["f32"] == NOT_OK["bf16_safe"] - {"brax_hopper"}


# By policy, the worlds that do not end two steps in finite numbers, and those that end them in finite numbers, but compute one that is not.
NOT_FINITE = {"f32": set(), "bf16_safe": {"mjx_hopper", "mjx_humanoid"}}
MASKED = {"diffrax_kvaerno5", "jaxmd_neighbours", "jaxmd_pairs", "jaxopt_lbfgs"}
NOT_OK = {"f32": MASKED, "bf16_safe": MASKED | {"brax_hopper"}}

LARGEST = max(WORLDS, key=lambda name: WORLDS[name]["operations"])
FIRST_STEP = 5  # seconds of the server's processor time, in which a program of 5,000 operations is admitted and gives its first step


def processor_seconds(pid):
    after_name = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def test_the_largest_world_gives_its_first_step_soon_and_is_kept_by_its_digest(serve, pytestconfig):
    client = serve()

    def looked_up(result):
        with urllib.request.urlopen(f"http://127.0.0.1:{client.server.metrics_port}/metrics") as page:
            text = page.read().decode()
        return float(re.search(rf'^simgrad_program_cache_total{{result="{result}"}} (\S+)$', text, re.MULTILINE)[1])

    def first_step():
        own = sg.World(program=world(LARGEST).program)  # as another caller sends it
        return client.rollout(own, steps=1, policy="f64", **inputs(LARGEST))

    assert 4500 < WORLDS[LARGEST]["operations"] < 5500
    begin = processor_seconds(client.server.process.pid)
    answer = first_step()
    took = processor_seconds(client.server.process.pid) - begin
    assert took <= FIRST_STEP * (1 if pytestconfig.getoption("--long") else 5)
    assert (looked_up("miss"), looked_up("hit")) == (1, 0)
    again = first_step()
    assert (looked_up("miss"), looked_up("hit")) == (1, 1)
    assert again.program.fingerprint == answer.program.fingerprint and again.path_signature == answer.path_signature


# Written out, the pairs and cells of these would be 100,000 and 1,700,000 numbers.
MOST_LITERALS = {"jaxmd_pairs": 5_000, "jaxmd_neighbours": 60_000}


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_constants_that_are_folded_do_not_blow_up(name):
    numbers = sum(len(op.literal) for op in walk(world(name).program.step))
    assert numbers <= MOST_LITERALS.get(name, WORLDS[name]["operations"])


def test_the_picture_of_the_docs_is_what_the_script_draws(server, tmp_path):
    loader = importlib.machinery.SourceFileLoader("jax_pictures", str(ROOT / "scripts/jax-pictures"))
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader("jax_pictures", loader))
    loader.exec_module(script)
    script.main(tmp_path, server.target)
    [drawn] = tmp_path.iterdir()
    assert drawn.read_text() == (ROOT / "docs/pictures" / drawn.name).read_text(), "scripts/jax-pictures"
    assert f"(pictures/{drawn.name})" in (ROOT / "docs/jax.md").read_text()


# Sites that the server adds where an operation chooses; they have its name.
CHOICES = ("argmax", "argmin", "argsort", "lu", "cholesky", "convert")


def walk(region):
    for op in region.ops:
        yield op
        for nested in op.regions:
            yield from walk(nested)
