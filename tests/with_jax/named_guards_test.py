"""Names of the author's at comparisons that only guard a `where`: answers have them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import simgrad.jax
from simgrad.program_lines import operations


@pytest.fixture(scope="module", autouse=True)
def in_f64():
    with jax.enable_x64(True):
        yield


START = {"z": 0.1 - 1e-10, "v": 0.0}


def fallen(state, params):
    depth = 0.1 - state["z"]
    force = jnp.where(depth > 0, params["k"] * depth - 5.0, 0.0)
    return pushed(state, force)


def pushed(state, force):
    drag = jnp.where(state["v"] > 0, 0.5, 0.25) + jnp.where(state["v"] < -2.0, 1.0, 0.0)
    v = state["v"] + 0.01 * (force - 9.81 - drag * state["v"])
    return {"z": state["z"] + 0.01 * v, "v": v}


def world_of(step, names, **options):
    """`names` by the function and the line in it, counted from its def."""
    sites = {f"named_guards_test.py:{f.__code__.co_firstlineno + n}": name for (f, n), name in names.items()}
    return simgrad.jax.world(step, state=START, params={"k": 100.0}, sites=sites,
                             objective={"o": lambda state: state["z"]}, **options)  # fmt: skip


WORK = {"steps": 3, "initial": START, "params": {"k": 100.0}, "objective": "o"}


def test_a_guard_with_a_name_is_an_event_of_this_name(client):
    plain, named = world_of(fallen, {}), world_of(fallen, {(fallen, 2): "contact"})
    before, found = (client.gradient(w, policy="f64", **WORK) for w in (plain, named))
    assert list(before.events) == ["named_guards_test.pushed.1"]
    assert list(found.events) == ["contact", "named_guards_test.pushed.1"]
    event = found.events["contact"]
    assert event.line == f"named_guards_test.py:{fallen.__code__.co_firstlineno + 2}" and event.kind == "event"
    np.testing.assert_allclose(event.margin[0], 1e-10, rtol=1e-6)
    assert found.value == before.value and found.params["k"] == before.params["k"]
    assert [site.kind for site in named.sites if site.name == "contact"] == ["event"]


def test_a_comparison_of_policies_tells_a_guard_by_its_name(client):
    named = world_of(fallen, {(fallen, 2): "contact"})
    told = client.compare(named, policies=["f64", "bf16_safe"], **WORK)
    assert told.pairs["bf16_safe"].forks.first.site == "contact"
    f64, bf16 = (client.rollout(named, policy=p, **{k: x for k, x in WORK.items() if k != "objective"}) for p in ("f64", "bf16_safe"))
    assert (f64.path_signatures != bf16.path_signatures).all()


@pytest.mark.parametrize("level", ["decisions", "all", "loops"])
def test_a_line_that_has_its_name_from_another_test_keeps_its_guard(level):
    plain, named = world_of(fallen, {}, tests=level), world_of(fallen, {(pushed, 1): "drag"}, tests=level)
    codes = [[op.code for op in operations(w.program)] for w in (plain, named)]
    assert codes[0] == codes[1] and "event" not in codes[0]
    assert {site.kind for site in named.sites if site.name == "drag"} == {"guard", "event"}


def test_a_guard_and_a_test_with_one_name_have_their_lines(client):
    named = world_of(fallen, {(fallen, 2): "decided", (pushed, 1): "decided"})
    answer = client.rollout(named, steps=1, initial=START, params={"k": 100.0}, policy="f64")
    first, second = (f.__code__.co_firstlineno + n for f, n in ((fallen, 2), (pushed, 1)))
    lines = {name: event.line for name, event in answer.events.items()}
    assert lines == {"decided": f"named_guards_test.py:{first}", "decided#1": f"named_guards_test.py:{second}"}
    assert [answer.events[name].margin[0] for name in lines] == [0.1 - START["z"], 2.0]


def test_a_name_that_a_guard_has_of_its_own_tells_the_line_of_the_test(client):
    named = world_of(fallen, {(pushed, 1): "named_guards_test.fallen.1"})
    answer = client.rollout(named, steps=1, initial=START, params={"k": 100.0}, policy="f64")
    [event] = answer.events.values()
    assert event.line == f"named_guards_test.py:{pushed.__code__.co_firstlineno + 1}"
