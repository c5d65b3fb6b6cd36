"""What the builder writes for Python's operators, and what it refuses, with the line that asked."""

import collections
import inspect

import numpy as np
import pytest

import simgrad as sg
from simgrad import numpy_order, numpy_table
from simgrad.constants import element_of
from simgrad.program import ProgramBuilder
from simgrad.v1.program_pb2 import (
    ELEMENT_TYPE_BOOL,
    ELEMENT_TYPE_I32,
    ELEMENT_TYPE_I64,
    ELEMENT_TYPE_REAL,
    ELEMENT_TYPE_U8,
    ELEMENT_TYPE_U32,
)


def ops(b):
    return [op.code for op in b.program.step.ops]


@pytest.fixture
def b():
    return ProgramBuilder("w")


def test_shapes_meet_by_the_rules_of_numpy(b):
    x, column, row = b.state("x", (2, 3)), b.state("c", (2, 1)), b.state("r", (3,))
    assert (x + row).shape == (2, 3)
    assert ops(b) == ["broadcast", "add"]
    assert list(b.program.step.ops[0].dims) == [1]
    assert (column * row).shape == (2, 3)
    assert ops(b)[2:] == ["reshape", "broadcast", "broadcast", "mul"]
    with pytest.raises(
        ValueError, match=r"expression_test.py:\d+: shapes \(2, 3\) and \(2,\) do not meet"
    ):
        x + b.state("z", (2,))


def test_an_array_is_one_literal_and_equal_numbers_are_sent_once(b):
    x = b.state("x", (3,))
    np.array([1.0, 2.0, 3.0]) * x + np.full(3, 2.5)
    literals = [op for op in b.program.step.ops if op.code == "literal"]
    assert [list(op.literal) for op in literals] == [[1.0, 2.0, 3.0], [2.5]]
    assert ops(b) == ["literal", "mul", "literal", "add"]
    zeros = b.literal(np.array([0.0, -0.0]))
    assert np.signbit(b.program.step.ops[-1].literal).tolist() == [False, True] and zeros.shape == (
        2,
    )


def test_numbers_take_the_type_of_what_they_meet(b):
    n, x, c = b.state("n", (), ELEMENT_TYPE_I32), b.state("x"), b.state("c", (), ELEMENT_TYPE_BOOL)
    assert (n + 1).element == ELEMENT_TYPE_I32 and (np.int64(3) * n).element == ELEMENT_TYPE_I32
    y = b.state("y", (), ELEMENT_TYPE_U8)
    assert (y + 3).element == ELEMENT_TYPE_U8 and (y + np.int32(3)).element == (np.arange(3) - y).element == ELEMENT_TYPE_I32
    assert (n + np.int64(2**40)).element == (y - 2**40 * np.arange(2)).element == ELEMENT_TYPE_I64
    assert (n + np.uint32(3)).element == np.concatenate([n.reshape(1), np.zeros(2, np.uint32)]).element == ELEMENT_TYPE_U32
    assert (c + np.int32(1)).element == ELEMENT_TYPE_I32 and (x + np.int64(2**40)).element == ELEMENT_TYPE_REAL
    assert (n * 0.5).element == (n * x).element == (n / 2).element == ELEMENT_TYPE_REAL
    assert (c * x).element == ELEMENT_TYPE_REAL and (c & True).element == ELEMENT_TYPE_BOOL
    assert (
        b.value(1).element == ELEMENT_TYPE_REAL and b.value(np.int32(1)).element == ELEMENT_TYPE_I32
    )
    assert (
        x.astype(int).element
        == x.astype(np.int32).element
        == x.astype("i32").element
        == ELEMENT_TYPE_I32
    )


def test_whole_powers_are_products(b):
    x = b.state("x")
    x**2, x**0.5, x**2.5
    assert ops(b) == ["mul", "sqrt", "literal", "pow"]
    x**3, x**-1
    assert ops(b)[4:] == ["mul", "mul", "literal", "div"]


