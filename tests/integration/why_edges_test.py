"""Comparisons of worlds with defaults, of guards, of runs without paths, and of instances that do not count."""

import numpy as np
import pytest

from said import unbacked

import simgrad as sg
from simgrad.v1 import program_pb2
from simgrad.why.difference import difference
from simgrad.world import WithDefaults

RANDOM = np.random.default_rng(0)
# Rows whose sums are 0 but for rounding.
BALANCED = RANDOM.integers(-8, 8, (60, 4)) / 64.0
BALANCED[:, 3] = -BALANCED[:, :3].sum(axis=1)
BALANCED *= 1.1


def added(default):
    @sg.world
    def world(x: sg.State, k: sg.Param[2] = default):
        return x + k[0] + 0 * k[1]

    @world.objective
    def end(x):
        return x

    return world


def test_each_world_has_its_own_defaults(client):
    worlds = {"array": added(np.array([100.0, 0.5])), "number": added(7.0)}
    for reference, own in ((added(np.array([1.0, 0.5])), 2.0), (added(3.0), 4.0)):
        result = client.compare(
            reference, steps=1, initial={"x": [1.0, 1.0]}, objective="end", policies=["f64"], worlds=worlds, split=True
        )
        ends = {name: r.values.tolist() for name, r in result.results.items()}
        assert ends == {"f64": [own] * 2, "array": [101.0] * 2, "number": [8.0] * 2}


def test_a_default_that_has_steps_is_cut_with_them(client):
    @sg.world
    def pushed(x: sg.State, u: sg.Control = 0.0):
        return np.where(sg.test("far", x > 1.0), x, x + u)

    series = sg.PerStep(np.linspace(0.3, 0.4, 6))
    world = WithDefaults(pushed.to_proto(), {program_pb2.INPUT_KIND_CONTROL: {"u": series}})
    result = client.compare(world, steps=6, initial={"x": [0.3, 0.4]}, policies=["f64", "bf16_unsafe"], gradient=False)
    assert result.pairs["bf16_unsafe"].forks is not None


@sg.world
def guarded(x: sg.State, y: sg.State[4], k: sg.Param = 0.3):
    total = np.sum(y) + 0 * x
    return {"x": np.where(total > 0, x * 0.5 - 0.2 * k, x * 1.25 + 0.1 * k), "y": y * 0.99}


@guarded.objective
def square(x):
    return x**2


def test_paths_that_part_at_a_guard_are_told_though_it_has_no_trace(client):
    work = dict(steps=6, initial={"x": RANDOM.uniform(0, 1, 60), "y": BALANCED}, objective="square")
    found = client.sensitivity(guarded, policy="f32", runs=3, **work)
    assert found.parted.any() and found.differing == 3
    (row,) = found.sites
    assert row.site and row.runs == 3 and row.share == found.parted.mean() and not np.isfinite(row.margin_ulps)
    assert f"`{row.site}` is the knife edge" in found.why and not unbacked(found.sentence)
    result = client.compare(guarded, policies=["f64", "f32"], **work)
    forks = result.pairs["f32"].forks
    assert forks.sites() == {row.site: forks.count}
    assert f"<td>{row.site}</td><td></td><td>{forks.count}</td>" in result.html()


@sg.world
def inside(x: sg.State[4], k: sg.Param = 0.3):
    return np.where(sg.test("inside", np.sum(x) > 0.0), x * 0.5 - 0.11, x * 1.25 + 0.1)


@inside.objective
def bent(x):
    return np.where(np.sum(x) > 0.05, np.sum(x**2), np.sum(x))


@sg.world
def twice(x: sg.State[4], k: sg.Param = 0.3):
    x = np.where(sg.test("inside", np.sum(x) > 0.0), x * 0.5 - 0.11, x * 1.25 + 0.1)
    return np.where(sg.test("large", np.max(x) > 0.3), x * 0.5, x)


@twice.objective
def bent_too(x):
    return np.where(np.sum(x) > 0.05, np.sum(x**2), np.sum(x))


