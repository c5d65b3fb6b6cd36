"""client.compare and `simgrad compare` against a live server: what they say is what the answers hold."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from ended_world import ENDED, ended
from one_by_one import OneByOne
from said import unbacked

import simgrad as sg
from simgrad import command_line, report
from simgrad.clock import Clock
from simgrad.program import ProgramBuilder
from simgrad.why import work

# Nine penetrations whose exact sum is the tolerance; in bf16 the eight small ones are lost.
TOLERANCE = float.fromhex("0x1.06p-10")
START = -np.array([float.fromhex("0x1.04p-10")] + 8 * [2.0**-20])
PROJECTION = sg.World("boundary_projection", elements=9, tol=TOLERANCE)
BALL = sg.World("bouncing_ball", contact="toi")


def depressurized(client, instances=6, **more):
    arguments = dict(
        steps=4,
        initial={"y": np.tile(START, (instances, 1))},
        params={"k": 0.5},
        objective="final_penetration",
        policies=["f32", "bf16_unsafe", "bf16_safe"],
    )
    return client.compare(PROJECTION, **{**arguments, **more})


def bounced(client, **more):
    arguments = dict(
        steps=120,
        initial={"y": np.linspace(0.3, 1.0, 12)[:, None], "v": [0.0]},
        params={"restitution": 0.8},
        objective="final_height",
        policies=["f64", "f32", "bf16_unsafe"],
    )
    return client.compare(BALL, **{**arguments, **more})


def test_the_vanished_gradient_is_told_in_one_sentence(client):
    result = depressurized(client, instances=4096)
    unsafe, safe = result.why.splitlines()
    assert unsafe == (
        "In bf16_unsafe the gradient of `k` is zero in 4096 of 4096 instances: the loop `projection` stops at step 0 by a "
        "margin of -1 ulp, where f32 goes on."
    )
    assert safe.startswith("bf16_safe takes the path of f32 in 4096 of 4096 instances, and its gradients are off by at most")
    assert "projection" in result.table() and unsafe in repr(result)


def off_by(a, b):
    """How a table writes the difference of two arrays: largest, relative, and where it is largest."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    off = np.abs(b - a)
    at = [int(k) for k in np.unravel_index(np.argmax(off), off.shape)]
    return [f"{off.max():.3g}", f"{np.linalg.norm(off) / np.linalg.norm(a):.3g}", at]


def rows_by_hand(a, b):
    """The rows of a table of what differs, from the answers, with the cells that are not empty."""
    arrays = {"value": (a.value, b.value), "values of instances": (a.values, b.values)}
    for word, group in (("state", "state"), ("trajectory", "trajectory")):
        arrays |= {f"{word} {n}": (x, getattr(b, group)[n]) for n, x in getattr(a, group).items()}
    for group in ("initial", "params", "controls"):
        arrays |= {f"gradient of {n}": (x, getattr(b, group)[n]) for n, x in getattr(a, group).items()}
    arrays = {n: (x, y) for n, (x, y) in arrays.items() if x is not None and np.shape(x) == np.shape(y)}
    rows, counts = {}, {}
    for name, (x, y) in arrays.items():
        if not np.array_equal(x, y):
            largest, relative, at = off_by(x, y)
            both = [f"{x:.9g}", f"{y:.9g}"] if name == "value" else []
            rows[name] = [*both, largest, relative, *([str(at)] if at else [])]
    number = len(rows)
    for n, x in a.sites.items():
        y = b.sites[n]
        means = [f"{(s.runs * s.iterations_mean).sum() / s.runs.sum():.4g}" for s in (x, y)]
        counts[f"{n}: mean turns"] = means, x.iterations_mean, y.iterations_mean
        for k, reason in enumerate(("converged", "max_iter", "nonfinite", "not_entered")):
            told = [str(s.reasons[:, k].sum()) for s in (x, y)]
            counts[f"{n}: ended as {reason}"] = told, x.reasons[:, k], y.reasons[:, k]
        counts[f"{n}: ended as counter"] = [str(s.counter.sum()) for s in (x, y)], x.counter, y.counter
    for n, x in a.events.items():
        y = b.events[n]
        counts[f"{n}: held"] = [str(x.count.sum()), str(y.count.sum())], x.count, y.count
    for name, (told, x, y) in counts.items():
        if len(x) != len(y):
            if told[0] != told[1]:
                rows[name] = told
        elif (x != y).any():
            largest, relative, (step,) = off_by(x, y)
            rows[name] = [*told, largest, "inf" if not x.any() else relative, f"step {step}"]
    sites = {name.partition(": ")[0] for name in rows if ": " in name}
    heading = f"{number} of {len(arrays)} arrays and {len(sites)} of {len(a.sites) + len(a.events)} sites differ"
    return heading, rows


def cells_of(line):
    return re.split(r"\s{2,}", line.strip())