def test_integers_are_real_to_a_real_power(b):
    k = b.state("k", (), ELEMENT_TYPE_I32)
    assert (k**2).element == (k**0).element == (k**9).element == ELEMENT_TYPE_I32
    for made in (k**2.0, k**0.0, k**-2, k**0.5, np.float_power(k, 2), np.float_power(k, k)):
        assert made.element == ELEMENT_TYPE_REAL


def test_an_int_holds_what_it_is_made_of(b):
    for held, made in (("i64", "i64"), ("u32", "i64"), ("u8", "i32"), ("real", "i32")):
        x = b.state(held, (), element_of(held))
        assert x.astype(int).element == np.zeros_like(x, dtype=int).element == element_of(made)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.2.0", reason="older NumPy does not have them all")
def test_products_of_vectors_and_matrices_meet_as_in_numpy(b):
    x, n = b.state("x", (4, 5)), b.state("n", (3,), ELEMENT_TYPE_I32)
    assert np.vecdot(n, [1, 2, 3]).element == ELEMENT_TYPE_I32
    for wrong in (lambda: np.vecdot(x, x[:, :1]), lambda: np.matvec(x[0], x[0]), lambda: np.vecmat(x, x[0])):
        with pytest.raises(ValueError, match=r"^expression_test.py:\d+: .*do not meet"):
            wrong()


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="older NumPy has other names")
def test_arguments_have_the_names_and_places_that_they_have_in_numpy():
    for function, here in numpy_table.FUNCTIONS.items():
        ours = inspect.signature(here).parameters.values()
        try:
            theirs = list(inspect.signature(function).parameters)
        except ValueError:  # a function in C that does not tell
            continue
        if theirs[-1] == "kwargs" or any(p.kind == p.VAR_POSITIONAL for p in ours):
            continue
        assert {p.name for p in ours} <= set(theirs), function.__name__
        placed = [p.name for p in ours if p.kind == p.POSITIONAL_OR_KEYWORD]
        assert placed == theirs[: len(placed)], function.__name__


def test_known_indices_are_slices_and_gathers(b):
    x = b.state("x", (4, 5))
    assert x[1:, ::2].shape == (3, 3)
    assert ops(b) == ["slice"] and list(b.program.step.ops[0].stride) == [1, 2]
    assert x[0].shape == (5,) and ops(b)[1:] == ["slice", "reshape"]
    assert x[:].shape == x.shape and len(ops(b)) == 3
    assert x[::-1].shape == x.shape and ops(b)[3:] == ["literal", "gather"]
    assert x[[0, 1], [2, 3]].shape == (2,) and ops(b)[5:] == ["take"]
    assert [y.shape for y in x] == 4 * [(5,)]


def test_computed_indices_gather(b):
    x, i = b.state("x", (4, 5)), b.state("i", (3,), ELEMENT_TYPE_I32)
    assert x[i].shape == (3, 5) and x[:, i].shape == (4, 3) and x[1:, i].shape == (3, 3)
    assert x[i, i].shape == (3,) and x[i[0]].shape == (5,)
    assert x.at[i].add(1.0).shape == x.shape and b.program.step.ops[-1].bounds == "drop"
    assert x[i, :, None].shape == (3, 5, 1) and x[None, i].shape == (1, 3, 5)
    z, j = b.state("z", (4, 5, 6)), b.state("j", (2, 1), ELEMENT_TYPE_I32)
    assert z[i, :, i].shape == z[i, :, 0].shape == (3, 5) and z[1:, i, j].shape == (3, 2, 3)
    assert z.at[i, :, j].set(0.0).shape == z.shape and x.at[:, i].add(1.0).shape == x.shape


