"""Calls with a vjp of their own, halts and random draws, end to end."""

import numpy as np
import pytest

import simgrad as sg

STEPS = 5


@sg.custom_vjp
def clipped(x, most):
    """x, at most `most`; its cotangent passes everywhere, and says of `most` how much is missing."""
    return np.minimum(x, most), x - most


@clipped.defvjp
def clipped_vjp(args, results, cotangents):
    x, most = args
    g, _ = cotangents
    return g, sg.where(x > most, g * results[1], 0.0)


@sg.world
def straight_through(x: sg.State, k: sg.Param):
    y, over = clipped(k * x, 2.0 * k)
    return {"x": y + 0.0 * over}


@straight_through.objective
def end(x):
    return x


def test_a_custom_vjp_takes_the_place_of_the_derivative(client):
    g = client.gradient(
        straight_through,
        steps=1,
        initial={"x": [1.0, 3.0]},
        params={"k": np.array([3.0, 3.0])},
        objective="end",
        policy="f64",
    )
    np.testing.assert_array_equal(g.state["x"], [3.0, 6.0])
    # Straight through: the cotangent of k x is 1 in both instances; 9 - 6 is missing in the second.
    np.testing.assert_array_equal(g.initial["x"], [3.0, 3.0])
    np.testing.assert_array_equal(g.params["k"], [1.0, 3.0 + 2.0 * 3.0])
    assert "call" not in g.program.text


def test_a_custom_vjp_without_a_vjp_says_so():
    @sg.custom_vjp
    def f(x):
        return x

    with pytest.raises(TypeError, match="f has no vjp"):

        @sg.world
        def w(x: sg.State):
            return {"x": f(x)}

        w.program


@sg.world
def walk(x: sg.State, drift: sg.Param = 0.25, far: sg.Config = 1.0):
    following = x + drift + 0.5 * sg.normal() + 0.0 * sg.uniform((3,)).sum()
    sg.halt("far", abs(following) > far)
    return {"x": following}


@walk.objective
def spread(x):
    return x * x


def words(key, counter):
    """Philox4x32-10, written once more."""
    mask = 0xFFFFFFFF
    k0, k1 = key & mask, key >> 32
    c = list(counter)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & mask, (a >> 32) ^ c[3] ^ k1, a & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c


def splitmix(z):
    mask = (1 << 64) - 1
    z = (z + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def normal(seed, instance, step):
    w = words(splitmix(seed ^ splitmix(instance)), [0, step, 0, 0])
    u = (((w[0] << 32 | w[1]) >> 11) + 1) * 2.0**-53
    v = ((w[2] << 32 | w[3]) >> 11) * 2.0**-53
    return np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)


def test_a_walk_is_that_of_its_seed_and_halts_far_away(client):
    ids = [7, 3, 11, 4, 19, 23]
    r = client.rollout(
        walk, steps=STEPS, initial={"x": np.zeros(6)}, instance_ids=ids, seed=5, policy="f64"
    )
    halted = {h.instance: h for h in r.halted}
    for row, instance in enumerate(ids):
        x, ended = 0.0, None
        for t in range(STEPS):
            x += 0.25 + 0.5 * normal(5, instance, t)
            if abs(x) > 1.0:
                ended = t
                break
        np.testing.assert_allclose(r.state["x"][row], x, rtol=1e-12)
        assert (ended is None) == (row not in halted)
        if ended is not None:
            assert (halted[row].step, halted[row].halt, halted[row].error) == (ended, "far", False)
    assert 0 < len(halted) < 6
    assert set(r.state) == {"x"}


def test_draws_hang_on_the_instance_and_not_on_its_place(client):
    options = dict(steps=STEPS, policy="f32", params={"drift": 0.1})
    both = client.rollout(walk, initial={"x": np.zeros(2)}, instance_ids=[8, 2], seed=1, **options)
    alone = client.rollout(
        walk, initial={"x": np.zeros(1)}, instance_ids=[2], seed=1, chunk_steps=2, **options
    )
    other = client.rollout(walk, initial={"x": np.zeros(1)}, instance_ids=[2], seed=2, **options)
    assert both.state["x"][1] == alone.state["x"][0]
    assert other.state["x"][0] != alone.state["x"][0]