@pytest.mark.parametrize("compared", [depressurized, bounced])
def test_what_is_printed_of_a_comparison_is_in_its_answers(client, compared):
    result = compared(client, configs=[{"steps": 3}], record=["y"])
    printed = repr(result).splitlines()
    assert printed[0] == f"Comparison with {result.reference}"
    heads = cells_of(printed[1])
    by_site = []
    for line, (name, pair) in zip(printed[2:], result.pairs.items()):
        a, b = pair.reference_result, pair.other_result
        heading, rows = rows_by_hand(a, b)
        lines, number = repr(pair).splitlines(), len(pair.sentences)
        assert lines[:number] == [s.text for s in pair.sentences] and lines[number] == heading
        table = lines[number + 2 :]
        assert {cells[0]: cells[1:] for cells in map(cells_of, table)} == rows
        assert len(table) == len(rows) > 0
        by_site += [[name, what, *cells] for what, cells in rows.items() if ": " in what]
        assert line.startswith(name) and f"  {abs(b.value - a.value):.2g}" in line
        groups = [(a.state, b.state), (a.initial | a.params, b.initial | b.params)]
        for x, y in ((x[n], y[n]) for x, y in groups for n in x if not np.array_equal(x[n], y[n])):
            assert f" {np.linalg.norm(np.float64(y) - x) / np.linalg.norm(x):.2g}" in line
    why = result.why.splitlines()
    assert heads[-3:] == ["value off by", "state off by (relative)", "gradient off by (relative)"]
    after = printed[2 + len(result.pairs) :]
    assert after[: len(why)] == why
    assert sorted(map(cells_of, after[len(why) + 1 :])) == sorted(by_site) != []


def check_births(facts, a, b, policies):
    """The facts of the sentence about instances that are not finite in the other run alone."""
    bad = np.flatnonzero(a.ok & ~b.ok)
    ends = [i for i in bad if not all(np.isfinite(x[i]).all() for x in (*b.state.values(), b.values))]
    first = min((h for h in b.health if h.instance in bad), key=lambda h: h.step)
    [born] = [c for c in b.certificates if c.instance_id == first.instance]
    assert facts == {
        "newly_nonfinite": len(bad),
        "missing": len(ends),
        "of": a.instances,
        "phase": first.phase,
        "step": first.step,
        "instance": first.instance,
        "operation": born.operation,
        "site": born.site,
        "line": born.label,
        "format": born.format,
        "class": born.non_finite_class,
        "reference": policies[0],
        "other": policies[1],
    }


def check(client, sentence, pair, world, arguments, policies):
    """Each fact of a sentence, against answers that are asked for here, and its numbers against its facts."""
    assert not unbacked(sentence), sentence.text
    facts = dict(sentence.facts)
    runs = [client.gradient(world, **arguments, policy=p, diagnostics="instances") for p in policies]
    a, b = runs
    number = a.instances
    if "newly_nonfinite" in facts:
        check_births(facts, a, b, policies)
        return
    parted = a.path_signatures != b.path_signatures
    checked = {"of": number, "parted": int(parted.sum()), "reference": policies[0], "other": policies[1]}
    if "nonfinite" in facts:
        numbers = [*a.state.values(), a.values, *a.initial.values(), *a.params.values()]
        finite = [np.isfinite(np.broadcast_to(x, (number, *np.shape(x)[1:]))) for x in numbers]
        checked["nonfinite"] = checked["missing"] = int(sum(not all(x[i].all() for x in finite) for i in range(number)))
    name = facts.get("input")
    if name:
        kind = "initial" if name in a.initial else "params"
        g, h = (np.asarray(getattr(r, kind)[name], np.float64) for r in runs)
        checked |= {
            "zero": round(b.zero_share[name] * number),
            "reference_zero": round(a.zero_share[name] * number),
            "input": name,
            "largest": np.abs(h - g).max(),
        }
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.linalg.norm(h - g) / np.linalg.norm(g) if (h != g).any() else 0.0
        if not np.isfinite(h - g).all():
            relative = np.nan
        if "relative" in facts:
            assert facts.pop("relative") == pytest.approx(relative, rel=1e-12, nan_ok=True)
    if "absorbed" in facts:
        state = facts["state"]
        checked |= {
            "state": state,
            "absorbed": b.absorption[state].absorbed / b.absorption[state].additions,
            "reference_absorbed": a.absorption[state].absorbed / a.absorption[state].additions,
        }
    if "step" in facts:
        # The prefix of `step` steps agrees in all instances, one more does not in this one.
        step, i = facts["step"], facts["instance"]
        short = {**arguments, "steps": step}
        if step:
            before = [client.rollout(world, **short, policy=p).path_signatures for p in policies]
            assert (before[0] == before[1]).all()
        short["steps"] = step + 1
        after = [client.rollout(world, **short, policy=p) for p in policies]
        differs = after[0].path_signatures != after[1].path_signatures
        assert np.flatnonzero(differs)[0] == i
        one = {**short, "initial": {n: x[i : i + 1] if np.shape(x)[:1] == (number,) else x for n, x in short["initial"].items()}}
        alone = [client.rollout(world, **one, policy=p, first_instance=i, instances=1) for p in policies]
        traces = [{**r.sites, **r.events}[facts["site"]] for r in alone]
        checked |= {
            "step": step,
            "instance": i,
            "site": facts["site"],
            "reference_margin_ulps": traces[0].margin_ulps[step],
            "margin_ulps": traces[1].margin_ulps[step],
        }
        if "iterations" in facts:
            checked |= {"reference_iterations": traces[0].iterations_max[step], "iterations": traces[1].iterations_max[step]}
            assert traces[0].iterations_max[step] != traces[1].iterations_max[step]
        else:
            checked |= {"reference_held": traces[0].count[step], "held": traces[1].count[step]}
            assert traces[0].count[step] != traces[1].count[step]
    checked["line"] = facts.get("line", "")  # a label: the name of the site says the same
    np.testing.assert_equal(facts, {key: checked[key] for key in facts}, sentence.text)
    for said, key in (
        (r"zero in (\d+) of (\d+)", ("zero", "of")),
        (r"leaves the path of \S+ in (\d+) of (\d+)", ("parted", "of")),
        (r"at step (\d+)", ("step",)),
        (r"first in instance (\d+)", ("instance",)),
    ):
        found = re.search(said, sentence.text)
        if found:
            assert [int(x) for x in found.groups()] == [facts[k] for k in key], sentence.text


