"""client.sensitivity and client.tune against a live server."""

import numpy as np
import pytest
from one_by_one import OneByOne
from said import unbacked

import simgrad as sg
from simgrad.program import ProgramBuilder
from simgrad.why.tune import knobs_of

TOLERANCE = float.fromhex("0x1.06p-10")
START = -np.array([float.fromhex("0x1.04p-10")] + 8 * [2.0**-20])
PROJECTION = sg.World("boundary_projection", elements=9, tol=TOLERANCE)
DEPRESSURIZED = dict(
    steps=4, initial={"y": np.tile(START, (4, 1))}, params={"k": 0.5}, objective="final_penetration"
)
# Published: five penetrations whose sum meets the tolerance in one order and misses it in the other.
OCTAGON = sg.World("boundary_projection", elements=5, tol=2.0**-10)
OCTAGON_START = -np.array([float.fromhex("0x1.ffcp-11")] + 4 * [2.0**-23])


def octagon(client, **more):
    arguments = dict(
        steps=1,
        initial={"y": np.stack([OCTAGON_START, 2 * OCTAGON_START])},
        params={"k": 0.5, "alpha": 0.5},
        objective="final_penetration",
        policy=sg.Policy("f16_unsafe"),
        orders=["reversed", "sequential", "reversed"],
        stochastic=False,
    )
    return client.sensitivity(OCTAGON, **{**arguments, **more})


def test_the_knife_edge_is_the_site_that_flips_when_sums_are_reordered(client):
    result = octagon(client)
    first = result.sites[0]
    # The first instance stops in one order and goes on in the other; the second is far from the tolerance.
    assert (first.site, first.runs, first.share) == ("projection", 2, 2 / 6)
    assert result.parted.tolist() == [[True, False], [False, False], [True, False]]
    assert [s.site for s in result.sites] == ["projection", "contact"] and result.sites[1].runs == 0
    site = result.base.sites["projection"]
    assert (first.margin_ulps, first.instance_id, first.step) == (site.margin_ulps[0], 0, 0)
    assert result.why.startswith("`projection` is the knife edge: paths part there in 2 of 3 runs")
    assert result.differing == 2  # one order is the base's
    facts = {"site": "projection", "line": "", "flipped": 2, "runs": 3, "differing": 2, "share": result.parted.mean()}
    assert result.sentence.facts == facts and not unbacked(result.sentence)
    assert "2 of 3" in result.table() and result.why in repr(result)


def test_calls_are_those_of_the_runs_and_of_the_first_forks(client, tuned):
    with OneByOne(client.target) as old:
        for asked, runs in ((client, (1, 1)), (old, (2, 4))):
            assert octagon(asked, orders=["sequential"]).calls == runs[0]
            # An instance of two runs that part runs again, in base and run, and once along the other path.
            assert octagon(asked).calls == runs[1] + 2 * (2 + 1)
    assert tuned.calls == len(tuned.tried) + 2  # and the reference on both samples


def test_digits_are_those_of_the_answers(client):
    result = octagon(client)
    values = np.array([r.values for r in (result.base, *result.results)])
    mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
    np.testing.assert_allclose(result.value_digits[0], max(-np.log10(deviation[0] / mean[0]), 0))
    assert result.value_digits[0] < 2 < 7 < result.value_digits[1]
    assert result.gradient_digits["y"].shape == (2, 5) and result.gradient_digits["k"].shape == ()


def test_runs_that_do_not_differ_flip_nothing(client):
    result = octagon(client, orders=["sequential"], gradient=False)
    assert result.why == (
        "No number differs in the run: under this policy nothing is summed in another order or cast otherwise, or all of "
        "it is exact, so they tell nothing of rounding."
    )
    assert not result.parted.any() and not result.differing and not result.gradient_digits
    # f32 has 24 bits.
    np.testing.assert_allclose(result.value_digits, 24 * np.log10(2))


def test_sensitivity_refuses_what_makes_no_sense(client):
    for given, told in (
        (dict(runs=0), "runs 0: at least 1"),
        (dict(orders=[]), "orders, stochastic: without either no run differs"),
        (dict(orders="reversed"), "orders 'reversed'"),
    ):
        with pytest.raises(ValueError, match=told):
            octagon(client, **given)
    with pytest.raises(sg.InvalidArgument, match="sideways"):
        octagon(client, orders=["sideways"])


ROUNDED = ("state", "dynamics", "solver", "termination", "event", "network", "objective", "adjoint")


