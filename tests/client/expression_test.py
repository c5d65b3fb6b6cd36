"""What the builder writes for Python's operators, and what it refuses, with the line that asked."""

import numpy as np
import pytest

from simgrad.program import ProgramBuilder
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL, ELEMENT_TYPE_I32, ELEMENT_TYPE_REAL


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


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        (lambda x, i, c: x[4], IndexError, "out of bounds"),
        (lambda x, i, c: x[0, 0, 0], IndexError, "3 indices"),
        (lambda x, i, c: x[[0, 9]], IndexError, "out of bounds"),
        (lambda x, i, c: x[i:], TypeError, "dynamic_slice"),
        (lambda x, i, c: x[c], TypeError, "where"),
        (lambda x, i, c: x[i, :, None], TypeError, "new axis"),
        (lambda x, i, c: x.at[:, i].set(0.0), TypeError, "first axis"),
        (lambda x, i, c: range(i), TypeError, "for_loop"),
        (lambda x, i, c: float(x[0, 0]), TypeError, "no number before"),
        (lambda x, i, c: 1 if x[0, 0] < 2 else 0, TypeError, "sg.where"),
        (lambda x, i, c: x[0, 0] < 2 and c, TypeError, "and, or, not"),
        (lambda x, i, c: np.array([x, x]), TypeError, "np.stack"),
        (lambda x, i, c: x.sum(axis=2), ValueError, "axis 2"),
        (lambda x, i, c: x @ x, ValueError, "do not meet"),
        (lambda x, i, c: x.reshape(7), ValueError, "reshape"),
        (lambda x, i, c: x + "a", TypeError, "neither a number"),
        (lambda x, i, c: np.linalg.svd(x), TypeError, "svd is not among the functions of worlds"),
        (lambda x, i, c: x.builder.apply("sine", x), TypeError, "no operation 'sine'"),
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
    if words not in ("np.stack", "svd is not among the functions of worlds"):
        assert str(raised.value).startswith("expression_test.py:")


def test_a_value_does_not_change(b):
    x = b.state("x", (3,))
    with pytest.raises(TypeError, match=r"at\[...\].set"):
        x[0] = 1.0


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


def test_what_is_carried_keeps_its_type(b):
    x = b.state("x", (3,))
    [y] = b.for_loop(2, [x], lambda i, c: 0.0)  # one number for every element
    assert y.shape == (3,)
    with pytest.raises(ValueError, match=r"is real\[3\], and becomes real\[2\]"):
        b.for_loop(2, [x], lambda i, c: c[0][:2])
    with pytest.raises(ValueError, match="1 carried values are carried, 2 returned"):
        b.for_loop(2, [x], lambda i, c: [c[0], c[0]])
    with pytest.raises(ValueError, match=r"state x is real\[3\]"):
        b.next(x=x[:2])