@pytest.mark.parametrize("work", [depressurized, bounced])
def test_every_sentence_states_what_the_answers_hold(client, work):
    result = work(client)
    world = PROJECTION if work is depressurized else BALL
    arguments = (
        dict(steps=4, initial={"y": np.tile(START, (6, 1))}, params={"k": 0.5}, objective="final_penetration")
        if work is depressurized
        else dict(
            steps=120,
            initial={"y": np.linspace(0.3, 1.0, 12)[:, None], "v": [0.0]},
            params={"restitution": 0.8},
            objective="final_height",
        )
    )
    said = 0
    for name, pair in result.pairs.items():
        for sentence in pair.sentences:
            check(client, sentence, pair, world, arguments, (result.reference, name))
            said += 1
    assert said >= 6
    assert any(pair.forks.count for pair in result.pairs.values())


@sg.world
def faint(x: sg.State, k: sg.Param = 1.0):
    return sg.where(k * x > 0.1, k * x, 0.5 * k * x)


@faint.objective
def hardly(x):
    return 1e-9 * x  # vanishes in f16


@sg.world
def drift(x: sg.State, k: sg.Param = 0.01):
    return x + k


@drift.objective
def arrived(x):
    return x


@sg.world
def doubled(x: sg.State, k: sg.Param = 2.0):
    return k * x


@doubled.objective
def square(x):
    return x * x


@sg.world
def logarithm(x: sg.State, k: sg.Param = 1.0):
    return np.log(k * x)


@logarithm.objective
def last(x):
    return x


SAID = {  # by what is said: a world, the work, reference and other, and how often that is said
    "its gradients are the same": (drift, dict(steps=3, initial={"x": [0.3]}, params={"k": 0.1}, objective="arrived"), ("f64", "f32"), 1),
    "its gradients are off by at most": (doubled, dict(steps=3, initial={"x": [0.3]}, params={"k": 2.1}, objective="square"), ("f64", "f32"), 1),
    "are absorbed: they change nothing": (drift, dict(steps=40, initial={"x": np.full(3, 4.0)}, params={"k": 0.01}, objective="arrived"), ("f32", "bf16_unsafe"), 1),
    "equals that in f64": (doubled, dict(steps=3, initial={"x": [0.5, 2.0]}, params={"k": 2.0}, objective="square"), ("f64", "f32"), 2),
    "is not finite in f16_unsafe": (doubled, dict(steps=3, initial={"x": [0.5, 300.0]}, params={"k": 2.0}, objective="square"), ("f64", "f16_unsafe"), 2),
    "f16_unsafe is not finite in 2 of 3 instances where f64 is, first in instance 2 at step 2: an overflow of `mul` in f16 (compare_test.py:": (
        doubled, dict(steps=3, initial={"x": [0.5, 7e3, 1e4]}, params={"k": 2.0}, objective="square"), ("f64", "f16_unsafe"), 1),
    "where that in f16_unsafe is zero": (faint, dict(steps=1, initial={"x": [0.5, 0.25]}, params={"k": 1.0}, objective="hardly"), ("f16_unsafe", "f64"), 2),
    "is zero in 2 of 2 instances, although it takes the path": (faint, dict(steps=1, initial={"x": [0.5, 0.25]}, params={"k": 1.0}, objective="hardly"), ("f64", "f16_unsafe"), 2),
    "; paths part in 1 of 2 instances": (faint, dict(steps=1, initial={"x": [0.5, 0.1 + 1e-6]}, params={"k": 1.0}, objective="hardly"), ("f64", "f16_unsafe"), 2),
    "are not finite in 2 of 3 instances": (logarithm, dict(steps=2, initial={"x": [0.5, 0.25, 3.0]}, params={"k": np.ones(3)}, objective="last"), ("f64", "f32"), 1),
    "are not finite in 1 of 3 instances": (logarithm, dict(steps=2, initial={"x": [0.5, 4.0, 3.0]}, params={"k": np.ones(3)}, objective="last"), ("f64", "f32"), 1),
    "holds at step 0": (faint, dict(steps=1, initial={"x": [0.1 + 1e-6, 0.5]}, params={"k": 1.0}, objective="hardly"), ("f16_unsafe", "f64"), 1),
}  # fmt: skip


@pytest.mark.parametrize("words", SAID)
def test_each_kind_of_sentence_states_what_the_answers_hold(client, words):
    world, arguments, policies, times = SAID[words]
    pair = client.compare(world, policies=list(policies), **arguments).pairs[policies[1]]
    for sentence in pair.sentences:
        check(client, sentence, pair, world, arguments, policies)
    assert sum(words in sentence.text for sentence in pair.sentences) >= times, pair.sentences


def test_a_path_that_parts_in_one_instance_is_not_why_all_gradients_are_zero(client):
    x = [0.5, 0.1 + 1e-6, 0.25, 0.75]  # the second is above the threshold, but in f16 on it
    result = client.compare(faint, steps=1, initial={"x": x}, params={"k": 1.0}, objective="hardly", policies=["f64", "f16_unsafe"])
    by_x, by_k, paths = result.pairs["f16_unsafe"].sentences
    for name, said in (("x", by_x), ("k", by_k)):
        assert said.text == f"In f16_unsafe the gradient of `{name}` is zero in 4 of 4 instances; paths part in 1 of 4 instances."
    assert "leaves the path of f64 in 1 of 4 instances, first in instance 1: the test" in paths.text
    assert not any(unbacked(said) for said in (by_x, by_k, paths))