def test_runs_differ_in_shuffled_orders_and_in_stochastic_rounding(client):
    result = octagon(client, orders=True, stochastic=True, runs=4)
    assert result.names == [f"shuffled({k}), stochastic" for k in (1, 2, 3, 4)]
    for k, run in enumerate(result.results, 1):
        policy = sg.Policy("f16_unsafe")
        for role in (*ROUNDED, "tape", "gradient"):
            policy = policy.role(role, order=f"shuffled({k})")
        for role in ROUNDED:
            policy = policy.role(role, rounding="stochastic")
        alone = client.gradient(
            OCTAGON,
            steps=1,
            initial={"y": np.stack([OCTAGON_START, 2 * OCTAGON_START])},
            params={"k": 0.5, "alpha": 0.5},
            objective="final_penetration",
            policy=policy,
            seed=k,
        )
        assert (alone.path_signatures == run.path_signatures).all() and (alone.values == run.values).all()
        assert run.program.policy.roles["termination"].order == f"shuffled({k})"
    again = octagon(client, orders=True, stochastic=True, runs=4)
    assert repr(again) == repr(result)


@sg.world
def noisy(x: sg.State, k: sg.Param = 1.0):
    return x + k * sg.normal()


@noisy.objective
def last(x):
    return x


def test_a_world_that_draws_is_not_rounded_by_chance(client):
    work = dict(steps=2, initial={"x": [0.5]}, params={"k": 0.5}, objective="last", runs=2)
    with pytest.raises(ValueError, match="stochastic: this world draws random numbers"):
        client.sensitivity(noisy, **work)
    result = client.sensitivity(noisy, **work, stochastic=False, seed=5)
    assert result.why.startswith("No number differs in any of 2 runs") and not unbacked(result.sentence)
    assert (result.value_digits > 7).all()


def test_a_guard_is_in_the_path_and_not_in_the_signature_that_tune_keeps(client):
    """In bf16 x begins at 1, and the guard does not hold; the gradient is 1 either way."""

    @sg.world
    def lifts(x: sg.State):
        y = x - 1.0
        return {"x": np.where(y > 0, 1.0 + y, 2.0 + y)}

    @lifts.objective
    def end(x):
        return x

    work = dict(steps=1, initial={"x": np.full(4, 1 + 2.0**-12)}, objective="end")
    tuned = client.tune(lifts, bound=0.1, formats=["f64", "bf16"], **work)
    assert tuned.confirmed and "100.0% keep their path signature, which leaves out 1 guard (tune_test.py:" in tuned.why
    assert len(tuned.guards) == 1 and tuned.sentence.facts["guards"] == 1 and not unbacked(tuned.sentence)
    assert "keep their signature" in tuned.table() and "path of" not in tuned.why
    [pair] = client.compare(lifts, policies=["f64", tuned.policy], **work).pairs.values()
    assert pair.forks.count == 4


@pytest.mark.parametrize("level", ["decisions", "all"])
def test_a_tuned_policy_keeps_the_path_at_guards_where_the_level_counts_them(client, level):
    """Balls that a `where` reflects at a floor at 0."""

    @sg.world(level=level)
    def floor(x: sg.State, v: sg.State, k: sg.Param = 0.9):
        v = v - 0.0981
        x = x + 0.01 * v
        v = np.where(x < 0.0, -k * v, v)
        return {"x": np.where(x < 0.0, -x, x), "v": v}

    @floor.objective
    def end(x):
        return x

    work = dict(steps=200, initial={"x": np.linspace(0.3, 1, 16), "v": 0.0}, params={"k": 0.9}, objective="end")
    tuned = client.tune(floor, bound=0.5, formats=["f64", "f32", "bf16"], keep=1.0, **work)
    [pair] = client.compare(floor, policies={"f64": "f64", "tuned": tuned.policy}, **work).pairs.values()
    if level == "all":
        assert tuned.confirmed and not tuned.guards and "guard" not in tuned.why
        assert pair.forks.count == 0 and "takes the path of f64 in 16 of 16 instances" in str(pair)
    else:
        assert "keep their path signature, which leaves out 2 guards (tune_test.py:" in tuned.why
        assert pair.forks.count > 0 and len(set(tuned.guards)) == len(tuned.guards) == 2


def compares(x, k):
    return np.where(x > 1.0, 4 * k * x, 0.5 * k * x)


