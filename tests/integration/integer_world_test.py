"""Worlds of unsigned integers, end to end, beside NumPy's."""

import numpy as np
import pytest

import simgrad as sg
from simgrad.operation_writer import U8, U32
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