@sg.world
def beside(y: sg.State, z: sg.State, k: sg.Param = 1.0):
    return {"y": 0.5 * y + k, "z": 10.0 * z}


@beside.objective
def halved(y):
    return y


def test_states_that_only_the_other_run_loses_are_told_first_where_most_do(client):
    """z is beyond f16 in step 4 from 1, and in step 5 from 0.1; no gradient depends on it."""
    work = dict(steps=6, initial={"y": np.ones(3), "z": [0.1, 1.0, 1e-3]}, objective="halved", policies=["f64", "f16_unsafe"])
    compared = client.compare(beside, **work)
    [pair] = compared.pairs.values()
    new = pair.newly_nonfinite
    [fields] = json.loads(json.dumps(report.comparison_dict(compared)))["pairs"].values()
    assert fields["nonfinite"] == 0 and fields["newly_nonfinite"] == {
        "instances": [0, 1],
        "ends": [0, 1],
        "first": {"instance": 1, "phase": "forward", "step": 4, "stopped": False},
        "birth": str(new.birth),
    }
    assert new.instances.tolist() == new.ends.tolist() == [True, True, False]
    assert (new.first.instance, new.first.step, new.birth.operation) == (1, 4, "mul")
    assert pair.why.startswith("f16_unsafe is not finite in 2 of 3 instances where f64 is, first in instance 1 at step 4: an overflow of `mul` in f16 (")
    assert not unbacked(pair.sentences[0])
    # Ids are those of the caller, and instances count from 0.
    [pair] = client.compare(beside, **work, instance_ids=[7, 3, 5], gradient=False).pairs.values()
    assert (pair.newly_nonfinite.first.instance, pair.newly_nonfinite.birth.instance_id) == (1, 3)
    # A policy that stops them says so itself; and the other way round there is nothing to say.
    stops = {**work, "policies": ["f64", sg.Policy("f16_unsafe").nonfinite("stop")]}
    [pair] = client.compare(beside, **stops).pairs.values()
    assert not pair.newly_nonfinite.instances.any() and "stops in 2 of 3 instances" in str(pair)
    assert pair.newly_nonfinite.first is pair.newly_nonfinite.birth is None
    [pair] = client.compare(beside, **{**work, "policies": ["f16_unsafe", "f64"]}).pairs.values()
    assert not pair.newly_nonfinite.instances.any() and "f16_unsafe is" not in str(pair)


def test_a_birth_in_the_reverse_pass_alone_is_the_earliest_of_it(client):
    """The derivative of the root is infinite where x is 0, in each step: the reverse pass comes by the last one first."""

    @sg.world
    def rooted(x: sg.State, y: sg.State, k: sg.Param = 1.0):
        return {"x": x, "y": y + np.sqrt(k * x)}

    @rooted.objective
    def end(y):
        return y

    work = dict(steps=4, initial={"x": [1.0, 1e-9], "y": [0.0, 0.0]}, objective="end")
    [pair] = client.compare(rooted, policies=["f64", "f16_unsafe"], **work).pairs.values()
    [said] = [s for s in pair.sentences if "newly_nonfinite" in s.facts]
    assert "is not finite in 1 of 2 instances where f64 is, first in instance 1 at step 3 of the reverse pass: " in said.text
    assert said.facts["missing"] == 0 and not unbacked(said)


def test_differences_and_histories_are_those_of_the_answers(client):
    result = depressurized(client)
    pair = result.pairs["bf16_unsafe"]
    f32, unsafe = result.results["f32"], result.results["bf16_unsafe"]
    assert pair.iterations["projection"][0].tolist() == [1, 0, 0, 0] and not pair.iterations["projection"][1].any()
    assert pair.states["y"].largest == np.abs(f32.state["y"] - unsafe.state["y"]).max()
    assert pair.value == (f32.value, unsafe.value)
    k = pair.gradients["k"]
    assert k.relative == 1 and k.connected == (6, 0) and k.gated_by == ("", "projection") and k.zero == (0, 6)
    fork = pair.forks.first
    assert (fork.kind, fork.reference.iterations, fork.other.iterations) == ("loop", 1, 0)
    assert fork.other.margin == -(2.0**-17) and fork.other.margin_ulps == -1 and fork.other.checks == 1
    assert pair.forks.sites() == {"projection": 6} and pair.forks.step.tolist() == [0] * 6


def test_orders_configurations_and_worlds_are_variants_too(client):
    half = sg.World("boundary_projection", elements=9, tol=TOLERANCE / 2)
    result = depressurized(
        client, policies=["f32"], orders=["reversed"], configs=[{"tol": 1e-3}, {"max_iter": 25, "steps": 8}], worlds={"half": half}
    )
    assert list(result.pairs) == ["f32 reversed", "f32 tol=0.001", "f32 max_iter=25, steps=8", "half"]
    assert result.pairs["f32 reversed"].forks.count == 0
    assert "the loop `projection` stops at step 0" in result.pairs["f32 tol=0.001"].why
    longer = result.pairs["f32 max_iter=25, steps=8"]
    assert longer.forks is None and result.results[longer.other].steps == 8 and longer.why
    assert (result.pairs["half"].iterations["projection"][1] >= longer.reference_result.sites["projection"].iterations_mean).all()


