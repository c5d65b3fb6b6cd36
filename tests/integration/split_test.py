"""The error of a gradient by cause, in closed forms and against runs that are forced here."""

import numpy as np
import pytest
from said import unbacked

import simgrad as sg

TOLERANCE = float.fromhex("0x1.06p-10")
START = -np.array([float.fromhex("0x1.04p-10")] + 8 * [2.0**-20])
PROJECTION = sg.World("boundary_projection", elements=9, tol=TOLERANCE)
BALL = sg.World("bouncing_ball", contact="toi")


@sg.world
def smooth(x: sg.State[2], k: sg.Param = 0.3):
    return x + k * x**3


@smooth.objective
def total(x):
    return np.sum(x)


@sg.world
def gated(x: sg.State, k: sg.Param = 0.5):
    """Exact in every format that holds x: only the test sees less of it in bf16."""
    return sg.where(sg.test("gate", x > 1.0), 4.0 * k * x, 0.5 * k * x)


@gated.objective
def end(x):
    return x


def forced_parts(client, world, policies, work, name, group):
    """Rounding, path and interaction from four gradients, as LANGUAGE section 5 writes them."""
    paths = [client.gradient(world, **work, policy=p, path=True).path for p in policies]
    g = np.array(
        [[getattr(client.gradient(world, **work, policy=p, path=q), group)[name] for q in paths] for p in policies], np.float64
    )
    rounding = ((g[1] - g[0])[0] + (g[1] - g[0])[1]) / 2
    path = ((g[:, 1] - g[:, 0])[0] + (g[:, 1] - g[:, 0])[1]) / 2
    return rounding, path, g[1, 1] - g[1, 0] - g[0, 1] + g[0, 0]


def test_a_world_without_tests_has_no_path_part_to_the_bit(client):
    work = dict(steps=5, initial={"x": np.array([[0.5, -0.25], [0.75, 0.1]])}, params={"k": 0.3}, objective="total")
    result = client.compare(smooth, **work, policies=["f64", "f32"], split=True)
    pair = result.pairs["f32"]
    for parts in pair.split.values():
        assert not parts.path.any() and not parts.interaction.any() and (parts.rounding == parts.whole).all()
        assert parts.rounding.any() and parts.share_of_path == 0 and parts.undefined == 0
    assert any(s.text == "The error of the gradient of `k` is rounding alone." for s in pair.sentences)
    each = {**work, "params": {"k": np.full(2, 0.3)}}
    rounding, path, _ = forced_parts(client, smooth, ("f64", "f32"), each, "k", "params")
    assert not path.any() and (rounding == pair.split["k"].rounding).all()


def test_exact_arithmetic_with_planted_flips_has_a_path_part_in_closed_form(client):
    # 1 + 2^-12 is 1 in bf16; the others are in every format what they are.
    x = np.array([1 + 2.0**-12, 1.5, 0.5, 1 + 2.0**-11])
    blind = sg.Policy("f64").role("event", format="bf16")
    result = client.compare(
        gated, steps=1, initial={"x": x}, params={"k": 0.5}, objective="end", policies={"f64": "f64", "blind": blind}, split=True
    )
    pair = result.pairs["blind"]
    flips = np.array([True, False, False, True])
    assert (pair.forks.parted == flips).all() and pair.forks.sites() == {"gate": 2}
    k = pair.split["k"]
    # d(4 k x)/dk = 4 x along one branch, x / 2 along the other.
    assert (k.path == np.where(flips, 0.5 * x - 4 * x, 0)).all() and (k.whole == k.path).all()
    assert not k.rounding.any() and not k.interaction.any() and k.share_of_path == 1
    start = pair.split["x"]
    assert (start.path == np.where(flips, 0.25 - 2.0, 0)).all() and not start.rounding.any()
    assert any(s.text == "The error of the gradient of `k` is due to the path alone." for s in pair.sentences)
    assert pair.gradients["k"].largest == np.abs(k.whole).max()