def test_integers_stay_integers_beside_numbers(b):
    n, c = b.state("n", (3,), ELEMENT_TYPE_I32), b.state("c", (3,), ELEMENT_TYPE_BOOL)
    made = [
        *(np.select([c, ~c], [n, 2], 5), np.select([c], [n]), np.add.outer(n, 2), np.outer(n, [1, 2]), np.insert(n, 1, 2.7)),
        *(np.insert(n, 1, b.state("x")), np.round(n, -1), np.dot(n, 2), np.dot([1, 2, 3], n), np.inner(n, [1, 2, 3])),
        *(np.vdot(n, [1, 2, 3]), np.kron(n, 2), np.convolve(n, [1, 2])),
    ]
    assert {x.element for x in made} == {ELEMENT_TYPE_I32} and sg.stop_gradient(c).element == ELEMENT_TYPE_BOOL
    assert np.select([c[:2]], [[n[0], n[1]]], 0).element == np.select([c[:2]], [0], [n[0], n[1]]).element == n.element
    assert np.select([c, c], [n, 0.5]).element == np.outer(n, [0.5]).element == ELEMENT_TYPE_REAL


def test_what_numpy_asks_of_a_value_is_no_site(b):
    """They compare no reals, and indices are compared as integers."""
    x, i = b.state("x", (4, 5)), b.state("i", (3,), ELEMENT_TYPE_I32)
    np.isnan(x), np.isinf(x), x.at[i, i].add(1.0), np.log10(x), np.ldexp(x, i[0]), divmod(x, 0.1)
    assert not [op for op in b.program.step.ops if op.decision_site]


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        (lambda x, i, c: x[4], IndexError, "out of bounds"),
        (lambda x, i, c: x[0, 0, 0], IndexError, "3 indices"),
        (lambda x, i, c: x[[0, 9]], IndexError, "out of bounds"),
        (lambda x, i, c: x[i:], TypeError, "dynamic_slice"),
        (lambda x, i, c: x[True, ..., 0], TypeError, r"no single bool: x\[None\]"),
        (lambda x, i, c: x.at[np.array(False)].set(0.0), TypeError, "no single bool"),
        (lambda x, i, c: x[c], TypeError, "where"),
        (lambda x, i, c: x.at[i, 7].set(0.0), IndexError, "out of bounds"),
        (lambda x, i, c: x.at[[0, 1], :, i].set(0.0), IndexError, "3 indices"),
        (lambda x, i, c: x.at[i, np.zeros(3, int)].set(np.ones(2)), ValueError, "do not meet"),
        (lambda x, i, c: range(i), TypeError, "for_loop"),
        (lambda x, i, c: float(x[0, 0]), TypeError, "no number before"),
        (lambda x, i, c: 1 if x[0, 0] < 2 else 0, TypeError, "sg.where"),
        (lambda x, i, c: x[0, 0] < 2 and c, TypeError, "and, or, not"),
        (lambda x, i, c: np.array([x, x]), TypeError, "np.stack"),
        (lambda x, i, c: x.sum(axis=2), ValueError, "axis 2"),
        (lambda x, i, c: x @ x, ValueError, "do not meet"),
        (lambda x, i, c: x.reshape(7), ValueError, "reshape"),
        (lambda x, i, c: x + "a", TypeError, "neither a number"),
        (lambda x, i, c: x + np.ma.array(np.ones(5), mask=np.eye(5)[0]), TypeError, "worlds know no masks"),
        (lambda x, i, c: np.stack([x[0], np.ma.array(np.ones(5))]), TypeError, "worlds know no masks"),
        (lambda x, i, c: np.linalg.svd(x), TypeError, "svd is not among the functions of worlds"),
        (lambda x, i, c: x.builder.apply("sine", x), TypeError, "no operation 'sine'"),
        (lambda x, i, c: x.__setitem__(0, 1.0), TypeError, r"x.at\[...\].set"),
        (lambda x, i, c: len(x[0, 0]), TypeError, "no length"),
        (lambda x, i, c: f"{x[0, 0]:.2f}", TypeError, "format '.2f'"),
        (lambda x, i, c: x.astype("f8x"), TypeError, "f8x"),
        (lambda x, i, c: x.tolist(), AttributeError, "no tolist"),
        (lambda x, i, c: np.full(3, x[0, 0]), TypeError, "broadcast_to"),
        (lambda x, i, c: np.sum([x, x]), TypeError, "np.stack"),
        (lambda x, i, c: np.where(x > 0), TypeError, r"np.where\(c, x, y\)"),
        (lambda x, i, c: np.nonzero(x), TypeError, "depend on data"),
        (lambda x, i, c: np.fill_diagonal(x, 0.0), TypeError, r"x.at\[i, i\].set"),
        (lambda x, i, c: np.max(x, initial=0.0), TypeError, "max with initial .* takes a, axis"),
        (lambda x, i, c: np.reshape(x, 20, order="F"), TypeError, "np.reshape with order"),
        (lambda x, i, c: np.mean(x, 0, None, None), TypeError, "np.mean of these arguments"),
        (lambda x, i, c: np.sin(x, where=True), TypeError, r"np.where\(c, f\(x\), x\)"),
        (lambda x, i, c: np.add(np.ones((4, 5)), x, out=np.ones((4, 5))), TypeError, "y = x [+] z"),
        (lambda x, i, c: np.add.at(x, 0, 1.0), TypeError, r"x.at\[i\].add"),
        (lambda x, i, c: np.expand_dims(x, 7), ValueError, "axis 7"),
        (lambda x, i, c: np.squeeze(x, 0), ValueError, "squeeze"),
        (lambda x, i, c: np.swapaxes(x, 0, 3), ValueError, "axis 3"),
        (lambda x, i, c: np.einsum("ijk,k", x, x[0]), ValueError, "a letter for each axis"),
        (lambda x, i, c: np.einsum("ij,j", x, x[:, 0]), ValueError, "axis j has 5 elements"),
        (lambda x, i, c: np.einsum("ii", x), ValueError, "axis i has 4 elements, and 5 elsewhere"),
        (lambda x, i, c: np.einsum("ii->i", x[:1]), ValueError, "axis i has 1 elements, and 5 elsewhere"),
        (lambda x, i, c: np.einsum(x, [0, 1]), TypeError, "begins with its subscripts"),
        (lambda x, i, c: np.linalg.solve(x, x[0]), ValueError, "one square matrix"),
        (lambda x, i, c: np.linalg.norm(x, 1), TypeError, "order 1"),
        (lambda x, i, c: np.linalg.cholesky(x), ValueError, "one square matrix"),
        (lambda x, i, c: x.builder.lu_permutation(x[0]), ValueError, r"one matrix \[m, n\]"),
        (lambda x, i, c: x.builder.lu(np.stack([x] * 2)), ValueError, r"\(2, 4, 5\): one matrix"),
        (lambda x, i, c: np.convolve(x, x[0]), ValueError, r"\(4, 5\) and \(5,\): two vectors"),
        (lambda x, i, c: np.convolve(x[0, :0], x[0]), ValueError, "two vectors with elements"),
        (lambda x, i, c: np.round(x, 400), ValueError, "to 400 decimals: 308 at most"),
        (lambda x, i, c: np.insert(i.astype("u8")[None], 0, 300), ValueError, "a constant of u8 is .*, not 300"),
        (lambda x, i, c: np.where(c, x, np.nan), ValueError, r"a constant is no NaN: np.log\(-"),
        (lambda x, i, c: np.full_like(x, np.nan), ValueError, "a constant is no NaN"),
        (lambda x, i, c: np.pad(x, 1, constant_values=-np.inf), ValueError, "np.pad with -inf: a finite number"),
        (lambda x, i, c: np.split(x, 0), ValueError, "into 0: equal parts"),
        (lambda x, i, c: c * c, TypeError, r"mul takes no bools: &, \| and ~ .* x.astype\(int\)"),
        (lambda x, i, c: c < ~c, TypeError, "lt takes no bools"),
        (lambda x, i, c: np.outer(c, c), TypeError, "mul takes no bools"),
        (lambda x, i, c: np.sqrt(c), TypeError, "sqrt takes no bools"),
        (lambda x, i, c: c & 1, TypeError, r"and takes no reals: x.astype\(int\), or np.int32\(1\)"),
        (lambda x, i, c: np.split(x, 3), ValueError, "array_split"),
        (lambda x, i, c: np.nan_to_num(x), TypeError, "posinf= and neginf="),
        (lambda x, i, c: np.pad(x, 1, "linear_ramp"), ValueError, "symmetric or wrap"),
        (lambda x, i, c: np.pad(x, {0: (1, 1)}), TypeError, "a number, or one before and one after for each axis"),
        (lambda x, i, c: np.roll(x, i), TypeError, "np.roll by .*: a whole number that is known"),
        (lambda x, i, c: np.roll(x, i, 0), TypeError, "np.roll by .*: a whole number that is known"),
        (lambda x, i, c: np.median(x[:0]), ValueError, "np.median of an array of shape .*: nothing is in its middle"),
        (lambda x, i, c: np.interp(x, [1.0, 2.0], [3.0]), ValueError, r"between points of shapes \(2,\) and \(1,\)"),
        (lambda x, i, c: np.gradient(x, x), TypeError, "np.gradient by arrays of coordinates: a number for each spacing"),
        (lambda x, i, c: np.cross(x, x), ValueError, "vectors of 3"),
        (lambda x, i, c: np.quantile(x, x[0, 0]), TypeError, "known numbers from 0 to 1"),
        (lambda x, i, c: np.percentile(x, [25, 175]), TypeError, "known numbers from 0 to 1"),
        (lambda x, i, c: np.take_along_axis(x, np.array([[5]]), 1), IndexError, "out of bounds"),
        (lambda x, i, c: np.take_along_axis(x, np.array([0]), 1), ValueError, "as many axes"),
        (lambda x, i, c: np.take_along_axis(x, x, 1), TypeError, "not reals"),
        (lambda x, i, c: np.take_along_axis(x, i[None, None], 2), ValueError, "axis 2"),
        (lambda x, i, c: np.take(x, 0, axis=2), ValueError, "axis 2"),
        (lambda x, i, c: np.take(x, 0, axis=-3), ValueError, "axis -3"),
        (lambda x, i, c: np.diff(x, axis=2), ValueError, "axis 2"),
        (lambda x, i, c: np.diff(x, n=-1), ValueError, "at least 0"),
        (lambda x, i, c: x.transpose(3, 0), ValueError, r"axis \(3, 0\)"),
        (lambda x, i, c: np.transpose(x, (0, 0)), ValueError, "twice"),
        (lambda x, i, c: np.moveaxis(x, 2, 0), ValueError, "axis 2"),
        (lambda x, i, c: np.moveaxis(x, (0, 1), (0, 0)), ValueError, "twice"),
        (lambda x, i, c: np.moveaxis(x, (0, 1), 0), ValueError, "as many places"),
        (lambda x, i, c: x.sum(axis=(0, 0)), ValueError, "twice"),
        (lambda x, i, c: np.flip(x, (0, 0)), ValueError, "twice"),
        (lambda x, i, c: np.argmax(x, axis=(0,)), TypeError, "one axis"),
        (lambda x, i, c: x.cumsum(axis=(0,)), TypeError, "one axis"),
        (lambda x, i, c: np.round(x, 2.5), TypeError, "np.round of decimals 2.5: a whole number"),
        (lambda x, i, c: np.roll(x, 0.5, 0), TypeError, "np.roll by"),
        (lambda x, i, c: np.linalg.matrix_power(x @ x.T, 2.5), TypeError, "matrix_power of 2.5"),
        (lambda x, i, c: x.reshape(2, 10, order="F"), TypeError, "np.reshape with order"),
        (lambda x, i, c: x.argmax(keepdims=True), TypeError, "np.argmax with keepdims"),
        (lambda x, i, c: x.sum(where=c), TypeError, r"np.where\(c, f\(x\), x\)"),
        (lambda x, i, c: x.astype(np.int8), TypeError, "np.int32"),
        (lambda x, i, c: np.zeros_like(x, dtype="int16"), TypeError, "np.int32"),
        (lambda x, i, c: x.clip(0, min=1), ValueError, "not both"),
        (lambda x, i, c: 2**i, TypeError, r"x.astype\(float\) \*\* y"),
        (lambda x, i, c: np.tril(x[0, 0]), ValueError, "at least one axis"),
        (lambda x, i, c: x[..., ...], IndexError, "one ellipsis"),
        (lambda x, i, c: x.at[..., 0, ...].set(1.0), IndexError, "one ellipsis"),
        (lambda x, i, c: np.ldexp(x, 2.5), TypeError, "np.ldexp by 2.5: whole numbers"),
        (lambda x, i, c: np.ldexp(x, x), TypeError, "np.ldexp by reals: whole numbers"),
        (lambda x, i, c: x * 10**30, TypeError, f"{10**30} is too large for an integer of 64 bits; write a float"),
        (lambda x, i, c: x ** 10**30, TypeError, f"{10**30} is too large for an integer of 64 bits; write a float"),
        (lambda x, i, c: x + [1, 10**400, 2, 3, 4], TypeError, "an integer of 1329 bits is too large"),
        (lambda x, i, c: sg.while_loop(lambda z: z, x, until=lambda z: z.sum(), max_iter=3), TypeError, "`until` returns a bool"),
        (lambda x, i, c: sg.fixed_point(lambda n: n // 2, i, tol=0.1, max_iter=3), TypeError, r"take reals, not i32\[\]"),
        (lambda x, i, c: sg.fixed_point(lambda z: z, x, tol=[0.1], max_iter=3), TypeError, r"tol is one number, not \[0.1\]"),
        (lambda x, i, c: sg.fixed_point(lambda z: z, x, tol="a", max_iter=3), TypeError, "tol is one number, not 'a'"),
        (lambda x, i, c: sg.fixed_point(lambda z: z, x, tol=np.nan, max_iter=3), ValueError, "tol nan: a finite number"),
        (lambda x, i, c: sg.fixed_point(lambda z: z, x, tol=x, max_iter=3), TypeError, r"tol is one real, not real\[4,5\]"),
        (lambda x, i, c: sg.fixed_point(lambda z: z, x, tol=0, max_iter=3), ValueError, "tol 0: above 0, as no change is"),
        (lambda x, i, c: sg.fixed_point(lambda z: z, x, tol=-1e-3, max_iter=3), ValueError, "tol -0.001: above 0"),
        (lambda x, i, c: sg.root(lambda z: z, x, tol=0.0, max_iter=3), ValueError, "tol 0.0: above 0"),
        (lambda x, i, c: sg.root(lambda z: z, x, tol=0.1, max_iter=3, scale=0), ValueError, "scale 0 of sg.root: above 0"),
        (
            lambda x, i, c: sg.root(lambda z: z, x[0], tol=0.1, max_iter=3, scale=2, jacobian=lambda z: np.eye(5)),
            ValueError,
            "a jacobian and scale=2: scale is that of differences",
        ),
        (lambda x, i, c: sg.scan(lambda z, e: (z, None), x, length=3, reverse=True), ValueError, "nothing stacked: no reverse"),
        (lambda x, i, c: np.argsort(x, kind="fast"), ValueError, "kind 'fast': quicksort, mergesort, heapsort or stable"),
        (lambda x, i, c: numpy_order.sort(x, 0, "stable", stable=True), ValueError, "kind 'stable' and stable=True: one of them"),
        (lambda x, i, c: np.take(x, [1], mode="wrap"), ValueError, "np.take of mode 'wrap': raise or clip"),
        (lambda x, i, c: np.take(x, [9], 0, mode="raise"), IndexError, "index 9 is out of bounds"),
        (lambda x, i, c: np.pad(x, 1, "edge", constant_values=0), ValueError, "mode 'edge' takes no constant_values"),
        (lambda x, i, c: np.ravel(x, order="F"), TypeError, "np.ravel with order"),
        (lambda x, i, c: np.allclose(x, x, equal_nan=True), TypeError, "np.allclose with equal_nan"),
        (lambda x, i, c: sg.cond(i, abs, abs, x), TypeError, r"one bool, not i32\[\]: n != 0"),
        (lambda x, i, c: sg.cond(x[0, 0], abs, abs, x), TypeError, r"one bool, not real\[\]: n != 0"),
        (lambda x, i, c: sg.cond(x > 0, abs, abs, x), TypeError, r"one bool, not bool\[4,5\]: np.any"),
        (lambda x, i, c: sg.switch(i.astype(np.int64), [abs, abs], x), TypeError, r'one i32, not i64\[\]: n.astype\("i32"\)'),
        (lambda x, i, c: sg.switch(c, [abs, abs, abs], x), TypeError, r"one i32, not bool\[\]"),
        (lambda x, i, c: sg.switch(1.0, [abs, abs], x), TypeError, r"one i32, not real\[\]"),
        (lambda x, i, c: sg.switch(i, [abs], x), ValueError, "two at least, not 1"),
        (lambda x, i, c: sg.for_loop(2.5, lambda k, z: z, x), TypeError, "a loop of 2.5 turns: a whole number"),
        (lambda x, i, c: sg.for_loop(i, lambda k, z: z, x), TypeError, "a loop of <i: i32.*> turns: a whole number that is known"),
        (lambda x, i, c: sg.for_loop(-1, lambda k, z: z, x), ValueError, "a loop of -1 turns: at least 0"),
        (lambda x, i, c: sg.while_loop(abs, x, until=np.all, max_iter=2.5), TypeError, "a loop of 2.5 turns"),
        (lambda x, i, c: sg.scan(lambda z, e: (z, e), x, length=-2), ValueError, "a loop of -2 turns"),
        (lambda x, i, c: x.builder.uniform(2.5), TypeError, "a shape of 2.5: whole numbers"),
        (lambda x, i, c: x.builder.normal((2, -1)), ValueError, r"a shape of \(2, -1\): lengths of at least 0"),
        (lambda x, i, c: np.broadcast_to(x, (-1, 5)), ValueError, "lengths of at least 0"),
        (lambda x, i, c: np.broadcast_to(x, (4.0, 5)), TypeError, "whole numbers that are known"),
        (lambda x, i, c: sg.root(lambda z: z, x, tol="a", max_iter=3), TypeError, "tol is one number, not 'a'"),
    ],
)
def test_what_cannot_be_is_told_with_its_line(b, wrong, error, words):
    x, i, c = (
        b.state("x", (4, 5)),
        b.state("i", (), ELEMENT_TYPE_I32),
        b.state("c", (), ELEMENT_TYPE_BOOL),
    )
    with pytest.raises(error, match=words) as raised:
        wrong(x, i, c)
    assert str(raised.value).startswith("expression_test.py:")