def test_rollouts_are_compared_without_gradients(client):
    result = client.compare(
        BALL, steps=120, initial={"y": np.linspace(0.3, 1.0, 12)[:, None], "v": [0.0]}, policies=["f64", "bf16_unsafe"], gradient=False
    )
    assert not isinstance(result.results["f64"], sg.Gradient) and not result.pairs["bf16_unsafe"].gradients
    assert "leaves the path of f64" in result.why
    assert result.pairs["bf16_unsafe"].value is None


def test_worlds_without_tests_are_told_apart_by_their_states(client):
    """What is said where there are neither gradients nor paths that part."""
    b = ProgramBuilder("halved")
    b.next(x=b.state("x") * 0.7)
    world = sg.World(program=b)
    pair = client.compare(world, steps=3, initial={"x": [1.0, 2.0]}, policies=["f64", "f32"], gradient=False).pairs["f32"]
    a, c = (client.rollout(world, steps=3, initial={"x": [1.0, 2.0]}, policy=p).state["x"] for p in ("f64", "f32"))
    assert pair.states["x"].largest == np.abs(a - c).max() > 0
    assert pair.why == "f32 takes the path of f64 in 2 of 2 instances."
    off = pair.sentences[1]
    assert off.facts["largest"] == pair.states["x"].largest and f"final state `x` is off that in f64 by {off.facts['largest']:.3g} at most" in off.text
    longer = client.compare(world, steps=3, initial={"x": [1.0, 2.0]}, policies=["f64"], worlds={"same": world}, gradient=False)
    assert longer.pairs["same"].sentences[-1].text == "same ends in the states of f64."


@sg.world
def driven(x: sg.State, push: sg.Control = 0.0, drift: sg.Data = 0.0, k: sg.Param = 1.0):
    move = k * push + drift
    below = sg.test("floor", x + move < 0)
    return sg.where(below, -0.5 * x, x + move)


@driven.objective
def last(x):
    return x


def test_inputs_that_differ_by_step_are_cut_with_the_steps(client):
    """Runs up to a fork are given the controls and data of those steps alone."""
    # x = 4 - t/8, exact in all formats; the move at t = 31 goes 2^-12 past zero, which bf16 does not see.
    push = np.full((3, 40), -0.125)
    drift = np.zeros(40)
    drift[31] = -(2.0**-12)
    result = client.compare(
        driven, steps=40, initial={"x": [4.0, 5.0, 3.0]}, params={"k": 1.0}, controls={"push": push}, data={"drift": sg.PerStep(drift)},
        objective="last", policies=["f64", "bf16_unsafe"],
    )
    fork = result.pairs["bf16_unsafe"].forks.first
    assert (fork.site, fork.step, fork.instance) == ("floor", 31, 0)
    assert (fork.reference.held, fork.other.held) == (1, 0) and fork.reference.margin == -(2.0**-12)
    assert "the test `floor` (" in result.why and "compare_test.py:" in result.why


class Nested(sg.World):
    """A world that takes and gives its arrays in a form of its own, as those of simgrad.jax do."""

    def named(self, kind, given):
        return {name: inner["value"] for name, inner in (given or {}).items()}

    def shaped(self, result):
        result.state = {name: {"value": array} for name, array in result.state.items()}


def test_worlds_with_a_form_of_their_own_are_compared_by_name(client):
    nested = Nested(program=driven.program)
    work = dict(steps=4, params={"k": {"value": 1.0}}, objective="last", controls={"push": {"value": np.array([0.1, 0.2])}})
    result = client.compare(nested, initial={"x": {"value": np.array([4.0, 5.0])}}, policies=["f64", "f32"], **work)
    assert result.results["f64"].state["x"].shape == (2,) and set(result.pairs["f32"].states) == {"x"}
    assert result.pairs["f32"].gradients["k"].relative < 1e-6


class Pathless(OneByOne):
    """A client of a server that knows of no paths, nor of Compare."""

    def rollout(self, *arguments, path=False, **more):
        self._refuse(path)
        return super().rollout(*arguments, **more)

    def gradient(self, *arguments, path=False, **more):
        self._refuse(path)
        return super().gradient(*arguments, **more)

    def _refuse(self, path):
        if path is not False:
            problem = "has unknown field 18, which simgrad.v1.RolloutSpec of this server does not have"
            raise sg.InvalidArgument(f"spec: {problem}", violations=(sg.FieldViolation("spec", problem),))


@pytest.mark.parametrize("work", [depressurized, bounced])
def test_without_paths_the_earliest_fork_is_found_by_signatures(client, server, work):
    with Pathless(server.target) as old:
        found, known = work(old), work(client)
        for name, pair in found.pairs.items():
            mine, theirs = pair.forks, known.pairs[name].forks
            assert (mine.parted == theirs.parted).all()
            if theirs.count:
                key = lambda fork: (fork.instance, fork.step, fork.site, fork.other.margin_ulps)
                assert key(mine.first) == key(theirs.first)
                assert (mine.located == (theirs.step == theirs.first.step)).all() or mine.located.all()
                assert (mine.step[mine.located] == theirs.step[mine.located]).all()
        with pytest.raises(sg.Unimplemented, match="has unknown field 18"):
            work(old, split=True)