@pytest.mark.parametrize("policy", ["bf16_unsafe", "f16_unsafe"])
def test_parts_are_those_of_four_runs_and_add_up(client, policy):
    y = np.linspace(0.3, 1.0, 12)[:, None]
    work = dict(steps=120, initial={"y": y, "v": np.zeros((12, 1))}, params={"restitution": 0.8}, objective="final_height")
    pair = client.compare(BALL, **work, policies=["f64", policy], split=True).pairs[policy]
    assert 0 < pair.forks.count < 12
    each = {**work, "params": {"restitution": np.full(12, 0.8)}}
    for name, group in (("restitution", "params"), ("y", "initial")):
        parts = pair.split[name]
        rounding, path, interaction = forced_parts(client, BALL, ("f64", policy), each, name, group)
        np.testing.assert_array_equal(parts.rounding, rounding)
        np.testing.assert_array_equal(parts.path, path)
        np.testing.assert_allclose(parts.interaction, interaction, rtol=1e-12, atol=1e-12 * np.abs(parts.whole).max())
        np.testing.assert_allclose(parts.rounding + parts.path, parts.whole, rtol=1e-13, atol=1e-13 * np.abs(parts.whole).max())
        assert not parts.path[~pair.forks.parted].any() and parts.path[pair.forks.parted].any()
        said = next(s for s in pair.sentences if "share_of_path" in s.facts and s.facts["input"] == name)
        share = np.linalg.norm(path) / (np.linalg.norm(path) + np.linalg.norm(rounding))
        assert said.facts["share_of_path"] == pytest.approx(share, rel=1e-12) and f", {share:.1%} is due to the path" in said.text
        assert said.facts["undefined"] == 0


def test_where_every_path_flips_the_vanished_gradient_is_the_paths_doing(client):
    result = client.compare(
        PROJECTION,
        steps=4,
        initial={"y": np.tile(START, (6, 1))},
        params={"k": 0.5},
        objective="final_penetration",
        policies=["f32", "bf16_unsafe", "bf16_safe"],
        split=True,
    )
    unsafe, safe = (result.pairs[p].split["k"] for p in ("bf16_unsafe", "bf16_safe"))
    assert unsafe.whole.shape == (6,) and unsafe.share_of_path > 0.99
    assert safe.share_of_path == 0 and safe.rounding.any()
    assert "% is due to the path" in repr(result.pairs["bf16_unsafe"])
    text = result.html()
    assert 'data-figure="gradients"' in text and 'data-series="path"' in text


def test_forks_of_all_instances_are_those_of_the_columns_of_both_paths(client):
    y = np.linspace(0.3, 1.0, 12)[:, None]
    work = dict(steps=120, initial={"y": y, "v": [0.0]}, params={"restitution": 0.8}, objective="final_height")
    forks = client.compare(BALL, **work, policies=["f64", "bf16_unsafe"]).pairs["bf16_unsafe"].forks
    a, b = (client.rollout(BALL, **work, policy=policy, path=True).path for policy in ("f64", "bf16_unsafe"))
    for i in range(12):
        differs = {s: (a[s][i] != b[s][i]).reshape(120, -1).any(axis=1) for s in a.columns}
        steps = np.flatnonzero(np.any(list(differs.values()), axis=0))
        assert forks.step[i] == (steps[0] if steps.size else -1) and forks.parted[i] == bool(steps.size)
        if steps.size:
            assert differs[forks.site[i]][steps[0]]
    assert forks.located.sum() == forks.count > 1


def test_both_margins_are_those_of_the_decision_that_parts(client):
    fork = client.compare(
        PROJECTION, steps=4, initial={"y": START[None]}, params={"k": 0.5}, objective="final_penetration", policies=["f32", "bf16_unsafe"]
    ).pairs["bf16_unsafe"].forks.first
    # In f32 the sum is the tolerance, at the first of two tests; in bf16 it is one ulp below, at the only one.
    assert fork.reference.exact and fork.other.exact
    assert (fork.reference.margin, fork.other.margin, fork.other.margin_ulps) == (0.0, -(2.0**-17), -1.0)
    assert (fork.reference.iterations, fork.other.iterations) == (1, 0)


@sg.world
def squared(x: sg.State, k: sg.Param = 1.0):
    return sg.where(sg.test("low", x < 1.0), k * x, k * x * x)


@squared.objective
def squares(x):
    return x