def factors(x, k):
    return sg.builder().lu(np.stack([np.stack([1 + 0 * x, 0.25 * k]), np.stack([x, 4 * k])]))[0, 1]


def takes(x, k):
    return np.stack([0.25 * k, 4 * k])[np.argmax(np.stack([1 + 0 * x, x]))]


def converts(x, k):
    return np.stack([0.25 * k, 4 * k])[x.astype("i4")]


LEFT_OUT = [
    *((step, level) for step in (factors, takes, converts) for level in ("", "loops")),
    (compares, "loops"),
    (factors, "decisions"),
    (factors, "all"),
]


@pytest.mark.parametrize("step, level", [*LEFT_OUT, (compares, "decisions"), (takes, "decisions"), (converts, "decisions"), (takes, "all")])
def test_what_signatures_leave_out_at_a_level_is_counted_where_a_policy_changes_it(client, step, level):
    """In bf16 three x are 1, where the steps choose otherwise than beside it."""

    @sg.world(level=level)
    def chosen(x: sg.State, k: sg.Param = 0.5):
        return step(x, k)

    @chosen.objective
    def end(x):
        return x

    near = 1 - 2.0**-12 if step is converts else 1 + 2.0**-12
    work = dict(steps=1, initial={"x": np.array([near, near, 0.5, near])}, params={"k": 0.5}, objective="end")
    tuned = client.tune(chosen, bound=100.0, formats=["f64", "bf16"], **work)
    [pair] = client.compare(chosen, policies={"f64": "f64", "tuned": tuned.policy}, **work).pairs.values()
    assert tuned.confirmed and tuned.tried[-1].kept == 1.0 and not tuned.guards and not unbacked(tuned.sentence)
    if (step, level) in LEFT_OUT:
        line = tuned.unsigned[0]
        assert len(tuned.unsigned) == tuned.sentence.facts["unsigned"] == 1 and (level == "") == (line == "")
        at = f" ({line})" if line else ""
        assert f"100.0% keep their path signature, which leaves out 1 decision{at}, and gradients" in tuned.why
        assert pair.forks.count == 3
    else:
        assert not tuned.unsigned and "leaves out" not in tuned.why and pair.forks.count == 0


def test_guards_and_other_decisions_are_counted_apart(client):
    @sg.world(level="loops")
    def several(x: sg.State):
        y = sg.while_loop(lambda y: 0.5 * y, x, until=lambda y: y < 0.3, max_iter=9, site="halve")
        return np.where(x > 0.0, y, x) + (x > 4.0) * 1.0 + np.where(sg.test("big", x > 5.0), 1.0, np.where(x > 3.0, 1.0, 0.0))

    @several.objective
    def end(x):
        return x

    tuned = client.tune(several, bound=1.0, formats=["f64", "f32"], steps=1, initial={"x": np.full(2, 0.75)}, objective="end")
    assert len(tuned.guards) == 1 and len(tuned.unsigned) == 2
    assert "; on 1 other instance the policy holds: " in tuned.why and tuned.sentence.facts["instances"] == 1
    assert ", which leaves out 1 guard and 2 other decisions (tune_test.py:" in tuned.why and not unbacked(tuned.sentence)
    assert (tuned.sentence.facts["guards"], tuned.sentence.facts["unsigned"]) == (1, 2)


@sg.world
def shrunk(x: sg.State, k: sg.Param = 1.0, tol: sg.Config = 1e-3):
    return {"x": sg.fixed_point(lambda y: y - 0.5 * (y * y - k * x) / y, x, tol=tol, max_iter=20, site="newton")}


@sg.world
def pushed(x: sg.State, k: sg.Param = 1.0):
    with sg.role("solver"):
        near = sg.test("near", x < 100.0)
    return {"x": np.where(near, k * x, x)}


def accepted():
    b = ProgramBuilder("accepted")
    x, k = b.state("x"), b.param("k", default=1.0)
    b.next(x=b.accept("acc", x, "le", 100.0, 0.9 * k * x, x))
    return sg.World(program=b.build())


def text_with(client, world, policy):
    return client.program(world, policy=policy).text


@pytest.mark.parametrize("world, site", [(shrunk, "newton"), (accepted(), "acc"), (pushed, "near")])
def test_a_site_that_compares_is_a_knob_whatever_is_computed_for_it(client, world, site):
    knobs = knobs_of(client.program(world).source, None, None)
    assert [str(knob) for knob in knobs if knob.kind == "site"] == [f"site {site}"]
    assert text_with(client, world, sg.Policy("f64").site(site, format="f32")) != text_with(client, world, "f64")


