"""Margins by element: what each element of a test had between its sides, on a live server."""

import numpy as np
import pytest

import simgrad as sg

BALL = sg.World("bouncing_ball", contact="projection", elements=3, clamp=False)
SITES = ("contact", "projection")


def work(n=5, steps=20):
    y = np.linspace(0.02, 0.4, n)[:, None] * np.linspace(0.5, 1.0, 3)
    return dict(steps=steps, initial={"y": y, "v": np.full(3, -1.0)}, params={"k": 0.7})


@pytest.fixture(scope="module")
def told(client):
    return client.rollout(BALL, **work(), margins=SITES, record=["y"], path=True)


def test_each_element_and_iteration_has_its_own(told):
    assert set(told.margins) == set(SITES) and set(told.trajectory) == {"y"}
    contact, projection = told.margins["contact"], told.margins["projection"]
    assert contact.shape == (5, 20, 3) and contact.dtype == np.float64
    assert projection.shape == (5, 20, 26)
    # The ball touches where y_free < 0, whatever it then does.
    assert np.array_equal(contact < 0, told.path["contact"])
    # A loop that ran i times was tested i + 1 times; the last test alone ended it.
    tests = np.sum(~np.isnan(projection), axis=-1)
    iterations = told.path["projection"]
    assert np.array_equal(tests, iterations + 1)
    last = np.take_along_axis(projection, iterations[..., None].astype(int), axis=-1)[..., 0]
    assert (last[iterations < 25] < 0).all()
    assert np.nansum(projection >= 0) >= np.sum(iterations) > 0


def test_the_smallest_are_those_of_the_diagnostics(told):
    contact = told.margins["contact"]
    least = np.abs(contact).min(axis=(0, 2))
    np.testing.assert_array_equal(least, np.abs(told.events["contact"].margin))
    projection = np.nanmin(np.abs(told.margins["projection"]), axis=(0, 2))
    np.testing.assert_array_equal(projection, np.abs(told.sites["projection"].margin))


def test_nothing_else_of_the_answer_changes(client, told):
    plain = client.rollout(BALL, **work(), record=["y"])
    assert told.program.fingerprint == client.rollout(BALL, **work(), path=True).program.fingerprint
    alone = client.rollout(BALL, **work(), margins="contact", diagnostics="off")
    assert alone.program.fingerprint == plain.program.fingerprint
    assert alone.program.text == plain.program.text
    np.testing.assert_array_equal(alone.margins["contact"], told.margins["contact"])
    for name in ("y", "v"):
        assert alone.state[name].tobytes() == told.state[name].tobytes() == plain.state[name].tobytes()
    assert alone.path_signature == told.path_signature == plain.path_signature
    assert plain.margins == {}


def test_what_cannot_be_told_is_refused_with_the_field(client):
    with pytest.raises(sg.InvalidArgument, match="contact, projection") as unknown:
        client.rollout(BALL, **work(), margins=["contact", "ground"])
    assert unknown.value.field == "spec.diagnostics.margins[1]"
    with pytest.raises(sg.InvalidArgument, match="keep") as kept:
        client.rollout(BALL, **work(), margins=["contact"], keep=True)
    assert kept.value.field == "spec.diagnostics.margins"
    with pytest.raises(sg.InvalidArgument, match="rollout") as gradient:
        client.gradient(BALL, **work(), margins=["contact"], objective="final_height")
    assert gradient.value.field == "spec.diagnostics.margins"


def test_a_pool_gives_those_of_one_server(server, told):
    with sg.Pool([server.target, server.target]) as pool:
        shared = pool.rollout(BALL, **work(), margins=SITES, record=["y"], path=True)
    for site in SITES:
        np.testing.assert_array_equal(shared.margins[site], told.margins[site])


def test_a_run_that_follows_a_path_has_those_of_its_tests(client, told):
    along = client.rollout(BALL, **work(), path=told.path, margins=["contact"])
    np.testing.assert_array_equal(along.margins["contact"], told.margins["contact"])
    with pytest.raises(sg.InvalidArgument, match="follows a path"):
        client.rollout(BALL, **work(), path=told.path, margins=["projection"])
    with pytest.raises(sg.InvalidArgument, match="its sites: contact, projection$"):
        client.rollout(BALL, **work(), path=told.path, margins=["margin contact"])


def test_a_loop_that_is_not_entered_tested_nothing(client):
    world = sg.World("bouncing_ball", contact="projection", elements=3, clamp=False, tol_enter=0.01)
    result = client.rollout(world, **work(), margins=["projection"])
    margins, iterations = result.margins["projection"], result.sites["projection"].iterations_max
    tested = ~np.isnan(margins)
    assert tested.any() and not tested.any(axis=-1).all()
    assert tested.sum(axis=-1).max() == iterations.max() + 1