def test_the_page_lists_every_function_of_numpy(root):
    page = (root / "docs/python.md").read_text()
    functions = page[page.index("## NumPy's functions") : page.index("## What differs from NumPy")]
    for function in numpy_table.FUNCTIONS:
        assert f"`{function.__name__.strip('_')}`" in functions, function.__name__


def test_values_are_keys_although_equality_is_a_comparison(b):
    x, y = b.state("x"), b.state("y")
    assert {x: 1, y: 2}[y] == 2
    assert (x == y).element == ELEMENT_TYPE_BOOL and ops(b) == ["eq"]


def test_comparisons_are_named_by_function_and_ordinal_and_labelled_by_line(b):
    x = b.state("x")

    def friction(v):
        return (v < 1.0) & (v > 0.5)

    friction(x), [x < y for y in (0.3, 0.4)]
    b.test("cold", x < 0.2)
    tests = [op for op in b.program.step.ops if op.decision_site]
    this = "test_comparisons_are_named_by_function_and_ordinal_and_labelled_by_line"
    assert [op.decision_site for op in tests] == [
        "friction.1",
        "friction.2",
        f"{this}.1",
        f"{this}.2",
        "cold",
    ]
    assert (tests[-1].code, tests[-1].comparison, tests[-1].role) == ("event", "lt", "event")
    assert all(op.label.startswith("expression_test.py:") for op in b.program.step.ops)
    assert tests[0].label != tests[-1].label