@sg.world
def beside(y: sg.State, z: sg.State, k: sg.Param = 1.0):
    return {"y": y * 0.5 + k, "z": z * 10.0}


@beside.objective
def halved(y):
    return y


def test_a_policy_under_which_instances_are_not_finite_does_not_hold(client):
    """z is beyond f16 in step 4 from 1. No test and no gradient depends on it."""
    work = dict(steps=6, params={"k": 1.0}, objective="halved", bound=0.01, formats=["f64", "f32", "f16"])
    y = [0.5, 0.25, 0.125, 1.0]
    result = client.tune(beside, initial={"y": y, "z": np.ones(4)}, **work)
    assert result.confirmed and result.formats["state"] == result.formats["dynamics"] == "f32"
    assert client.rollout(beside, steps=6, initial={"y": y, "z": np.ones(4)}, params={"k": 1.0}, policy=result.policy).ok.all()
    refused = [t for t in result.tried if t.nonfinite]
    assert refused and all((t.nonfinite, t.kept, t.error, t.holds) == (2, 1.0, 0.0, False) for t in refused)
    assert result.table().count("fails: 2 not finite where the reference is") == len(refused)
    # Only the instances that confirm are beyond f16, or only one of them.
    for z, bad in (([1e-3, 1.0, 1e-3, 1.0], 2), ([1e-3, 1.0, 1e-3, 1e-3], 1)):
        result = client.tune(beside, initial={"y": y, "z": z}, keep=0.0, **work)
        assert result.formats["state"] == "f16" and not result.confirmed and result.tried[-1].nonfinite == bad
        assert f"does not hold: 100.0% keep their path signature, and gradients are off by 0; {bad} are not finite" in result.why
        assert not unbacked(result.sentence)
    with pytest.raises(ValueError, match="with f16 in every role 2 instances are not finite where the reference's are"):
        client.tune(beside, initial={"y": y, "z": np.ones(4)}, **{**work, "formats": ["f16"]})


TUNED = dict(bound=0.01, roles=["state", "solver", "adjoint"], sites=["projection"])


@pytest.fixture(scope="module")
def tuned(client):
    return client.tune(PROJECTION, **DEPRESSURIZED, **TUNED)


def test_the_sum_behind_the_stopping_test_stays_wide_and_all_else_is_cheap(tuned):
    assert tuned.formats == {"state": "bf16", "solver": "bf16", "adjoint": "bf16", "site projection": "f32"}
    assert (tuned.cost, tuned.cost_before) == (16 * 3 + 32, 64 * 4) and tuned.confirmed
    assert tuned.search_ids.tolist() == [0, 2] and tuned.confirmation_ids.tolist() == [1, 3]
    assert tuned.tried[-1].sample == "confirmation" and {t.sample for t in tuned.tried[:-1]} == {"search"}
    assert tuned.why.startswith("80 instead of 256 bits; on 2 other instances the policy holds: 100.0% keep their path signature, ")
    said, last = tuned.sentence, tuned.tried[-1]
    assert not unbacked(said) and said.facts["instances"] == len(tuned.confirmation_ids)
    assert (said.facts["kept"], said.facts["error"], said.facts["holds"]) == (last.kept, last.error, last.holds)
    assert (said.facts["cost"], said.facts["cost_before"]) == (tuned.cost, tuned.cost_before)
    assert "site projection bf16" in tuned.table() and "fails" in tuned.table()


def holds(client, policy, rows):
    """Path and gradient of a policy against f64, from answers that are asked for here."""
    work = {**DEPRESSURIZED, "initial": {"y": DEPRESSURIZED["initial"]["y"][rows]}}
    truth, g = (client.gradient(PROJECTION, **work, policy=p, instance_ids=rows) for p in ("f64", policy))
    off = max(
        np.linalg.norm(np.asarray(b, np.float64) - a) / np.linalg.norm(a)
        for a, b in ((truth.params["k"], g.params["k"]), (truth.initial["y"], g.initial["y"]))
    )
    return np.mean(truth.path_signatures == g.path_signatures) >= 0.99 and off <= TUNED["bound"]