def test_the_step_that_stops_an_instance_is_told(client):
    @sg.world
    def falls(x: sg.State, k: sg.Param = 1.0):
        small = sg.test("small", x < k)
        return sg.cond(small, lambda q: q + 0.4, lambda q: q / (q - q), x)

    how = dict(steps=4, initial={"x": [0.3, -9.0]}, path=True, margins=["small"])
    whole = client.rollout(falls, policy="f64", **how)
    stopped = client.rollout(falls, policy=sg.Policy("f64").nonfinite("stop"), **how)
    # The test fails in step 2, and x is 0 / 0 from then on.
    assert stopped.health[0].step == 2 and stopped.health[0].stopped
    assert stopped.path["small"][0].tolist() == [1, 1, 0, 0]
    np.testing.assert_array_equal(stopped.margins["small"][:, :3], whole.margins["small"][:, :3])
    assert stopped.margins["small"][0, 2] == stopped.events["small"].margin[2] > 0
    forced = client.rollout(falls, policy=sg.Policy("f64").nonfinite("stop"), **{**how, "path": stopped.path})
    assert not forced.forced["small"].count.any()
    assert forced.state["x"].tobytes() == stopped.state["x"].tobytes()


@pytest.mark.parametrize("code", ["ne", "eq", "lt"])
def test_a_comparison_with_nan_is_false_and_infinitely_far_from_true(client, code):
    """Also `ne`: the loop runs to its cap, and beside another test that one's margin is told."""

    def world(beside):
        @sg.world(level="all")
        def turns(x: sg.State, y: sg.State):
            b = sg.builder()

            def stops(z, _):
                unknown = getattr(b, code)(z, y)
                return unknown | (y > 8.0) if beside else unknown

            sg.while_loop(lambda z, n: (z * 1.0, n + 1), (x, b.value(np.int32(0))), until=stops, max_iter=3, site="loop")
            return {"x": x, "y": y}

        return turns

    work = dict(steps=1, initial={"x": [np.nan], "y": [1.0]}, policy="f64")
    alone, beside = (client.rollout(world(other), **work).sites["loop"] for other in (False, True))
    for loop in (alone, beside):
        assert loop.iterations_max[0] == 3 and loop.reasons[0].tolist() == [0, 0, 1, 0]
    assert alone.margin[0] == np.inf and alone.nan_margins[0] == alone.checks[0] == 4
    assert beside.margin[0] == -7.0 and beside.nan_margins[0] == 0


@pytest.mark.parametrize("instances", [1, 300])
def test_infinities_behind_a_number_make_no_nan_of_its_scale(client, instances):
    """sqrt(inf) is inf, and infinite behind a product with 0 is nothing beside the 0 that is compared: neither is a NaN,
    in little work, which the reference does, and in compiled code."""

    @sg.world
    def rooted(x: sg.State[2]):
        near = sg.test("root", np.sqrt(x) < 2.5)
        plain = sg.test("plain", x < 6.25)
        turns = sg.while_loop(lambda m: m + 1.0, 0.0, until=lambda m: np.sqrt(x[1]) < 2.5, max_iter=3, site="a")
        others = sg.while_loop(lambda m: m + 1.0, 0.0, until=lambda m: x[1] < 6.25, max_iter=3, site="b")
        return {"x": np.where(near & plain, x, x + 0 * (turns + others))}

    @sg.world
    def scaled(x: sg.State, k: sg.Param):
        d = (x - 1e200) / 1e-200 * k
        return {"x": np.where(sg.test("finite", d > -1.0), x, 0 * x)}

    run = client.rollout(
        rooted, steps=4, initial={"x": np.tile([1.0, np.inf], (instances, 1))}, policy="f64"
    )
    for site in ("root", "plain"):
        event = run.events[site]
        assert event.nan_margins.tolist() == [0] * 4 and event.margin_ulps[0] < 0, site
    assert run.sites["a"].reasons.tolist() == run.sites["b"].reasons.tolist()
    assert run.sites["a"].nan_margins.tolist() == [0] * 4
    run = client.rollout(
        scaled, steps=4, initial={"x": np.full(instances, 1e200)}, params={"k": 0.0}, policy="f64"
    )
    event = run.events["finite"]
    assert event.nan_margins.tolist() == [0] * 4 and event.margin.tolist() == [1.0] * 4