def test_the_gradient_of_a_walk_is_that_of_its_numbers(client):
    def ask(drift, **options):
        call = client.gradient if options else client.rollout
        return call(
            walk,
            steps=STEPS,
            initial={"x": np.zeros(6)},
            params={"drift": drift},
            objective="spread",
            seed=5,
            policy="f64",
            **options,
        )

    g = ask(0.25, checkpoint_interval=2)
    assert 0 < len(g.halted) < 6
    slope = (ask(0.25 + 1e-7).value - ask(0.25 - 1e-7).value) / 2e-7
    assert float(g.params["drift"]) == pytest.approx(slope, rel=1e-6)


@sg.world
def fenced(x: sg.State, k: sg.Param = 2.0):
    sg.halt("fence", x > 3.0, error=True)
    sg.observe("gain", k)  # an input itself
    return {"x": x + k}


@fenced.objective
def worth(x, k):
    return k * x


def test_a_cost_reads_inputs_that_are_observed_beside_a_halt(client):
    ask = dict(steps=3, initial={"x": [-9.0, 0.0]}, params={"k": 2.0}, objective="worth", policy="f64")
    g = client.gradient(fenced, **ask, record=["gain"])
    assert [(h.instance, h.error) for h in g.halted] == [(1, True)]
    assert g.values.tolist() == [2.0 * (-9.0 + 3 * 2.0), 0.0]
    # d/dk k (x + 3 k); the instance that failed has no gradient.
    assert float(g.params["k"]) == -9.0 + 6 * 2.0
    assert g.trajectory["gain"][0].tolist() == [2.0, 2.0, 2.0]


@sg.world
def resting(x: sg.State, p: sg.Param, tol: sg.Config = 1e-14):
    return {"x": sg.fixed_point(lambda y: np.cos(p * y), x, tol=tol, max_iter=500, site="rest")}


@resting.objective
def place(x):
    return x


def by_p(client, loops, world=resting):
    return client.gradient(
        world,
        steps=1,
        initial={"x": [0.3, 0.9]},
        params={"p": np.array([0.5, 0.8])},
        objective="place",
        policy="f64",
        loops=loops,
    )


@pytest.mark.parametrize("policy", ("f32", "bf16_unsafe", "f16_unsafe", "f16_safe", "fp8_storage"))
def test_a_fixed_point_is_found_in_every_format(client, policy):
    found = client.rollout(
        resting(tol=0.02), steps=1, initial={"x": [0.3, 0.9]}, params={"p": 0.5}, policy=policy
    )
    assert found.ok.all()
    np.testing.assert_allclose(found.state["x"].astype(float), 0.9004, atol=0.02)
    assert (found.sites["rest"].iterations_max > 1).all()


def test_a_fixed_point_is_differentiated_as_the_request_says(client):
    g = by_p(client, None)
    x, p = g.state["x"], np.array([0.5, 0.8])
    exact = -x * np.sin(p * x) / (1 + p * np.sin(p * x))
    np.testing.assert_allclose(g.params["p"], exact, rtol=1e-11)
    for implicit in (
        sg.Implicit(),
        sg.Implicit("lu"),
        sg.Implicit("iteration", tol=1e-14),
        sg.Implicit("gmres", tol=1e-14, restart=1),
    ):
        solved = by_p(client, {"rest": implicit})
        np.testing.assert_allclose(solved.params["p"], exact, rtol=1e-12)
        assert not solved.initial["x"].any()
        assert solved.program.fingerprint != g.program.fingerprint
        assert "last=1" in solved.program.text
    one = by_p(client, {"rest": sg.Truncated(1)})
    np.testing.assert_allclose(one.params["p"], -x * np.sin(p * x), rtol=1e-12)
    np.testing.assert_array_equal(one.state["x"], g.state["x"])