def test_without_paths_one_site_has_every_fork_and_of_several_those_not_known_are_counted(client):
    """A terminal cost that decides has no path."""
    work = dict(steps=1, initial={"x": BALANCED})
    for world, objective in ((inside, "bent"), (twice, "bent_too")):
        with pytest.raises(sg.InvalidArgument, match="spec.path"):
            client.gradient(world, **work, objective=objective, policy="f32", path=True)
    one = client.sensitivity(inside, policy="f32", runs=3, **work, objective="bent")
    assert one.sites[0].share == one.parted.mean() > 0.05
    two = client.sensitivity(twice, policy="f32", runs=3, **work, objective="bent_too")
    assert two.sites[-1].site == ""
    assert sum(s.share for s in two.sites) == pytest.approx(two.parted.mean())
    assert "at least" in two.why and "the site is not known in" in two.why and not unbacked(two.sentence)
    assert "(not known)" in two.table()


@sg.world
def bounded(x: sg.State, z: sg.State, most: sg.Config = 0.0, k: sg.Param = 1.0):
    y = x + 0.001
    sg.halt("beyond", y > 256.002 + most, error=True)
    return {"x": y, "z": z * 0.9 * k}


@bounded.objective
def energy(z):
    return z * z


def test_an_instance_that_ends_with_an_error_has_no_digit_that_is_significant(client):
    work = dict(steps=8, initial={"x": np.array([0.0, 256.0]), "z": np.ones(2)}, objective="energy")
    found = client.sensitivity(bounded(most=0.0), policy="f32", runs=2, **work)
    for digits in (found.value_digits, found.gradient_digits["z"]):
        assert digits[0] > 5 and digits[1] == 0


def test_instances_that_end_with_an_error_do_not_count_and_are_told(client):
    work = dict(steps=8, initial={"x": np.full(5, 256.0), "z": np.ones(5)}, objective="energy")
    result = client.compare(bounded(most=0.5), policies=["f64"], configs=[{"most": 0.0}], **work)
    (pair,) = result.pairs.values()
    said = [s.text for s in pair.sentences]
    assert said[0].startswith("f64 most=0 ends with an error (why_edges_test.py:")
    assert said[0].endswith("in 5 of 5 instances, and these have no gradient.")
    assert not [s for s in said if "is zero" in s or "is off" in s or "equals" in s]
    assert not [unbacked(s) for s in pair.sentences if unbacked(s)]
    with pytest.raises(ValueError, match="of 3 instances end with an error, are stopped or are left out"):
        client.tune(bounded, bound=0.0, **work)
    some = client.gradient(
        bounded, steps=3, initial={"x": [0.0, 256.0, 0.0], "z": np.ones(3)}, objective="energy", policy="f64"
    )
    assert [h.instance for h in some.halted] == [1] and some.counted == 2 and some.zero_share["x"] == 1.0


@sg.world
def fall(x: sg.State, k: sg.Param = 0.5):
    y = x + k * 0.1
    sg.halt("edge", y * 3.0 - 0.45 > 1e-12, error=True)  # by rounding, in f32 alone where x is 0.1
    return y


@fall.objective
def fallen(x):
    return x * x


FALL = dict(steps=1, params={"k": 0.5}, objective="fallen")
X = np.array([0.1, 0.05, 0.06])
WEIGHTS = np.array([1.0, 2.0, 3.0])


