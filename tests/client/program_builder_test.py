"""The builder writes the program that the expressions mean."""

import numpy as np
import pytest

from simgrad.operation_writer import I32
from simgrad.program import ProgramBuilder
from simgrad.v1 import program_pb2


def ops(region):
    return [op.code for op in region.ops]


def test_arithmetic_appends_operations_with_the_current_role():
    b = ProgramBuilder("w")
    x, k = b.state("x"), b.param("k", default=2.0)
    with b.role("solver", "s"):
        y = 1 - k * x
    b.next(x=-y)
    program = b.build()
    assert ops(program.step) == ["mul", "literal", "sub", "neg"]
    assert [op.role for op in program.step.ops] == ["solver", "solver", "solver", ""]
    assert program.step.ops[0].site == "s"
    assert list(program.step.yields) == list(program.step.ops[3].results)


def test_numpy_names_append_the_operation_that_they_mean():
    b = ProgramBuilder("w")
    x, y = b.state("x"), b.state("y")
    np.arctan2(np.tan(x), np.fmod(x, y))
    assert ops(b.program.step) == ["tan", "rem", "atan2"]
    finite = np.isfinite(np.float64(2.0) * x % y)
    assert finite.element == program_pb2.ELEMENT_TYPE_BOOL
    assert ops(b.program.step)[3:] == ["literal", "mul", "mod", "is_finite"]
    with pytest.raises(TypeError, match="np.spacing is not among"):
        np.spacing(x)
    with pytest.raises(TypeError, match="np.add.reduceat is not among"):
        np.add.reduceat(x, [0])


def test_functions_of_the_table_are_methods():
    b = ProgramBuilder("w")
    x = b.state("x", (2, 3))
    assert b.erfc(b.rsqrt(x)).shape == (2, 3)
    assert b.prod(x, axes=1).shape == (2,)
    held = b.all(b.is_finite(x), axes=None)
    assert (held.shape, held.element) == ((), program_pb2.ELEMENT_TYPE_BOOL)
    assert b.program.step.ops[-1].code == "all"


def test_a_scalar_is_broadcast_to_an_array_and_arrays_must_agree():
    b = ProgramBuilder("w")
    x, z = b.state("x", (3,)), b.state("z", (2,))
    assert (2.0 * x).shape == (3,)
    assert ops(b.program.step) == ["literal", "broadcast", "mul"]
    with pytest.raises(ValueError, match="do not meet"):
        x + z


def test_states_come_first_among_the_inputs():
    b = ProgramBuilder("w")
    b.param("k")
    x = b.state("x")
    b.next(x=x)
    assert [i.name for i in b.build().inputs] == ["x", "k"]


def test_weights_are_params_that_are_declared_so():
    b = ProgramBuilder("w")
    x, w, k = b.state("x", (3,)), b.weights("w", (3, 3), default=0.5), b.param("k")
    b.next(x=k * (x @ w))
    declared = {i.name: (i.kind, i.weights, i.default_value) for i in b.build().inputs}
    param = program_pb2.INPUT_KIND_PARAM
    assert declared["w"] == (param, True, 0.5) and declared["k"] == (param, False, 0.0)


def test_a_loop_carries_tests_and_exports():
    b = ProgramBuilder("w")
    x = b.state("x")
    (last,), (residual,), iterations = b.while_loop(
        "newton",
        [x],
        lambda c: (b.abs(c), 1e-6, c * c),
        lambda c, e: [c[0] - e[0]],
        max_iter=7,
        cap_first=True,
    )
    b.next(x=last)
    b.observe("residual", residual)
    loop = b.build().step.ops[0]
    assert (loop.code, loop.decision_site, loop.comparison, loop.max_iter) == (
        "while",
        "newton",
        "lt",
        7,
    )
    assert loop.cap_first and loop.carried == 1 and len(loop.results) == 3
    test, body = loop.regions
    assert (
        len(test.args) == 1
        and len(test.yields) == 3
        and len(body.args) == 2
        and len(body.yields) == 1
    )
    assert {op.role for op in test.ops} == {"termination"} and {op.site for op in test.ops} == {
        "newton"
    }
    assert iterations.element == program_pb2.ELEMENT_TYPE_I32