def test_no_role_and_no_site_alone_can_go_lower(client, tuned):
    assert holds(client, tuned.policy, [0, 2]) and holds(client, tuned.policy, [1, 3])
    formats, tries = ("f64", "f32", "bf16"), 0
    for name, format in tuned.formats.items():
        for lower in formats[formats.index(format) + 1 :]:
            if name.startswith("site "):
                policy = tuned.policy.site(name.removeprefix("site "), format=lower)
            else:
                policy = tuned.policy.role(name, format=lower)
            assert not holds(client, policy, [0, 2]), (name, lower)
            tries += 1
    assert tries == 1


def test_a_search_repeats_to_the_bit(client, tuned):
    again = client.tune(PROJECTION, **DEPRESSURIZED, **TUNED)
    assert again.table() == tuned.table() and again.policy == tuned.policy and again.calls == tuned.calls


def test_a_wider_bound_and_a_smaller_share_let_more_go(client):
    free = client.tune(PROJECTION, **DEPRESSURIZED, **{**TUNED, "bound": float("inf")}, keep=0.0)
    assert set(free.formats.values()) == {"bf16"}


def test_a_format_that_the_server_does_not_take_is_refused_in_the_table(client):
    result = client.tune(PROJECTION, **DEPRESSURIZED, bound=0.01, roles=["solver"], sites=[], formats=["f64", "e4m3"])
    assert result.formats == {"solver": "f64"}
    assert result.tried[1].refused and "refused" in result.table() and not result.tried[1].holds


def test_what_holds_on_one_sample_alone_is_not_confirmed(client):
    # Even instances are far from the tolerance; odd ones stand on it.
    y = np.stack([8 * START, START, 8 * START, START])
    result = client.tune(PROJECTION, **{**DEPRESSURIZED, "initial": {"y": y}}, bound=0.5, roles=[], sites=["projection"])
    assert result.formats == {"site projection": "bf16"} and not result.confirmed and not result.tried[-1].holds
    assert "does not hold" in result.why


def test_cost_is_the_weighted_sum_of_bits(client):
    result = client.tune(PROJECTION, **DEPRESSURIZED, bound=0.01, roles=["state"], sites=["projection"], cost={"state": 3, "site projection": 0.5})
    assert result.cost == 3 * 16 + 0.5 * 32 and result.cost_before == 3.5 * 64


def test_progress_deadline_and_cancellation_hold_for_all_calls(client):
    told = []
    client.tune(PROJECTION, **DEPRESSURIZED, **TUNED, progress=lambda *step: told.append(step))
    done = [d for _, d, _ in told]
    assert done == sorted(done) and told[-1][1] == told[-1][2] and {p for p, _, _ in told} == {"tune"}
    for call in (client.tune, client.sensitivity):
        more = TUNED if call == client.tune else dict(runs=2)
        with pytest.raises(sg.DeadlineExceeded):
            call(PROJECTION, **{**DEPRESSURIZED, "steps": 40000}, **more, timeout=0.2)

        def leave(phase, done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            call(PROJECTION, **DEPRESSURIZED, **more, progress=leave)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (dict(formats=[]), "formats"),
        (dict(formats=["f64", "f31"]), "'f31' is none of f64"),
        (dict(formats=["bf16", "f64"]), "the first must have more bits"),
        (dict(bound=-1.0), "bound -1.0"),
        (dict(keep=1.5), "keep 1.5"),
        (dict(roles=["solve"]), "roles: solve is none of"),
        (dict(sites=["rest"]), "sites: rest is none of contact, projection"),
        (dict(cost={"site rest": 1}), "cost: site rest is none of"),
        (dict(roles=[], sites=[]), "at least one that may be lowered"),
        (dict(initial={"y": START}), "instances: at least 2"),
        (dict(formats=["bf16"], bound=1e-3), "begin with a wider format"),
    ],
)
def test_tune_refuses_what_makes_no_sense(client, given, told):
    with pytest.raises(ValueError, match=told):
        client.tune(PROJECTION, **{**DEPRESSURIZED, **TUNED, **given})


@sg.world
def logarithm(x: sg.State):
    return np.log(x)


@logarithm.objective
def last(x):
    return x


def test_tune_does_not_follow_a_reference_that_is_not_finite(client):
    for starts, bad in (([0.5, 3.0, 0.2, 3.0], "2 of 2"), ([3.0, 3.0, 0.2, 3.0], "1 of 2")):
        work = dict(steps=2, initial={"x": np.array(starts)}, objective="last", formats=["f64", "f32"], bound=0.1)
        with pytest.raises(ValueError, match=f"^reference: {bad} instances have .* that are not finite"):
            client.tune(logarithm, **work)