def relative(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.linalg.norm(b - a) / np.linalg.norm(a)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("policies", [("f64", "f32"), ("f32", "f64")])
def test_differences_are_of_the_instances_that_no_error_ended_in_either_run(client, policies, split):
    result = client.compare(fall, policies=list(policies), split=split, initial={"x": X}, weights=WEIGHTS, **FALL)
    (pair,) = result.pairs.values()
    each = np.full(2, 0.5) if split else 0.5
    alone = dict(initial={"x": X[1:]}, weights=WEIGHTS[1:], first_instance=1)
    a, b = (client.gradient(fall, **{**FALL, "params": {"k": each}}, **alone, policy=p) for p in policies)
    assert not a.halted and not b.halted and pair.left_out == 1
    for name, x, y in (("x", a.initial["x"], b.initial["x"]), ("k", a.params["k"], b.params["k"])):
        off = pair.gradients[name]
        assert off.relative == pytest.approx(relative(x, y), rel=1e-12) and 0 < off.relative < 1e-6
        assert off.largest == np.abs(np.float64(y) - x).max() and off.left_out == 1
    worst = 1 + int(np.argmax(np.abs(b.initial["x"] - np.float64(a.initial["x"]))))
    assert pair.gradients["x"].at == (worst,)
    assert pair.value == pytest.approx((a.value, b.value), rel=1e-7) and pair.values.relative == pytest.approx(relative(a.values, b.values), rel=1e-12)
    said = [s.text for s in pair.sentences]
    for name in "xk":
        size = pair.gradients[name].relative
        text = f"The gradient of `{name}` in {policies[1]} is off that in {policies[0]} by {size:.3g} of its size over 2 of 3 instances."
        assert text in said
    assert len([s for s in said if s.startswith("f32 ends with an error (") and s.endswith("in 1 of 3 instances, and these have no gradient.")]) == 1
    assert not [unbacked(s) for s in pair.sentences if unbacked(s)]
    assert "\nvalue over 2 of 3 instances  " in repr(pair) and "value over 2 of 3 instances" in result.html()
    # Beside the calls for paths, those of two forced runs, or of the sum of the run that has an instance more.
    work = {**FALL, "initial": {"x": X}, "weights": WEIGHTS}
    paths = client.compare(fall, policies=list(policies), gradient=False, **work)
    assert result.calls == paths.calls + (2 if split else 1) and paths.pairs[policies[1]].left_out == 1
    assert paths.pairs[policies[1]].value == pair.value


def test_gradients_are_clipped_by_the_norm_of_the_instances_that_are_compared(client):
    work = dict(steps=1, params={"k": np.full(3, 0.5)}, objective="fallen", clip_norm=0.01)
    (pair,) = client.compare(fall, policies=["f64", "f32"], initial={"x": X}, **work).pairs.values()
    for name in "xk":
        assert 0 < pair.gradients[name].relative < 1e-6 and pair.gradients[name].at[0] > 0


def test_an_instance_that_an_error_ends_in_one_run_has_no_part_of_an_error(client):
    """Exact arithmetic: where the test sees less of x, the first instance takes the other branch, and the last one ends."""

    @sg.world
    def gated(x: sg.State, z: sg.State, k: sg.Param = 0.5):
        small = sg.test("small", x <= 1.0)
        sg.halt("edge", small & sg.test("marked", z > 0.5), error=True)
        return {"x": sg.where(small, 0.5 * k * x, 4.0 * k * x), "z": z}

    @gated.objective
    def end(x):
        return x

    x = np.array([1 + 2.0**-12, 1.5, 0.5, 1 + 2.0**-11])
    blind = sg.Policy("f64").role("event", format="bf16")
    work = dict(steps=1, initial={"x": x, "z": [0.0, 0.0, 0.0, 1.0]}, params={"k": 0.5}, objective="end", split=True)
    for policies in ({"f64": "f64", "blind": blind}, {"blind": blind, "f64": "f64"}):
        (pair,) = client.compare(gated, policies=policies, **work).pairs.values()
        sign = 1 if pair.other == "blind" else -1
        parts = pair.split["k"]
        np.testing.assert_array_equal(parts.path, [sign * (0.5 - 4.0) * x[0], 0.0, 0.0, np.nan])
        np.testing.assert_array_equal(parts.rounding, [0.0, 0.0, 0.0, np.nan])
        assert (parts.left_out, parts.undefined, parts.nonfinite, parts.elements, parts.share_of_path) == (1, 0, 0, 3, 1.0)
        assert pair.gradients["k"].largest == 3.5 * x[0] and pair.gradients["k"].at == (0,)
        said = [s.text for s in pair.sentences]
        assert "The error of the gradient of `k` over 3 of 4 instances is due to the path alone." in said
        assert not [unbacked(s) for s in pair.sentences if unbacked(s)]


@sg.world
def grows_by_square(x: sg.State, k: sg.Param = 0.1):
    return x + k * (x * x)


@grows_by_square.objective
def grown(x):
    return x


def test_an_instance_that_a_policy_stops_is_in_no_difference_of_gradients(client):
    @sg.world
    def squared(x: sg.State, k: sg.Param = 1.0):
        return k * x * x

    @squared.objective
    def end(x):
        return x

    x = np.array([0.5, 0.7, 30.0])  # the last one is beyond f16 in step 2
    work = dict(steps=4, params={"k": 1.0}, objective="end")
    policies = {"f64": "f64", "f16": sg.Policy("f16_unsafe").nonfinite("stop")}
    (pair,) = client.compare(squared, policies=policies, initial={"x": x}, **work).pairs.values()
    a, b = (client.gradient(squared, policy=p, initial={"x": x[:2]}, **work) for p in policies.values())
    assert pair.gradients["x"].relative == pytest.approx(relative(a.initial["x"], b.initial["x"]), rel=1e-12)
    assert pair.gradients["k"].relative == pytest.approx(relative(a.params["k"], b.params["k"]), rel=1e-12)
    assert pair.gradients["x"].counted == (3, 2) and pair.gradients["k"].zero == (0, 0)
    said = [s.text for s in pair.sentences]
    assert not [s for s in said if "is zero" in s]
    assert "at a number that is not finite, first in instance 2 at step 1, and these have no gradient." in said[-1]
    assert pair.why.endswith(f"off by at most {pair.gradients['k'].relative:.3g} of their size over 2 of 3 instances (`k`).")
    assert not [unbacked(s) for s in pair.sentences if unbacked(s)]
    with pytest.raises(ValueError, match="reference: 1 of 2 instances end with an error, are stopped or are left out"):
        client.tune(squared, initial={"x": x}, bound=0.1, reference=policies["f16"], **work)


def test_an_instance_that_is_left_out_of_a_gradient_is_in_no_difference_of_it(client):
    x = np.array([0.3, 0.7, 300.0])  # 300^2 is beyond f16
    work = dict(steps=1, params={"k": 0.1}, objective="grown")
    policies = ["f64", "f16_unsafe"]
    (pair,) = client.compare(grows_by_square, policies=policies, initial={"x": x}, reduction="finite_only", **work).pairs.values()
    a, b = (client.gradient(grows_by_square, policy=p, initial={"x": x[:2]}, **work) for p in policies)
    assert pair.gradients["x"].relative == pytest.approx(relative(a.initial["x"], b.initial["x"]), rel=1e-12)
    assert pair.gradients["k"].relative == pytest.approx(relative(a.params["k"], b.params["k"]), rel=1e-12)
    assert pair.gradients["k"].left_out == 1 and pair.left_out == 0 and 0 < pair.gradients["k"].relative < 0.01
    said = [s.text for s in pair.sentences]
    assert "f16_unsafe leaves out 1 of 3 instances, which are not finite." in said
    assert len([s for s in said if s.endswith("of its size over 2 of 3 instances.")]) == 2
    assert not [unbacked(s) for s in pair.sentences if unbacked(s)]


def test_runs_without_an_instance_in_common_are_not_compared(client):
    @sg.world
    def sided(x: sg.State, side: sg.Config = 1.0, k: sg.Param = 1.0):
        sg.halt("side", x * side > 0, error=True)
        return 0.5 * k * x

    @sided.objective
    def end(x):
        return x

    work = dict(steps=2, initial={"x": [-1.0, 1.0, 2.0]}, params={"k": 1.0}, objective="end")
    for split in (False, True):
        result = client.compare(sided, policies=["f64"], configs=[{"side": -1.0}], split=split, **work)
        (pair,) = result.pairs.values()
        assert pair.why.startswith("f64 ends with an error (why_edges_test.py:")
        said = [s.text for s in pair.sentences]
        assert "No instance has a gradient in both f64 and f64 side=-1." in said
        assert not [s for s in said if "is off" in s or "equals" in s or "are the same" in s or "due to" in s or "rounding" in s]
        assert pair.value is None and np.isnan(pair.gradients["k"].largest) and result.html() and repr(result)


def test_a_policy_under_which_an_error_ends_instances_does_not_hold(client):
    work = dict(bound=1e-3, keep=0.0, roles=["dynamics", "termination", "event"], sites=[], formats=["f64", "f32"], **FALL)
    x = np.array([0.1, 0.05, 0.06, 0.07] * 8)
    tuned = client.tune(fall, initial={"x": x}, **work)
    failed = [t for t in tuned.tried if t.ended]
    assert failed and all(t.ended == 8 and not t.holds and not t.nonfinite and t.error < 1e-6 for t in failed)
    assert tuned.table().count("fails: 8 end with an error") == len(failed) and tuned.confirmed
    g = client.gradient(fall, initial={"x": x}, policy=tuned.policy, **FALL)
    assert not g.halted
    # Such an instance among those alone that confirm.
    tuned = client.tune(fall, initial={"x": np.roll(x, 1)}, **work)
    assert not tuned.confirmed and tuned.tried[-1].ended == 8 and tuned.tried[-1].error < 1e-6
    assert tuned.why.endswith("; 8 end with an error.") and not unbacked(tuned.sentence)
    with pytest.raises(ValueError, match="with f32 in every role 8 instances end with an error, and have no gradient"):
        client.tune(fall, initial={"x": x}, **{**work, "formats": ["f32"]})


@sg.world
def rooted(x: sg.State, k: sg.Param = 1.0):
    return np.sqrt(x - k)


@rooted.objective
def root(x):
    return x


def test_instances_that_are_left_out_are_told(client):
    result = client.compare(
        rooted, policies=["f64", "f32"], steps=3, initial={"x": np.full(4, 0.5)}, objective="root", reduction="finite_only"
    )
    said = [s.text for s in result.pairs["f32"].sentences]
    assert "f32 leaves out 4 of 4 instances, which are not finite." in said
    assert not [s for s in said if "off by" in s or "equals" in s or "is zero" in s]


def test_what_cannot_be_compared_is_refused_by_name(client):
    work = dict(steps=3, initial={"x": np.ones(6), "z": np.ones(6)}, objective="energy")
    with pytest.raises(TypeError, match="configs: steps is a whole number, not 7.9"):
        client.compare(bounded, policies=["f64"], configs=[{"steps": 7.9}], **work)
    with pytest.raises(ValueError, match="configs: one is empty"):
        client.compare(bounded, policies=["f64"], configs=[{}], **work)
    with pytest.raises(ValueError, match="inputs of 5 and of 6 instances"):
        client.tune(bounded, bound=1.0, params={"k": np.ones(5)}, **work)


def test_a_policy_that_stops_parts_nowhere(client):
    """In step 3 x is 0 / 0 in one instance, whose run policy "stop" ends; in the other run its tests fail from then on."""

    @sg.world
    def shrinks(x: sg.State, k: sg.Param = 1.0):
        y = sg.while_loop(lambda z: z * 0.5, x, until=lambda z: z < 0.1, max_iter=40, site="halve")
        dies = sg.test("dies", x < 0.2)
        return sg.cond(dies, lambda q: q / (q - q), lambda q: q * 0.5 * k, x) + 0 * y

    @shrinks.objective
    def end(x):
        return x

    policies = [sg.Policy("f64"), sg.Policy("f64").nonfinite("stop")]
    result = client.compare(
        shrinks, steps=8, initial={"x": [1.0, 50.0]}, objective="end", policies=policies
    )
    ended = result.results["f64.nonfinite('stop')"].health
    assert [(h.instance, h.step, h.stopped) for h in ended] == [(0, 3, True)]
    (pair,) = result.pairs.values()
    assert pair.forks.count == 0
    assert "leaves the path" not in str(result.why)


def test_a_run_that_stopped_parts_nowhere_behind_its_end(client):
    """A terminal cost that decides has no path. `z` is beyond f16 in step 15; from step 18 on, `late` holds."""

    @sg.world
    def grows(x: sg.State, z: sg.State, k: sg.Param = 1.0):
        late, early = sg.test("late", x > 17.5), sg.test("early", x < 3.5)
        x = np.where(late, x + 2.0, np.where(early, x + 1.0, x + 1.0 * k))
        return {"x": x, "z": z * 2.0}

    @grows.objective
    def end(x):
        return np.where(x > 0.5, x, -x)

    work = dict(steps=24, objective="end", policies=["f64", sg.Policy("f16_unsafe").nonfinite("stop")])
    result = client.compare(grows, initial={"x": [0.0, 0.0], "z": [1.0, 0.0]}, **work)
    (pair,) = result.pairs.values()
    assert pair.forks.unrecorded is None and [bad.instance for bad in pair.other_result.health if bad.stopped] == [0]
    assert pair.forks.count == 0
    # One that parts before it stops is told: 3.4996 is 3.5 in f16.
    result = client.compare(grows, initial={"x": [0.0, 3.4996], "z": [1.0, 1.0]}, **work)
    (pair,) = result.pairs.values()
    assert pair.forks.parted.tolist() == [False, True] and (pair.forks.first.step, pair.forks.first.site) == (0, "early")
    # Of many last steps, half of them behind a fork: each is told.
    ends = 2.0 ** -np.arange(9)
    x = np.where(np.arange(9) % 2, 3.4996, 0.0)
    result = client.compare(grows, initial={"x": x, "z": ends}, **work)
    (pair,) = result.pairs.values()
    assert pair.forks.parted.tolist() == (x > 0).tolist()
    none = client.compare(grows, initial={"x": 0 * x, "z": ends}, **work)
    assert none.pairs.popitem()[1].forks.count == 0 and none.calls <= 2 + 2 * 4


def test_an_error_beyond_the_squares_of_f64_is_no_gradient_of_zero(client):
    @sg.world
    def grown(x: sg.State):
        return 10.0 * x

    @grown.objective
    def end(x):
        return x

    work = dict(steps=2, initial={"x": [1.0]}, objective="end")
    result = client.compare(grown, policies=["f64"], configs=[{"steps": 202}], **work)
    assert "is zero" not in result.why and "by 1e+200 of its size" in result.why


@pytest.mark.parametrize(
    "refused, arguments",
    [
        ("instance_ids: 2 of them for 8 instances", dict(instance_ids=[1, 2])),
        ("instance_ids: whole numbers", dict(instance_ids=[1.7, 2, 3, 4, 5, 6, 7, 8])),
        ("instance_ids: whole numbers", dict(instance_ids=[-1, 2, 3, 4, 5, 6, 7, 8])),
        ("first_instance: whole numbers", dict(first_instance=-1)),
        ("first_instance: whole numbers", dict(first_instance=1.5)),
        ("first_instance: 18446744073709551615 and 7 more ids", dict(first_instance=2**64 - 1)),
        ("first_instance: instance_ids names every", dict(first_instance=1, instance_ids=range(8))),
        ("weights: 2 of them for 8 instances", dict(weights=[1.0, 2.0])),
        ("weights: one number for each instance", dict(weights=np.ones((8, 1)))),
        ("instances: 4, where inputs are of 8", dict(instances=4)),
    ],
)
def test_instances_are_checked_as_those_of_a_call(client, refused, arguments):
    work = dict(steps=1, initial={"x": np.ones((8, 4))}, objective="bent")
    for call in (
        lambda: client.compare(inside, policies=["f64", "f32"], **work, **arguments),
        lambda: client.tune(inside, bound=1.0, **work, **arguments),
        lambda: client.sensitivity(inside, policy="f32", runs=1, **work, **arguments),
    ):
        with pytest.raises((ValueError, TypeError), match=refused):
            call()


def test_ids_up_to_the_largest_are_those_of_the_runs(client):
    ids = dict(first_instance=2**64 - 8)
    found = client.compare(inside, steps=1, initial={"x": BALANCED[:8]}, policies=["f64", "f32"], gradient=False, **ids)
    (pair,) = found.pairs.values()
    assert pair.forks.first is None or pair.forks.first.instance_id == 2**64 - 8 + pair.forks.first.instance


def test_sensitivity_takes_policies_with_roles_that_do_not_round(client):
    work = dict(steps=1, initial={"x": BALANCED}, runs=2, gradient=False)
    for policy in ("f64", sg.Policy("f32").role("solver", format="f64"), sg.Policy("f32").role("dynamics", format="tf32")):
        found = client.sensitivity(inside, policy=policy, **work)
        assert found.differing == 2, policy
        by_chance = [r.program.policy.rounds_by_chance for r in found.results]
        assert by_chance == [policy != "f64"] * 2
    with pytest.raises(ValueError, match="no cast rounds by chance .* orders=True"):
        client.sensitivity(inside, policy="f64", orders=False, **work)
    # One that rounds by chance already does so by other seeds.
    by_chance = sg.Policy("f64").role("state", format="f16", rounding="stochastic")
    found = client.sensitivity(inside, policy=by_chance, orders=False, **work)
    assert found.differing == 2 and found.results[0].state["x"].tobytes() != found.results[1].state["x"].tobytes()


def test_instances_that_a_policy_stops_are_told_of_either_run(client):
    """5e5 grows beyond f16 in the seventh step; its last state is finite, so nothing else tells."""

    @sg.world
    def grown(x: sg.State, k: sg.Param = 1.7):
        return k * x

    @grown.objective
    def end(x):
        return x

    policies = [sg.Policy("f32").nonfinite("stop"), sg.Policy("f16_unsafe").nonfinite("stop")]
    result = client.compare(grown, steps=20, initial={"x": [1.0, 1.0, 1000.0]}, objective="end", policies=policies)
    (pair,) = result.pairs.values()
    (stopped,) = [bad for bad in pair.other_result.health if bad.stopped]
    told = [s for s in pair.sentences if "stopped" in s.facts]
    assert [s.text for s in told] == [
        f"{pair.other} stops in 1 of 3 instances at a number that is not finite, first in instance 2 at step {stopped.step}, and these "
        "have no gradient."
    ]


def test_a_site_that_one_world_has_alone_is_where_the_two_part(client):
    def watched(high):
        @sg.world(name="watched")
        def world(x: sg.State):
            near = sg.test("near", x < 0.5)
            y = np.where(near, x, 0.9 * x)
            return {"x": np.where(sg.test("high", x > 0.93), y, y) if high else y}

        return world

    for first, second, parted in ((False, True, [1, 2]), (True, False, [1, 2])):
        result = client.compare(
            watched(first),
            steps=8,
            initial={"x": [0.2, 0.95, 0.99]},
            policies=["f32"],
            worlds={"other": watched(second)},
            gradient=False,
        )
        forks = result.pairs["other"].forks
        assert np.flatnonzero(forks.parted).tolist() == parted
        assert forks.first.site == "high" and set(filter(None, forks.site)) <= {"high"}
    contact = {n: sg.World("bouncing_ball", contact=n) for n in ("projection", "penalty")}
    result = client.compare(
        contact["projection"],
        steps=30,
        initial={"y": [[0.1], [0.9]], "v": [-1.0]},
        params={"k": 1.0},
        policies=["f32"],
        worlds={"penalty": contact["penalty"]},
        gradient=False,
    )
    assert result.pairs["penalty"].forks.first.site == "projection"


def test_integers_and_gradients_differ_by_what_f64_would_lose():
    beyond = difference(np.array([2**53]), np.array([2**53 + 1]))
    assert beyond.largest == 1.0 and beyond.at == (0,)
    assert difference(np.array([3, 4], np.int32), np.array([3, 4], np.int32)).largest == 0.0
    assert difference(np.array([1, 2], np.uint8), np.array([1, 0], np.uint8)).largest == 2.0


def test_a_loop_that_stops_is_not_told_by_the_margin_of_a_test_that_went_on(client):
    """In bf16 x is 1, and the test stops it at 0, 0.001 below; by ulps the first one, at 1, is nearer. A formula of two
    comparisons has no margin of its own; where there is one, it is told."""

    def halved(until):
        @sg.world
        def step(x: sg.State):
            y = sg.while_loop(lambda y: (y - 1.0) * 0.5, x, until=until, max_iter=40, site="halve")
            return 0.0 * y + x

        return step

    work = dict(policies=["f64", "bf16_unsafe"], steps=2, initial={"x": np.array([1.0022])}, gradient=False)
    pair = client.compare(halved(lambda y: (y <= 0.001) | (y > 9.0)), **work).pairs["bf16_unsafe"]
    mine = pair.forks.first.other
    assert mine.margin < 0 < mine.margin_ulps and not mine.exact
    assert "stops at step 0, where f64 goes on." in pair.why and "margin" not in pair.why
    assert not any(map(unbacked, pair.sentences))
    pair = client.compare(halved(lambda y: y <= 0.001), **work).pairs["bf16_unsafe"]
    assert pair.forks.first.other.exact
    assert "stops at step 0 by a margin of -131 ulps, where f64 goes on." in pair.why  # 0 - 0.001, an ulp of 0.001 being 2^-17
    assert not any(map(unbacked, pair.sentences))