def test_every_value_is_defined_once():
    b = ProgramBuilder("w")
    x = b.state("x", (4,))
    below = b.event("floor", x, "lt", 0.0)
    (total,) = b.for_loop(3, [b.sum(x)], lambda index, c: [c[0] * 0.5])
    b.next(x=b.select(below, -x, x) + total)
    b.objective("o", stage=lambda: b.mean(x * x), terminal=lambda z, e: b.sum(z["x"]))
    program = b.build()
    defined = [i.value for i in program.inputs]

    def visit(region):
        defined.extend(region.args)
        for op in region.ops:
            for inner in op.regions:
                visit(inner)
            defined.extend(op.results)

    for region in (program.step, program.objectives[0].stage, program.objectives[0].terminal):
        visit(region)
    assert sorted(defined) == list(range(len(program.values)))


def test_a_python_branch_on_a_value_is_refused():
    b = ProgramBuilder("w")
    with pytest.raises(TypeError, match=r"sg\.where.* sg\.test\(\"name\", a < b\)"):
        if b.state("x"):
            pass


def test_next_wants_every_state():
    b = ProgramBuilder("w")
    x = b.state("x")
    b.state("v")
    with pytest.raises(ValueError, match="x, v"):
        b.next(x=x)


def test_operations_on_arrays_know_the_shapes_of_their_results():
    b = ProgramBuilder("w")
    x, k, v = b.state("x", (4, 5)), b.state("k", (4, 4)), b.state("v", (4, 1))
    at = b.iota(I32, axes=0, shape=[3])
    starts = b.literal([0, 1], (2,), I32)
    rows = b.lu_permutation(k)
    shapes = {
        "iota": at,
        "slice": b.slice(x, start=[0, 0], shape=[2, 2], stride=[2, 3]),
        "pad": b.pad(x, start=[1, 0], shape=[8, 5], interior=[1, 0], fill=2.5),
        "transpose": b.transpose(x, dims=[1, 0]),
        "take": b.take(x, shape=[2], indices=[3, -1]),
        "gather": b.gather(x, at, axes=1),
        "scatter": b.scatter(x, at, b.gather(x, at, axes=0), axes=0, combine="max", bounds="drop"),
        "dynamic_slice": b.dynamic_slice(x, starts, shape=[1, 2]),
        "update": b.update(x, b.slice(x, start=[0, 0], shape=[1, 2]), starts),
        "argsort": b.argsort(x, x, axes=1),
        "matmul": b.matmul(k, x),
        "cholesky": b.cholesky(k),
        "triangular_solve": b.triangular_solve(k, v, transposed=True),
        "lu": b.lu(k, rows),
        "lu_permutation": rows,
        "lu_solve": b.lu_solve(k, b.lu(k), rows, v),
        "solve": b.solve(k, x),
        "norm2": b.norm2(x, axes=1),
    }
    assert {name: y.shape for name, y in shapes.items()} == {
        "iota": (3,),
        "slice": (2, 2),
        "pad": (8, 5),
        "transpose": (5, 4),
        "take": (2,),
        "gather": (4, 3),
        "scatter": (4, 5),
        "dynamic_slice": (1, 2),
        "update": (4, 5),
        "argsort": (4, 5),
        "matmul": (4, 5),
        "cholesky": (4, 4),
        "triangular_solve": (4, 1),
        "lu": (4, 4),
        "lu_permutation": (4,),
        "lu_solve": (4, 1),
        "solve": (4, 5),
        "norm2": (4,),
    }
    assert shapes["argsort"].element == I32 and shapes["gather"].element == x.element
    with pytest.raises(ValueError, match="do not meet"):
        b.matmul(x, x)


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        (lambda b, x: b.gather(x, [0], axes=0, fill=7), ValueError, 'fill=7: bounds="clip" takes the nearest element'),
        (lambda b, x: b.gather(x, [0], axes=[0, 1]), ValueError, r"gather takes one axis, not axes=\[0, 1\]"),
        (lambda b, x: b.scatter(x, [0], 1.0), ValueError, r"scatter takes one axis, not axes=None, of shape \(4, 5\)"),
        (lambda b, x: b.argsort(x, axes=()), ValueError, "argsort takes one axis, not axes="),
        (lambda b, x: b.iota(I32, [3, 4]), ValueError, "iota takes one axis, not axes=None"),
        (lambda b, x: b.iota(I32, [3, 4], axes=2), ValueError, r"axes 2 are not all of an array of shape \(3, 4\)"),
        (lambda b, x: b.concat(x, x), ValueError, "concat takes one axis"),
        (lambda b, x: b.cumsum(x), ValueError, "cumsum takes one axis"),
        (lambda b, x: b.reduce_max(x), ValueError, "reduce_max takes one axis"),
        (lambda b, x: b.argmin(x, axes=[1, 0]), ValueError, "argmin takes one axis"),
        (lambda b, x: b.sum(x, axes=[1, -1]), ValueError, r"axes \[1, -1\] name an axis twice"),
        (lambda b, x: b.sum(x, axes=0.5), TypeError, "axes 0.5: whole numbers that are known"),
        (lambda b, x: b.transpose(x, dims=[0, 5]), ValueError, r"by dims \[0, 5\]: each axis once"),
        (lambda b, x: stopped(b, x, comparison="lt"), ValueError, "stops the loop by itself: no comparison='lt'"),
        (lambda b, x: stopped(b, x, has_entry=True), ValueError, "stops the loop by itself: no has_entry"),
    ],
)
def test_what_an_operation_cannot_take_is_told_with_its_line(wrong, error, words):
    b = ProgramBuilder("w")
    with pytest.raises(error, match=words) as raised:
        wrong(b, b.state("x", (4, 5)))
    assert str(raised.value).startswith("program_builder_test.py:")