def test_an_implicit_derivative_of_a_loop_at_its_cap_is_told(client):
    endless = resting(tol=0.0)  # no change is below it
    told = by_p(client, {"rest": sg.Implicit()}, endless)
    assert [w.split(":")[0] for w in told.warnings] == ["2 runs of loop 'rest' are unconverged"]
    assert by_p(client, {"rest": sg.Implicit()}).warnings == []
    assert by_p(client, {"rest": sg.Truncated(3)}, endless).warnings == []
    assert by_p(client, None, endless).warnings == []
    kept = client.rollout(
        endless,
        steps=1,
        initial={"x": [0.3, 0.9]},
        params={"p": np.array([0.5, 0.8])},
        objective="place",
        policy="f64",
        keep=True,
    )
    reversed_again = kept.vjp(loops={"rest": sg.Implicit()})
    assert reversed_again.reused and reversed_again.warnings == told.warnings


def test_how_the_solves_of_an_adjoint_ended_is_told(client):
    exact = by_p(client, {"rest": sg.Implicit()})
    assert exact.adjoint_solves == {}
    g = by_p(client, {"rest": sg.Implicit("iteration", tol=1e-6)})
    solves = g.adjoint_solves["rest.adjoint"]
    # w <- g + J w from g, J = -p sin(p x): the first power of J below 1e-6.
    x, p = g.state["x"], np.array([0.5, 0.8])
    shrinks = np.abs(p * np.sin(p * x))
    turns = np.ceil(np.log(1e-6) / np.log(shrinks))
    assert (solves.solves, solves.turns, solves.most_turns) == (2, turns.sum(), turns.max())
    assert (solves.capped, g.warnings) == (0, [])
    assert solves.residual == pytest.approx((shrinks**turns).max(), rel=1e-9)
    capped = by_p(client, {"rest": sg.Implicit("iteration", tol=1e-6, max_iter=int(turns.min()))})
    assert capped.adjoint_solves["rest.adjoint"].capped == 1
    assert [w.split(" ended")[0] for w in capped.warnings] == ["1 solves at 'rest.adjoint'"]
    # The rollout is that of every other choice, and so is what is kept of it.
    assert capped.path_signatures.tolist() == exact.path_signatures.tolist()
    kept = client.rollout(
        resting,
        steps=1,
        initial={"x": [0.3, 0.9]},
        params={"p": np.array([0.5, 0.8])},
        objective="place",
        policy="f64",
        keep=True,
    )
    again = kept.vjp(loops={"rest": sg.Implicit("iteration", tol=1e-6, max_iter=int(turns.min()))})
    assert again.reused and again.adjoint_solves == capped.adjoint_solves
    np.testing.assert_array_equal(again.params["p"], capped.params["p"])


@pytest.mark.parametrize("policy", ("f64", "f32", "bf16_unsafe", "f16_unsafe", "f16_safe"))
@pytest.mark.parametrize("solver", ("iteration", "gmres"))
def test_a_solve_without_a_tolerance_ends_below_its_cap_in_every_format(client, policy, solver):
    def slope(implicit):
        g = client.gradient(
            resting(tol=0.02),
            steps=1,
            initial={"x": [0.3, 0.9]},
            params={"p": np.array([0.5, 0.8])},
            objective="place",
            # Told in role gradient, where that has f32.
            policy=sg.Policy(policy).role("gradient", format="f64"),
            loops={"rest": implicit},
        )
        return g, g.adjoint_solves.get("rest.adjoint")

    g, told = slope(sg.Implicit(solver))
    assert (told.solves, told.capped, g.warnings) == (2, 0, [])
    exact, _ = slope(sg.Implicit("lu"))
    # bf16 rounds to 2^-8; a residual of 4 eps is 2^-5 of it, and |w| < 2 |g|.
    np.testing.assert_allclose(g.params["p"], exact.params["p"], rtol=2**-4 if "bf16" in policy else 2**-7)


