"""What a comparison names as the cause: the site that parts first also without a path, and what is no rounding."""

import re

import numpy as np
import pytest

import simgrad as sg


@sg.world
def behind(x: sg.State, y: sg.State, k: sg.Param = 0.1):
    below = sg.test("floor", x < 0.8)  # f32 and f64 differ here, and the loop turns otherwise for it
    y = np.where(below, 9.0, 1.5)
    y = sg.while_loop(lambda y: 0.5 * (y + 2.0 / y), y, until=lambda y: abs(y * y - 2.0) < 1e-3, max_iter=20, site="newton")
    return {"x": x + k, "y": y}


@behind.objective
def deciding(x, y):
    return np.where(x > 0.25, x, 2 * x) * y


def test_the_site_of_a_fork_is_the_first_also_where_a_cost_leaves_no_path(client):
    result = client.compare(
        behind, objective="deciding", policies=["f64", "f32"], steps=12, initial={"x": [0.0, -0.1], "y": [1.0, 1.0]}, params={"k": 0.1}
    )
    pair = result.pairs["f32"]
    first = pair.forks.first
    assert (first.site, first.step, first.kind) == ("floor", 8, "test") and "`floor`" in pair.why
    assert pair.forks.site[first.instance] == "floor" and "newton" not in pair.forks.site


@sg.world
def hides(x: sg.State, k: sg.Param = 1.0, d: sg.Data = 0.0, e: sg.Data = 0.0):
    v, _ = sg.while_loop(lambda v, i: (k * d, i + 1.0), (9.0 + 0.0 * x, 0.0 * x), until=lambda v, i: v < 0.3, max_iter=1, site="cap")
    return {"x": x + v + np.where(sg.test("step", k * e < 0.7), 0.5, 0.0)}


def test_what_an_instance_hides_from_its_path_is_found_beside_one_that_parts(client):
    """In f32 a loop ends at its cap where it converges in f64: the reason, which no path has."""
    steps = 40
    d, e = np.full((2, steps), 0.6), np.full((2, steps), 0.9)
    d[0, 2] = d[1, 5] = 0.3 - 1e-9
    e[0, 30] = 0.7 - 1e-9  # the first parts here by its path, and at step 2 by its reason
    work = dict(steps=steps, params={"k": 1.0}, gradient=False, policies=["f64", "f32"])
    both = client.compare(hides, initial={"x": [0.0, 0.0]}, data={"d": d, "e": e}, **work).pairs["f32"].forks
    alone = client.compare(hides, initial={"x": [0.0]}, data={"d": d[1:], "e": e[1:]}, **work).pairs["f32"].forks
    assert alone.step.tolist() == [5] and both.step.tolist() == [30, 5]
    assert both.located.all() and (both.first.instance, both.first.step, both.first.site) == (1, 5, "cap")


@sg.world
def spring(x: sg.State, v: sg.State, k: sg.Param = 2.0, h: sg.Config = 0.1):
    v = v - h * k * x
    return {"x": x + h * v, "v": v}


@spring.objective
def end(x):
    return x


@pytest.mark.parametrize("how", [dict(configs=[{"h": 0.05}]), dict(worlds={"half": spring(h=0.05)})])
def test_the_effect_of_another_world_is_not_called_rounding(client, how):
    result = client.compare(
        spring, policies=["f64"], steps=20, initial={"x": [0.2, 0.25], "v": [0.0, 0.0]}, objective="end", split=True, **how
    )
    [(name, pair)] = result.pairs.items()
    assert pair.is_of_other_world
    assert f"The error of the gradient of `v` is what {name} computes otherwise alone." in [s.text for s in pair.sentences]
    assert not [s for s in pair.sentences if "rounding" in s.text]
    assert "computed otherwise" in result.html() and ">rounding<" not in result.html()
    rounded = client.compare(spring, policies=["f64", "f32"], steps=20, initial={"x": [0.2], "v": [0.0]}, objective="end", split=True)
    assert not rounded.pairs["f32"].is_of_other_world and ">rounding<" in rounded.html()


@sg.world
def never(x: sg.State, k: sg.Param = 2.0):
    return {"x": np.where(sg.test("grow", x < 0.5), 1e6 * x + 0.01, k * x)}  # x starts at 1 and rises


@never.objective
def last(x):
    return x


def test_absorbed_additions_explain_nothing_where_nothing_differs(client):
    result = client.compare(
        never, policies=["f64", "f32"], steps=20, initial={"x": [1.0, 1.5]}, params={"k": 2.0}, objective="last", stride=1
    )
    pair = result.pairs["f32"]
    assert pair.absorption["x"][1] == 1.0 and pair.gradients["k"].largest == 0
    assert pair.why == "f32 takes the path of f64 in 2 of 2 instances, and its gradients are the same."


@sg.world
def without_k(x: sg.State, u: sg.Control = 0.0):
    return x + u


def test_an_error_of_a_variants_inputs_begins_with_its_name(client):
    @sg.world
    def pushed(x: sg.State, k: sg.Param = 0.1, u: sg.Control = 0.0):
        return x + k * u

    work = dict(steps=10, initial={"x": [1.0]}, params={"k": 1.0}, controls={"u": sg.PerStep(np.ones(10))}, gradient=False)
    with pytest.raises(sg.InvalidArgument, match=r"^f64 steps=5: spec\.controls\[0\]"):
        client.compare(pushed, policies=["f64", "f32"], configs=[{"steps": 5}], **work)
    with pytest.raises(sg.InvalidArgument, match=r"^simple: spec\.params\[0\]\.name: .*unknown param 'k'"):
        client.compare(pushed, policies=["f64"], worlds={"simple": without_k}, **work)


def test_runs_that_answer_a_question_are_not_kept(client, monkeypatch):
    kept, plain = [], client.rollout

    def rollout(*arguments, **options):
        result = plain(*arguments, **options)
        kept.append((result, options.get("keep", False)))
        return result

    monkeypatch.setattr(client, "rollout", rollout)
    result = client.compare(
        behind, policies=["f64", "f32"], steps=12, initial={"x": [0.0], "y": [1.0]}, params={"k": 0.1}, gradient=False, keep=True
    )
    ours = list(result.results.values())
    assert len(kept) > len(ours)
    for run, is_kept in kept:
        assert bool(is_kept) == any(run is one for one in ours)


def test_configurations_that_agree_to_six_digits_have_names_of_their_own(client):
    result = client.compare(
        spring, policies=["f64"], configs=[{"h": 0.1000001}, {"h": 0.1000002}], steps=2, initial={"x": [0.2], "v": [0.0]}, gradient=False
    )
    assert [*result.pairs] == ["f64 h=0.1000001", "f64 h=0.1000002"]


@sg.world
def grows(x: sg.State, k: sg.Param = 10.0):
    return k * x


@grows.objective
def size(x):
    return x


def test_a_report_of_equal_infinities_says_that_they_are_equal(client):
    result = client.compare(grows, policies=["f64", "f32"], steps=400, initial={"x": [1.0, 2.0]}, params={"k": 10.0}, objective="size")
    [table] = re.findall(r'data-table="differences".*?</table>', result.html(), re.S)
    assert "<td>value</td><td>0</td>" in table and "nan" not in table