def stopped(b, x, **given):
    """A loop that stops by a bool."""
    return b.while_loop("s", [x], lambda z: z.sum() < 0, lambda z, _: z, max_iter=3, **given)


def test_an_axis_may_be_one_of_a_list_or_count_from_the_back():
    b = ProgramBuilder("w")
    x, at = b.state("x", (4, 5)), b.literal([0, 1, 2], (3,), I32)
    assert b.gather(x, at, axes=[-1]).shape == (4, 3) and b.gather(x[0], at).shape == (3,)
    assert b.gather(x, at, axes=0, bounds="fill", fill=7).shape == (3, 5)
    assert b.iota(I32, [3, 4], axes=[1]).shape == (3, 4)
    assert [list(op.axes) for op in b.program.step.ops if op.code == "iota"] == [[1]]


def test_a_loop_may_stop_by_a_formula():
    b = ProgramBuilder("w", level="decisions")
    x = b.state("x")
    (last, _), _, _ = b.while_loop(
        "newton",
        [x, b.literal(0, element=program_pb2.ELEMENT_TYPE_I32)],
        lambda c, n: b.or_(
            b.lt(b.abs(c), 1e-6), b.ge(n, b.literal(5, element=program_pb2.ELEMENT_TYPE_I32))
        ),
        lambda c, e: [0.5 * c[0], c[1] + b.literal(1, element=program_pb2.ELEMENT_TYPE_I32)],
        max_iter=7,
    )
    b.next(x=last)
    loop = b.build().step.ops[-1]
    assert (loop.predicate, loop.comparison, len(loop.regions[0].yields)) == (True, "", 1)
    assert b.build().level == "decisions"