def test_without_a_level_nothing_is_named_or_labelled():
    b = ProgramBuilder("w", level="")
    x = b.state("x")
    x < 1.0
    assert all(not op.decision_site and not op.label for op in b.program.step.ops)


def test_a_value_is_used_where_it_can_be_seen(b):
    x = b.state("x")
    leaked = []
    b.for_loop(2, [x], lambda index, c: leaked.append(c[0] * 2) or [c[0]])
    with pytest.raises(
        ValueError, match="expression_test.py:.*of expression_test.py:.*return it from there"
    ):
        leaked[0] + x
    y = 2 * x
    with pytest.raises(ValueError, match="the stage cost reads inputs and exports: observe"):
        b.objective("o", stage=lambda: y * y)
    b.observe("y", y)
    b.objective("p", stage=lambda: y * y + x)
    with pytest.raises(ValueError, match="belongs to another world"):
        x + ProgramBuilder("other").state("z")


def test_a_function_with_a_vjp_names_what_it_uses_around_it(b):
    x, k, h = b.state("x"), b.param("k"), b.config("h", 0.1)

    def scaled(by):
        made = sg.custom_vjp(lambda z: sg.for_loop(2, lambda i, c: c * by, z))
        made.defvjp(lambda args, result, cotangent: cotangent * h)
        return made

    assert scaled(h)(x).shape == scaled(2.0)(x).shape == scaled(b.literal(0.5))(x).shape == ()
    for by, name in ((k, "k: real"), (x * 2, "value: real")):
        with pytest.raises(ValueError, match=rf"^expression_test.py:\d+: <{name}.* of expression_test.py:.*make it an argument"):
            scaled(by)(x)
    b.observe("y", x * 2)
    b.next(x=x)
    with pytest.raises(ValueError, match="make it an argument"):
        b.objective("cost", stage=lambda: scaled(k)(x))
    unseen = sg.custom_vjp(lambda z: z)
    unseen.defvjp(lambda args, result, cotangent: cotangent * k)
    with pytest.raises(ValueError, match="<k: real.*make it an argument"):
        unseen(x)