def test_a_path_that_is_refused_is_done_without(client):
    """What a terminal cost decides is in no path."""
    work = dict(ENDED, policies=["f64", "bf16_unsafe"])
    result = client.compare(ended, **work)
    assert result.pairs["bf16_unsafe"].forks.unrecorded is None
    assert result.pairs["bf16_unsafe"].why.startswith(
        "bf16_unsafe leaves the path of f64 in 1 of 2 instances, first in instance 0: the test `floor` (ended_world.py:"
    )
    assert result.pairs["bf16_unsafe"].forks.first.step == 7
    assert "does not hold at step 7 by a margin of 0 ulps, where that of f64 does." in result.why
    with pytest.raises(sg.Unimplemented, match="decides by reals in the terminal cost"):
        client.compare(ended, **work, split=True)


def test_calls_are_those_of_the_variants_and_of_the_first_fork(client):
    with OneByOne(client.target) as old:
        for asked, runs in ((client, 1), (old, 2)):
            assert depressurized(asked, policies=["f32", "bf16_safe"]).calls == runs
            # The instance that parts runs again in both, and f32, which has two tests there, once along the other's path.
            assert depressurized(asked, policies=["f32", "bf16_unsafe"]).calls == runs + 2 + 1
            assert depressurized(asked, policies=["f32", "bf16_unsafe"], split=True).calls == runs + 2 + 1 + 2


def test_a_comparison_repeats_to_the_bit_and_so_does_its_report(client):
    first, second = bounced(client), bounced(client)
    assert repr(first) == repr(second) and first.html() == second.html()


def test_progress_is_told_over_all_calls_and_ends_at_the_total(client):
    told = []
    depressurized(client, progress=lambda *step: told.append(step))
    assert {phase for phase, _, _ in told} == {"compare"}
    done = [d for _, d, _ in told]
    assert done == sorted(done) and told[-1][1] == told[-1][2] >= 3 * 4 * 2


def test_who_raises_in_progress_ends_the_comparison_and_the_client_goes_on(client):
    class Enough(Exception):
        pass

    class Bar:
        closed = 0

        def __call__(self, phase, done, total):
            if done > 8:
                raise Enough

        def close(self):
            self.closed += 1

    bar = Bar()
    with pytest.raises(Enough):
        depressurized(client, progress=bar)
    assert bar.closed == 1
    assert depressurized(client).calls


class HundredSecondsALook(Clock):
    """A clock that goes on by a hundred seconds whenever it is read."""

    def __init__(self):
        super().__init__()
        self._now = 0.0

    def now(self):
        self._now += 100
        return self._now


def test_a_deadline_is_that_of_all_calls_together(client, monkeypatch):
    granted = []

    class Noting(OneByOne):
        def gradient(self, *arguments, timeout, **more):
            granted.append(timeout)
            return super().gradient(*arguments, timeout=timeout, **more)

    monkeypatch.setattr(work, "Clock", HundredSecondsALook)
    with Noting(client.target) as old:
        with pytest.raises(sg.DeadlineExceeded, match="deadline of 450 s passed after 2 calls"):
            bounced(old, timeout=450)  # the first looks are for the text of the world, and what the server takes
    assert granted == [150, 50]


def test_a_call_of_a_comparison_ends_at_its_deadline(client):
    with pytest.raises(sg.DeadlineExceeded):
        bounced(client, steps=1_000_000, timeout=0.3)


def test_a_timeout_is_positive(client):
    with pytest.raises(ValueError, match="timeout -1"):
        bounced(client, timeout=-1)


def test_bad_arguments_are_refused_by_name(client):
    with pytest.raises(ValueError, match="split=True .* needs gradient=True"):
        depressurized(client, split=True, gradient=False)
    with pytest.raises(TypeError, match="no option colour"):
        depressurized(client, colour="red")
    with pytest.raises(TypeError, match="policy differs between the runs"):
        depressurized(client, policy="f32")
    with pytest.raises(TypeError, match="diagnostics differs between the runs"):
        depressurized(client, diagnostics="off")
    with pytest.raises(TypeError, match="wrt is of gradients"):
        depressurized(client, wrt=["k"], gradient=False)
    with pytest.raises(sg.InvalidArgument, match="bf17"):
        depressurized(client, policies=["f32", "bf17"])


# ---- The command line and the report ----

ARGUMENTS = [
    *("boundary_projection", "--config", "elements=9", "--config", "tol=0x1.06p-10", "--steps", "4"),
    *("--initial", "y=-0x1.04p-10" + 8 * ",-0x1p-20", "--param", "k=0.5", "--objective", "final_penetration"),
]


def run(capsys, server, *arguments):
    code = command_line.main(["compare", *ARGUMENTS, *arguments, "--target", server.target])
    return code, capsys.readouterr()


def test_the_command_line_says_why(capsys, server, tmp_path):
    file = tmp_path / "report.html"
    code, told = run(capsys, server, "--policies", "f32,bf16_unsafe", "--html", str(file))
    assert code == 0 and "stops at step 0 by a margin of -1 ulp, where f32 goes on." in told.out
    assert "stops at step 0 by a margin of -1 ulp" in file.read_text()
    code, told = run(capsys, server, "--policies", "f32,bf16_unsafe", "--variant", "tol=1e-3", "--orders", "reversed", "--json")
    fields = json.loads(told.out)
    assert list(fields["pairs"]) == ["bf16_unsafe", "f32 reversed", "f32 tol=0.001"] and code == 0
    assert fields["pairs"]["bf16_unsafe"]["forks"]["first"]["other"]["margin_ulps"] == -1
    assert fields["pairs"]["bf16_unsafe"]["sentences"][0]["facts"]["zero"] == 1
    assert fields["results"]["f32"]["gradients"]["params"]["k"] != 0