def test_gradients_that_are_not_finite_have_no_parts_and_are_said_to_be_so(client):
    # 300^2 is beyond f16.
    result = client.compare(
        squared, steps=2, initial={"x": np.array([0.5, 300.0])}, params={"k": 1.0}, objective="squares", policies=["f64", "f16_unsafe"], split=True
    )
    pair = result.pairs["f16_unsafe"]
    g = result.results["f16_unsafe"].params["k"]
    assert np.isfinite(g).tolist() == [True, False] and np.isnan(pair.gradients["k"].relative)
    assert pair.split["k"].undefined == 1 and np.isfinite(pair.split["k"].path).tolist() == [True, False]
    said = [s.text for s in pair.sentences]
    assert "The gradient of `k` is not finite in f16_unsafe." in said
    assert any("; 1 of 2 elements are not finite in f16_unsafe or in f64." in text for text in said) and result.html()
    assert not any("undefined along" in text for text in said)


def test_of_an_error_of_which_some_has_no_parts_the_rest_is_told(client):
    """0.3 is none of f16's numbers, and 300^2 is beyond it."""
    result = client.compare(
        squared, steps=2, initial={"x": np.array([0.3, 300.0])}, params={"k": 1.0}, objective="squares", policies=["f64", "f16_unsafe"], split=True
    )
    pair = result.pairs["f16_unsafe"]
    assert pair.split["k"].undefined == 1 and pair.split["k"].rounding[0] and not pair.split["k"].path[0]
    text = "The error of the gradient of `k` in the elements that have parts is rounding alone; 1 of 2 elements are not finite in f16_unsafe or in f64."
    assert text in [said.text for said in pair.sentences]


def test_what_cannot_be_split_is_refused_with_the_reason(client):
    work = dict(steps=4, initial={"y": START[None]}, params={"k": 0.5}, objective="final_penetration", policies=["f32"], split=True)
    with pytest.raises(ValueError, match="another number of steps"):
        client.compare(PROJECTION, **work, configs=[{"steps": 5, "max_iter": 25}])
    with pytest.raises(ValueError, match="other operations, shapes or caps"):
        client.compare(PROJECTION, **work, configs=[{"max_iter": 3}])


@sg.world
def pivoted(x: sg.State, k: sg.Param = 0.5):
    """The first pivot is the larger of 1 and x."""
    b = sg.builder()
    one, zero = b.value(1.0) * 1.0, b.value(0.0) * 1.0
    order = b.lu_permutation(np.stack([np.stack([one, zero]), np.stack([x, one])]))
    return sg.where(order[0] == 1, 4.0 * k * x, 0.5 * k * x)


@pivoted.objective
def last(x):
    return x


@sg.world
def solved(x: sg.State, k: sg.Param = 0.5):
    m = np.stack([np.stack([x * 0 + 1.0, x * 0 + 2.0]), np.stack([x, x * 0 - 1.0])])
    return x + 0.01 * np.linalg.solve(m, np.stack([k, k * 2]))[0]


@solved.objective
def ending(x):
    return x


def split_at_a_pivot(client, world, objective):
    # 1 + 2^-12 and 1 + 2^-11 are 1 in bf16: the first row stays the pivot.
    x = np.array([1 + 2.0**-12, 1.5, 0.5, 1 + 2.0**-11])
    pair = client.compare(
        world, steps=1, initial={"x": x}, params={"k": 0.5}, objective=objective, policies=["f64", "bf16_unsafe"], split=True
    ).pairs["bf16_unsafe"]
    flips = np.array([True, False, False, True])
    assert (pair.forks.parted == flips).all() and not pair.forks.unrecorded.any()
    assert pair.forks.sites() == {"lu": 2} and pair.why.startswith("bf16_unsafe leaves the path of f64 in 2 of 4 instances")
    assert "the choice `lu`" in pair.why
    for parts in pair.split.values():
        assert parts.undefined == 0 and (parts.path[~flips] == 0).all()
        np.testing.assert_allclose(parts.rounding + parts.path, parts.whole, rtol=1e-12, atol=1e-15)
    return x, flips, pair