def test_named_tuples_come_back_as_they_were(b):
    x, k = b.state("x", (3,)), b.state("k")
    Pair = collections.namedtuple("Pair", "a b")
    last, stacked = sg.scan(lambda c, e: (Pair(c.a + e, c.b), Pair(e, c.a)), Pair(k, k), x)
    assert last.a.shape == () and stacked.b.shape == (3,)
    assert sg.cond(k > 0, lambda z: Pair(z, z), lambda z: Pair(z, 2 * z), k).b.shape == ()


def test_what_is_carried_keeps_its_type(b):
    x = b.state("x", (3,))
    [y] = b.for_loop(2, [x], lambda i, c: 0.0)  # one number for every element
    assert y.shape == (3,)
    with pytest.raises(ValueError, match=r"is real\[3\], and becomes real\[2\]"):
        b.for_loop(2, [x], lambda i, c: c[0][:2])
    scalar = r"is real\[3\], and becomes real\[\]: np.broadcast_to"
    with pytest.raises(ValueError, match=scalar):
        b.scan(lambda c, e: (c[0].sum(), e), [x], [x])
    with pytest.raises(ValueError, match=scalar):
        sg.while_loop(np.sum, x, until=lambda z: z.sum() < 1, max_iter=3)
    with pytest.raises(ValueError, match="state x " + scalar):
        b.next(x=x[0])

    @sg.custom_vjp
    def total(z, k):
        return k * z.sum()

    total.defvjp(lambda args, result, cotangent: (cotangent * args[1], 0.0))
    with pytest.raises(ValueError, match=r"x is real\[3\], and its cotangent real\[\]"):
        total(x, x[0])
    total.defvjp(lambda args, result, cotangent: (0.0, cotangent))  # one number for every element
    assert total(x, x[0]).shape == ()
    with pytest.raises(ValueError, match="1 carried values are carried, 2 returned"):
        b.for_loop(2, [x], lambda i, c: [c[0], c[0]])
    with pytest.raises(ValueError, match=r"state x is real\[3\]"):
        b.next(x=x[:2])