def test_wrong_usage_of_the_command_is_told(capsys, server):
    for arguments, told in (
        (("--policies", "f32,"), "--policies f32,: names, separated by commas"),
        (("--policies", "f32"), "there is one variant"),
        (("--variant", "steps=2.5"), "steps is a whole number"),
        (("--no-gradient", "--wrt", "k"), "--wrt is of gradients"),
    ):
        code, printed = run(capsys, server, *arguments)
        assert code == command_line.EXIT_USAGE and told in printed.err


def browser():
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium: scripts/setup --with-browser")
    return found


def test_the_report_fetches_nothing(client):
    text = bounced(client).html()
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|https?://(?!www\.w3\.org/2000/svg)", text)


def rows_of(section, table):
    """The cells of a table of the report."""
    body = re.search(rf'<table data-table="{table}">.*?<tbody>(.*?)</tbody>', section)[1]
    return [[html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", row)] for row in re.findall(r"<tr>(.*?)</tr>", body)]


@pytest.mark.parametrize("work", [depressurized, bounced])
def test_the_lines_and_tables_of_the_report_are_the_answers(client, work):
    result = work(client)
    page = result.html()

    def said(pattern, text):
        return [html.unescape(re.sub("</?code>", "`", found)) for found in re.findall(pattern, text)]

    assert said('<p class="why">(.*?)</p>', page) == [pair.why for pair in result.pairs.values()]
    for name, pair in result.pairs.items():
        section = page.partition(f'<section data-pair="{name}">')[2].partition("</section>")[0]
        assert said("<li>(.*?)</li>", section) == [sentence.text for sentence in pair.sentences]
        a, b = result.results[result.reference], result.results[name]
        parted = int((a.path_signatures != b.path_signatures).sum())
        heads = re.findall(r"Where paths part: (\d+) of (\d+) instances|(No paths part)", section)
        assert heads == [("", "", "No paths part") if not parted else (str(parted), str(a.instances), "")]
        traces = [{**run.sites, **run.events} for run in (a, b)]
        told = {site: (line, int(count), *margins) for site, line, count, *margins in rows_of(section, "sites")}
        assert sum(count for _, count, *_ in told.values()) == parted and set(told) == set(traces[0])
        for site, (_, _, *margins) in told.items():
            for trace, text in zip(traces, margins):
                ulps = trace[site].margin_ulps
                step = int(np.abs(ulps).argmin())
                nearest = f"{ulps[step]:.4g} ulp{'' if abs(ulps[step]) == 1 else 's'} at step {step}"
                assert text == (nearest if np.isfinite(ulps[step]) else "")
        differences = {what: cells for what, *cells in rows_of(section, "differences")}
        for what, mine, theirs in (
            *((f"state {n}", a.state[n], b.state[n]) for n in a.state),
            *((f"gradient of {n}", a.initial[n], b.initial[n]) for n in a.initial),
            *((f"gradient of {n}", a.params[n], b.params[n]) for n in a.params),
        ):
            off = np.abs(np.asarray(theirs, np.float64) - mine)
            relative = np.linalg.norm(off) / np.linalg.norm(mine) if off.any() else 0.0
            assert differences[what][0] == f"{off.max():.4g}"
            assert float(differences[what][1]) == pytest.approx(relative, rel=1e-3)


def test_a_browser_draws_the_report(client, tmp_path):
    program = browser()
    result = bounced(client)
    (tmp_path / "report.html").write_text(result.html())
    common = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    page = f"file://{tmp_path / 'report.html'}"
    picture = tmp_path / "report.png"
    drawing = [*common, "--window-size=1000,3000", f"--screenshot={picture}", "--dump-dom", page]
    dumped = subprocess.run(drawing, capture_output=True, text=True, timeout=120).stdout
    pair = result.pairs["bf16_unsafe"]
    section = dumped.partition('<section data-pair="bf16_unsafe">')[2].partition("</section>")[0]
    bars = re.findall(r'<rect data-series="([^"]+)" data-step="(\d+)" data-last-step="\d+" data-count="(\d+)"', section)
    forks = pair.forks
    expected = {(s, t) for s, t, here in zip(forks.site, forks.step, forks.located) if here}
    assert {(s, int(t)) for s, t, _ in bars} == expected
    assert sum(int(n) for *_, n in bars) == np.count_nonzero(forks.located)
    assert "</i>?<" not in section  # every fork has a site
    for figure in ("forks", "events", "margins", "gradients"):
        assert f'data-figure="{figure}"' in section
    assert "leaves the path of f64" in section and 'data-table="sites"' in section
    pixels = pytest.importorskip("matplotlib.image").imread(picture)[..., :3]
    # The bars of gradients: a blue of which a line of text has no such area.
    blue = np.abs(pixels - np.array([0x00, 0x72, 0xB2]) / 255).max(axis=2) < 0.01
    assert np.count_nonzero(blue) > 3000


@sg.world
def several(x: sg.State[2], c: sg.Config = 1.0):
    """Two solves in a step: the first ends early, the second late."""

    def run(total, start):
        y = sg.while_loop(lambda y: y * 0.5, start, until=lambda y: y < 0.3, max_iter=30, site="halve")
        return total + y, y

    _, ends = sg.scan(run, 0.0 * x[0], np.stack([x[0] * c, x[1] / c**3]))
    return x + 0 * ends


@several.objective
def both(x):
    return np.sum(x)


@sg.world
def again(x: sg.State, c: sg.Config = 1.0):
    def body(i, y):
        over = sg.test("up", y > c)
        return sg.where(over, sg.where(y < 1.03, y - 5.0, y - 0.01), y + 0.2)

    return sg.for_loop(5, body, x)


@again.objective
def square(x):
    return x * x


@sg.world
def largest(x: sg.State[3], c: sg.Config = 0.0):
    return x.at[np.argmax(x + c * np.array([1.0, 0, 0]))].add(-1.0)


@largest.objective
def length(x):
    return np.sum(x * x)


@pytest.mark.parametrize(
    "world, config, start, kind, words, decided",
    [
        # The first solve goes on from 2 turns to 3, the second stops after 9 instead of 12.
        (several, 2.0, [[1.0, 1000.0]], "loop", r"the loop `halve` \(.*\) goes on at step 0", (2, 3)),
        # True once, then false four times; false once, then true four times.
        (again, 1.05, [1.02], "test", r"the test `up` \(.*\) does not hold at step 0", (1, 0)),
        (largest, -1.0, [[1.0, 0.5, 0.2]], "choice", r"the choice `argmax` \(.*\) takes 1 at step 0", (0, 1)),
    ],
)
def test_a_fork_is_of_the_decision_that_parts_and_not_of_its_step(
    client, world, config, start, kind, words, decided
):
    result = client.compare(
        world,
        policies=["f64"],
        configs=[{"c": config}],
        steps=1,
        initial={"x": start},
        objective={"several": "both", "again": "square", "largest": "length"}[world.program.name],
    )
    [pair] = result.pairs.values()
    fork = pair.forks.first
    told = {"loop": "iterations", "test": "held", "choice": "chosen"}[kind]
    assert fork.kind == kind and re.search(words, str(result.why))
    assert (getattr(fork.reference, told), getattr(fork.other, told)) == decided
    worlds = [world, world(c=config)]
    paths = [client.rollout(w, steps=1, initial={"x": start}, policy="f64", path=True).path for w in worlds]
    columns = [path[fork.site][0, 0][fork.index] for path in paths]
    assert tuple(int(c) for c in columns) == decided
    facts = [s.facts for s in pair.sentences if told in s.facts][0]
    assert (facts[f"reference_{told}"], facts[told]) == decided


def test_a_fork_found_by_signatures_says_only_what_a_step_tells(client):
    """Another cap is another structure of paths."""

    def asked(cap):
        @sg.world
        def solved(x: sg.State[2]):
            def run(total, start):
                y = sg.while_loop(lambda y: y * 0.5, start, until=lambda y: y < 0.3, max_iter=cap, site="halve")
                return total + y, y

            return x + 0 * sg.scan(run, 0.0 * x[0], x)[1]

        return solved

    result = client.compare(
        asked(30), policies=["f64"], worlds={"capped": asked(5)}, gradient=False, steps=1, initial={"x": [[1.0, 1000.0]]}
    )
    [pair] = result.pairs.values()
    fork = pair.forks.first
    assert fork.site == "halve" and fork.reference.iterations == fork.other.iterations == -1
    assert "the loop `halve`" in str(result.why) and "decides otherwise at step 0" in str(result.why)


@pytest.mark.parametrize("length", [2, 3, 4])
def test_a_shared_gradient_is_one_of_each_instance_whatever_its_length(client, length):
    @sg.world
    def rooted(x: sg.State, k: sg.Param[length] = 0.0):
        return x + np.sqrt(k[0]) + np.sum(k[1:])

    @rooted.objective
    def end(x):
        return x

    work = dict(steps=1, initial={"x": [1.0, 2.0, 3.0]}, params={"k": np.arange(float(length))}, objective="end")
    result = client.compare(rooted, policies=["f64", "f32"], **work)
    assert result.pairs["f32"].nonfinite == 3
    with pytest.raises(ValueError, match="2 of 2 instances have states, values or gradients that are not finite: there is nothing to keep$"):
        client.tune(rooted, bound=0.1, **work)


def test_variants_of_other_lengths_have_a_report(client):
    result = depressurized(client, policies=["f32"], configs=[{"steps": 2, "tol": 1e-3}, {"steps": 9}])
    page = result.html()
    assert page.count("Paths are not compared") == 2


def test_a_legend_names_sites_whatever_a_variant_is_called(client):
    page = depressurized(client, policies=["f32"], configs=[{"max_iter": 7, "tol": 1e-4}]).html()
    keys = re.findall(r'<span class="key"><i style="[^"]*"></i>(.*?)</span>', page)
    assert set(keys) == {"projection", "contact", "unknown site"}, keys


def test_where_nothing_differs_no_error_is_divided(client):
    result = depressurized(client, policies={"a": "f32", "b": "f32"}, split=True)
    texts = [s.text for s in result.pairs["b"].sentences]
    assert any("equals that in a" in text for text in texts)
    assert not any("error" in text for text in texts), texts


def test_a_batch_of_no_instances_is_refused(client):
    for call in (client.compare, client.sensitivity):
        with pytest.raises(ValueError, match="a batch has at least one instance"):
            call(sg.World("boundary_projection", elements=9), steps=2, initial={"y": np.zeros((0, 9))}, params={"k": 0.5},
                 objective="final_penetration")