def test_an_instance_that_parts_at_a_pivot_has_the_parts_of_its_closed_form(client):
    x, flips, pair = split_at_a_pivot(client, pivoted, "last")
    k = pair.split["k"]
    exact, rough = x[flips], 1.0  # the gradients by k are 4 x along the path of f64, x / 2 along that of bf16
    np.testing.assert_allclose(k.rounding[flips], 2.25 * (rough - exact), rtol=1e-12)
    np.testing.assert_allclose(k.path[flips], -1.75 * (rough + exact), rtol=1e-12)
    fork = pair.forks.first
    assert (fork.step, fork.instance, fork.site) == (0, 0, "lu")


def test_either_order_of_rows_solves_a_system_in_exact_arithmetic(client):
    _, flips, pair = split_at_a_pivot(client, solved, "ending")
    k = pair.split["k"]
    in_f64 = k.path - k.interaction / 2  # g(R, p_P) - g(R, p_R)
    assert k.path[flips].all() and (np.abs(in_f64) < 1e-9 * np.abs(k.path).max()).all()


@sg.world
def halving(x: sg.State, k: sg.Param = 0.5):
    """Of the tests that stop the loop, nothing but its count of turns is a number of the step."""
    y, _ = sg.while_loop(
        lambda y, n: (y * 0.5, n + 1), (x, 0), until=lambda y, n: (y < 0.3) | (y * k < 0.15), max_iter=3, site="halve"
    )
    return y * k


@halving.objective
def halved(x):
    return x


def test_a_test_that_only_stops_a_loop_leaves_the_error_to_rounding(client):
    # 2.3999 / 8 is below 0.3; in bf16 it is 0.3, and the loop ends at its cap.
    work = dict(steps=1, initial={"x": np.array([2.3999, 2.4, 2.3, 1.1])}, params={"k": 0.5}, objective="halved")
    pair = client.compare(halving, **work, policies=["f64", "bf16_unsafe"], split=True).pairs["bf16_unsafe"]
    assert pair.forks.unrecorded.tolist() == pair.forks.parted.tolist() == [True, False, False, False]
    k = pair.split["k"]
    assert k.undefined == 0 and (k.rounding == k.whole).all() and k.rounding[0] and not k.path.any()
    text = "The error of the gradient of `k` is rounding alone; the tests that part in 1 of 4 instances steer no number."
    [said] = [s for s in pair.sentences if s.text == text]
    assert not unbacked(said)


def test_tests_of_instances_that_are_left_out_are_not_told_to_steer_nothing(client):
    """z is beyond bf16 in step 1."""

    @sg.world
    def halves(x: sg.State, z: sg.State, k: sg.Param = 0.5):
        y, _ = sg.while_loop(
            lambda y, n: (y * 0.5, n + 1), (x, 0), until=lambda y, n: (y < 0.3) | (y * k < 0.15), max_iter=3, site="halve"
        )
        return {"x": y * k, "z": z * 10.0}

    @halves.objective
    def end(x):
        return x

    work = dict(steps=2, initial={"x": np.array([2.3999, 2.3999, 1.1]), "z": [1.0, 1e37, 1.0]}, params={"k": 0.5}, objective="end")
    policies = {"f64": "f64", "bf16": sg.Policy("bf16_unsafe").nonfinite("stop")}
    pair = client.compare(halves, **work, policies=policies, split=True).pairs["bf16"]
    assert pair.forks.unrecorded.tolist() == [True, True, False] and pair.split["k"].left_out == 1
    text = "The error of the gradient of `k` over 2 of 3 instances is rounding alone; the tests that part in 1 of 3 instances steer no number."
    [said] = [s for s in pair.sentences if s.text == text]
    assert not unbacked(said)


@sg.world
def aside(x: sg.State, y: sg.State, k: sg.Param = 0.5):
    """The test decides nothing of x, whose gradient, 1e-8 k^2, is lost in bf16."""
    y = sg.where(sg.test("unrelated", y > 1.0), y * 0.5, y * 0.25)
    return {"x": x * (k + 1e-8 * k * k) - x * k, "y": y}


@aside.objective
def remains(x):
    return x