def test_a_branch_takes_arguments_and_returns_one_value_or_several():
    b = ProgramBuilder("w")
    x = b.state("x")
    high = b.event("high", x, "gt", 1.0)
    [y] = b.cond(high, lambda a: a * a, lambda a: 0.0 * a, args=[x])
    b.next(x=y)
    branch = b.build().step.ops[-1]
    # The region of a bool that does not hold comes first.
    assert [ops(region) for region in branch.regions] == [["literal", "mul"], ["mul"]]
    assert branch.code == "cond" and list(branch.operands) == [high.value, x.value]
    with pytest.raises(ValueError, match="same types"):
        b.cond(high, lambda: x, lambda: (x, x))


def test_a_scan_takes_elements_and_stacks_results():
    b = ProgramBuilder("w")
    xs = b.state("xs", (4, 3))
    [total], [sums] = b.scan(
        lambda c, e: ([c[0] + e[0]], [c[0]]),
        [b.literal(0.0, (3,))],
        [xs],
        reverse=True,
    )
    assert (total.shape, sums.shape) == ((3,), (4, 3))
    loop = b.program.step.ops[-1]
    assert (loop.code, loop.max_iter, loop.carried, loop.scanned) == ("for", 4, 1, 1)
    assert loop.reverse
    with pytest.raises(ValueError, match="length"):
        b.scan(lambda c, e: (c, []), [total])


def test_every_operation_of_the_table_has_a_method(root):
    page = (root / "docs/programs.md").read_text()
    table = page.partition("<!-- operations: printed")[2].partition("<!-- operations end -->")[0]
    codes = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert len(codes) > 80
    named = {"and": "and_", "or": "or_", "not": "not_", "while": "while_loop", "for": "for_loop"}
    missing = [code for code in codes if not hasattr(ProgramBuilder, named.get(code, code))]
    assert missing == []


def test_a_call_has_its_body_and_its_vjp():
    b = ProgramBuilder("w")
    x, n = b.state("x", (2,)), b.literal(3, element=I32)
    y, m = b.call(
        lambda a, k: (2.0 * a, k),
        [x, n],
        lambda args, results, cotangents: 5.0 * cotangents[0] + results[0],
    )
    assert ((y.shape, m.element)) == ((2,), I32)
    call = b.program.step.ops[-1]
    body, vjp = call.regions
    # An i32 has no cotangent, as a result or as an argument.
    assert (len(body.args), len(vjp.args), len(vjp.yields)) == (2, 2 + 2 + 1, 1)
    assert list(call.results) == [y.value, m.value]
    with pytest.raises(ValueError, match="1 real arguments are carried, 2 returned"):
        b.call(lambda a: a, [x], lambda args, results, cotangents: (x, x))
    with pytest.raises(ValueError):
        b.call(lambda a: a, [x], lambda args, results, cotangents: b.literal([1.0, 2.0, 3.0]))


def test_draws_and_halts_are_operations():
    b = ProgramBuilder("w")
    x = b.state("x")
    y = x + b.normal() + b.sum(b.uniform((3,)))
    b.halt("far", y > 2.0, error=True)
    b.next(x=y)
    program = b.build()
    assert ops(program.step).count("normal") == ops(program.step).count("uniform") == 1
    halt = program.step.ops[-1]
    assert (halt.code, halt.decision_site, halt.error, len(halt.results)) == ("halt", "far", True, 0)


@pytest.mark.parametrize("name", ["é", "two words", "", "a/b", "x" * 129, 3])
def test_a_name_that_a_server_would_refuse_is_refused_with_its_line(name):
    b = ProgramBuilder("w")
    x = b.state("x")
    for wrong in (lambda: b.param(name), lambda: b.observe(name, x), lambda: b.objective(name, terminal=lambda s, e: s["x"])):
        with pytest.raises(ValueError, match=r"program_builder_test.py:\d+: .*letters of ASCII, digits, '_', '-' and '.'"):
            wrong()
