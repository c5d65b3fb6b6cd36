"""Worlds of unsigned integers, end to end, beside NumPy's."""

import numpy as np
import pytest

import simgrad as sg
from simgrad.operation_writer import U32
from simgrad.v1.program_pb2 import ELEMENT_TYPE_U8 as U8
from simgrad.program import ProgramBuilder

STEPS = 40


def xorshift():
    """Marsaglia's generator in a u32, its lowest byte added up in a u8, and a uniform number."""
    b = ProgramBuilder("xorshift")
    x, total, u = b.state("x", element=U32), b.state("total", element=U8), b.state("u")

    def places(n):
        return b.literal(n, element=U32)

    for code, n in (("shl", 13), ("shr", 17), ("shl", 5)):
        x = b.xor(x, b.apply(code, x, places(n)))
    b.next(x=x, total=total + b.convert(x, U8), u=b.convert(x, 0) * 2.0**-32)
    return sg.World(program=b.build())


def test_a_generator_of_random_numbers_gives_the_bits_of_numpy(client):
    x = np.array([1, 2463534242, 0xFFFFFFFF], np.uint32)
    start = {"x": x, "total": np.array([0, 1, 255], np.uint8), "u": np.zeros(3)}
    r = client.rollout(
        xorshift(), steps=STEPS, initial=start, policy="f64", record=["x", "total", "u"]
    )
    total = start["total"]
    for t in range(STEPS):
        x = x ^ (x << np.uint32(13))
        x = x ^ (x >> np.uint32(17))
        x = x ^ (x << np.uint32(5))
        total = total + x.astype(np.uint8)
        np.testing.assert_array_equal(r.trajectory["x"][:, t + 1], x)
        np.testing.assert_array_equal(r.trajectory["total"][:, t + 1], total)
        np.testing.assert_array_equal(r.trajectory["u"][:, t + 1], x / 2.0**32)
    assert r.state["x"].dtype == np.uint32 and r.state["total"].dtype == np.uint8
    np.testing.assert_array_equal(r.state["x"], x)
    np.testing.assert_array_equal(r.state["total"], total)


@pytest.mark.parametrize("name, bad", [("x", -1), ("x", 2**32), ("total", 256)])
def test_a_number_that_does_not_fit_is_refused(client, name, bad):
    start = {"x": np.int64(0), "total": np.int64(0), "u": 0.0, name: np.int64(bad)}
    with pytest.raises(sg.SimgradError, match=f"is {bad}; '{name}' takes 0 to"):
        client.rollout(xorshift(), steps=1, initial=start)


def test_constants_of_i64_are_exact_beyond_the_integers_of_f64(client):
    """A literal travels as f64; a hash or a mask of 64 bits has more."""
    numbers = np.array([2**53 + 1, -(2**62) - 3, 2**63 - 1, -(2**63), 5])

    @sg.world
    def wide(x: sg.State(5, dtype="i64"), same: sg.State(5, dtype="bool") = False):
        flipped = x ^ np.int64(2**60 + 1)
        return {"x": flipped + numbers, "same": x == numbers}

    sent = np.array([2**53 + 1, 0, -1, -(2**63), 2**60])
    r = client.rollout(wide, steps=1, initial={"x": sent}, instances=1)
    np.testing.assert_array_equal(r.state["x"].reshape(-1), (sent ^ (2**60 + 1)) + numbers)
    np.testing.assert_array_equal(r.state["same"].reshape(-1), sent == numbers)


def test_indices_of_u8_reach_the_end_of_a_longer_axis(client):
    table = np.arange(300.0)

    @sg.world
    def look(i: sg.State(2, dtype="u8"), x: sg.State[2], y: sg.State[300]):
        return {"x": sg.builder().value(table)[i], "y": y.at[i].set(-1.0)}

    r = client.rollout(look, steps=1, initial={"i": np.array([3, 255], np.uint8), "x": np.zeros(2), "y": table})
    np.testing.assert_array_equal(r.state["x"].reshape(-1), [3.0, 255.0])
    expected = table.copy()
    expected[[3, 255]] = -1.0
    np.testing.assert_array_equal(r.state["y"].reshape(-1), expected)


def test_inputs_of_integers_are_read_as_such(client):
    @sg.world
    def scattered(a: sg.State[3], i: sg.Param(2, dtype="i32"), k: sg.Data(dtype="u8"), on: sg.Control(dtype="bool")):
        return np.where(on, a.at[i].add(1.0) + k, a)

    r = client.rollout(
        scattered,
        steps=2,
        initial={"a": np.zeros(3)},
        params={"i": [0, 2]},
        data={"k": sg.PerStep(np.array([1, 2], np.uint8))},
        controls={"on": sg.PerStep(np.array([True, False]))},
        instances=1,
    )
    np.testing.assert_array_equal(r.state["a"].reshape(-1), [2.0, 1.0, 2.0])


def test_the_least_integer_is_a_constant(client):
    @sg.world
    def least(x: sg.State(dtype="i32")):
        return x + np.int32(-(2**31))

    r = client.rollout(least, steps=1, initial={"x": 2**31 - 1}, instances=1)
    assert r.state["x"].item() == -1