@pytest.mark.parametrize("split", [True, False])
def test_a_test_that_the_gradient_does_not_hang_on_is_not_why_it_is_zero(client, split):
    work = dict(steps=1, initial={"x": np.ones(4), "y": np.full(4, 1 + 2.0**-12)}, params={"k": np.full(4, 0.5)})
    pair = client.compare(aside, **work, objective="remains", policies=["f64", "bf16_unsafe"], split=split).pairs["bf16_unsafe"]
    said = pair.sentences[0]
    assert pair.gradients["x"].zero == (0, 4) and pair.forks.sites() == {"unrelated": 4} and not unbacked(said)
    zero = "In bf16_unsafe the gradient of `x` is zero in 4 of 4 instances"
    if split:
        assert said.text == f"{zero}, by rounding alone: paths part in 4 of 4 instances, which changes nothing in it."
        parts = pair.split["x"]
        assert (said.facts["size_of_path"], said.facts["size_of_rounding"]) == (0.0, parts.size_of_rounding) and parts.rounding.all()
    else:
        line = pair.forks.first.line
        assert said.text == f"{zero}; all paths part at the test `unrelated` ({line}), first at step 0 in instance 0."


@sg.world
def shut(x: sg.State, k: sg.Param = 0.5):
    return sg.where(sg.test("gate", x > 1.0), x * k, 0.0)


@shut.objective
def passed(x):
    return x


def test_a_test_that_gates_the_gradient_is_why_it_is_zero(client):
    work = dict(steps=1, initial={"x": np.full(4, 1 + 2.0**-12)}, params={"k": np.full(4, 0.5)}, objective="passed")
    pair = client.compare(shut, **work, policies=["f64", "bf16_unsafe"], split=True).pairs["bf16_unsafe"]
    for name, said in zip(("x", "k"), pair.sentences):
        assert pair.gradients[name].gated_by == ("", "gate") and pair.split[name].path.all()
        assert said.text.startswith(f"In bf16_unsafe the gradient of `{name}` is zero in 4 of 4 instances: the test `gate` (")
        assert "does not hold at step 0" in said.text and not unbacked(said)


@sg.world
def begun(x: sg.State, k: sg.Param = 1.0):
    return 0.5 * x


@begun.initial
def chosen(x, k):
    return {"x": sg.where(k * x > 1.0, 2.0 * k, 3.0 * k)}


@begun.objective
def rest_of(x):
    return x


def test_what_initial_decides_parts_at_step_0_and_is_the_paths_doing(client):
    """Exact in both formats but for k x, which bf16 rounds to 1: the gradient by k is 2 / 8 in f64 and 3 / 8 in bf16."""
    x = np.array([1 + 2.0**-10, 4.0, 0.5])
    work = dict(steps=3, initial={"x": x}, params={"k": np.ones(3)}, objective="rest_of")
    result = client.compare(begun, **work, policies=["f64", "bf16_unsafe"], split=True)
    pair = result.pairs["bf16_unsafe"]
    assert pair.forks.count == 1 and pair.forks.first.instance == 0 and pair.forks.first.step == 0
    assert pair.forks.first.line.startswith("split_test.py:")
    assert pair.forks.first.site == "initial.gt" and (pair.forks.step == [0, -1, -1]).all()
    parts = pair.split["k"]
    assert not parts.rounding.any() and not parts.interaction.any()
    np.testing.assert_array_equal(parts.path, [0.125, 0.0, 0.0])
    rounding, path, _ = forced_parts(client, begun, ("f64", "bf16_unsafe"), work, "k", "params")
    np.testing.assert_array_equal(path, [0.125, 0.0, 0.0])
    assert not rounding.any() and not any(unbacked(said) for said in pair.sentences)
    recorded = client.rollout(begun, **work, policy="f64", path=True, record=["x"])
    plain = client.rollout(begun, **work, policy="f64", record=["x"])
    np.testing.assert_array_equal(recorded.trajectory["x"], plain.trajectory["x"])
    assert list(recorded.state) == list(plain.state) == ["x"]
    with pytest.raises(sg.InvalidArgument, match="`initial` follows the row of step 0, and there is no step"):
        none = client.rollout(begun, **{**work, "steps": 0}, policy="f64", path=True).path
        client.rollout(begun, **{**work, "steps": 0}, policy="f64", path=none)