MANY = 600


@sg.world
def many_numbers(x: sg.State[MANY], p: sg.Param):
    def moved(y):
        return -3.0 * y + 0.5 * np.concatenate([0.0 * y[:1], y[:-1]]) + p

    return {"x": sg.fixed_point(moved, x, tol=1e-6, max_iter=2, site="many")}


@many_numbers.objective
def all_of_them(x):
    return np.sum(x)


def test_many_numbers_that_do_not_contract_are_solved_by_gmres(client):
    def ask(implicit, policy="f64"):
        return client.gradient(
            many_numbers,
            steps=1,
            initial={"x": np.zeros((2, MANY))},
            params={"p": 0.0},
            objective="all_of_them",
            policy=policy,
            loops={"many": implicit},
        )

    system = 4.0 * np.eye(MANY) - 0.5 * np.eye(MANY, k=-1)
    exact = 2 * np.linalg.solve(system, np.ones(MANY)).sum()
    for restart in (0, 3):
        g = ask(sg.Implicit("gmres", tol=1e-12, restart=restart))
        assert float(g.params["p"]) == pytest.approx(exact, rel=1e-11)
        assert g.adjoint_solves["many.adjoint"].capped == 0 and g.warnings == []
    # In f32 a residual of 1e-12 is out of reach: told, and the derivative is as good as f32 is.
    rounded = ask(sg.Implicit("gmres", tol=1e-12, max_iter=40), policy="f32")
    assert float(rounded.params["p"]) == pytest.approx(exact, rel=1e-6)
    told = rounded.adjoint_solves["many.adjoint"]
    assert (told.solves, told.turns, told.capped) == (2, 80, 2) and told.residual < 1e-6
    assert ask(sg.Implicit("iteration", max_iter=9)).adjoint_solves["many.adjoint"].capped == 2
    # A tolerance that is left open is one that the format of the solve reaches.
    for policy, eps in (("f64", 2.0**-52), ("f32", 2.0**-23), ("bf16_safe", 2.0**-7)):
        g = ask(sg.Implicit("gmres"), policy)
        told = g.adjoint_solves["many.adjoint"]
        assert told.capped == 0 and g.warnings == [], (policy, told)
        assert told.residual <= max(1e-9, 4 * eps)
    with pytest.raises(sg.InvalidArgument, match="limit of solver lu is 512"):
        ask(sg.Implicit("lu"))
    with pytest.raises(sg.InvalidArgument, match="513 is not in 1 to 512") as caught:
        ask(sg.Implicit("gmres", restart=513))
    assert caught.value.field == "loops[0].implicit.restart"


def test_a_loop_that_is_not_there_is_named(client):
    with pytest.raises(sg.InvalidArgument, match="no loop 'newton'") as caught:
        by_p(client, {"newton": sg.Truncated(1)})
    assert caught.value.field == "loops[0].site"


@sg.custom_vjp
def always(x):
    return 3.5


@always.defvjp
def always_vjp(args, results, cotangents):
    return cotangents


@sg.custom_vjp
def through(x):
    return x


@through.defvjp
def through_vjp(args, results, cotangents):
    return 2.0 * cotangents


def test_what_a_custom_vjp_hands_on_is_observed_in_the_format_of_its_role(client):
    """A literal, and a param, that leave a body as they are."""

    @sg.world
    def observed(x: sg.State, k: sg.Param = 0.3):
        sg.observe("literal", always(x))
        sg.observe("given", through(k))
        sg.observe("itself", k)
        return {"x": x + through(k) + always(x)}

    answer = client.rollout(
        observed,
        steps=2,
        initial={"x": 0.0},
        policy="f16_unsafe",
        record=["literal", "given", "itself"],
    )
    np.testing.assert_array_equal(answer.trajectory["literal"].ravel(), [3.5, 3.5])
    np.testing.assert_array_equal(answer.trajectory["given"], answer.trajectory["itself"])
    assert answer.trajectory["given"][0, 0] == np.float16(0.3)
