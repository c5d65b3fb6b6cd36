"""Rules of calls: inlined jaxprs, custom derivatives, wrappers that change no number, and callbacks."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.interpreters import ad

from simgrad.jax.backward_rules import places_without_derivative, why_not_linear
from simgrad.jax.graph import Graph
from simgrad.jax.lowering import OF_OTHERS, Lowering, NotLowered, Operands, line_of, primitives_of, rule
from simgrad.jax.node import REAL, Node, Value, neutral, size_of
from simgrad.jax.rules_elementwise import carrying
from simgrad.jax.rules_named import of_name
from simgrad.jax.rules_random import draws_normally, is_uniform, normals_of, uniform_of

_JAX = f"{pathlib.Path(jax.__file__).parent}{os.sep}"
_CHECKPOINTED = os.path.join("equinox", "internal", "_loop", "checkpointed.py")
_CUSTOM_GRADIENT = f"{os.sep}custom_derivatives.py"  # the file that has it


@rule("jit", "pjit", "closed_call", "core_call", "core_closed_call", "remat", "remat2", "checkpoint")
def _inlined(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    params = equation.params
    if draws_normally(equation):
        return normals_of(low, equation, operands)
    if is_uniform(equation):
        return uniform_of(low, equation, operands)
    named = of_name(low, equation, operands)
    if named is not None:
        return list(named)
    return low.jaxpr(params.get("jaxpr") or params["call_jaxpr"], operands)


@rule("custom_jvp_call")
def _custom_jvp(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """The function, with its author's derivative where that is kept.

    out + J (x - x) is out, and has the author's J for its derivative: the rule is linear in the
    tangent, which is x less itself, held constant. JAX's own functions have such rules where those of
    the operations that they are made of have a kink.
    """
    called = equation.params["call_jaxpr"]
    if low.options.custom == "inline":
        low.graph.notes["custom_jvp_call: inlined"] += 1
        return low.jaxpr(called, operands)
    graph = low.graph
    reals = [k for k, x in enumerate(operands) if isinstance(x, Node) and x.is_active]
    with low.inside_of_custom():
        found = low.jaxpr(called, operands)
        if not any(isinstance(x, Node) and x.is_active for x in found):
            return found
        try:
            rule_of = _rule_of(equation, operands, reals)
        except Exception as error:  # whatever the author's rule raises
            graph.notes[f"custom_jvp_call: inlined, as its rule fails: {str(error)[:60]}"] += 1
            return found
        tangents = [graph.motion(operands[k]) for k in reals]
        frozen = [_frozen(graph, x) if x.dtype == REAL else x for x in operands]
        with low.inside_of_rule():
            moved = low.jaxpr(rule_of, [*frozen, *tangents])
    graph.notes["custom_jvp_call: its author's derivative"] += 1
    carrying = iter(moved)
    return [
        _carrying(graph, x, next(carrying)) if neutral(v.aval.dtype) == REAL else x
        for x, v in zip(found, equation.outvars)
    ]


def _rule_of(equation: Any, operands: Operands, reals: list[int]) -> Any:
    """The jaxpr of the author's rule."""
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    return jax.make_jaxpr(_tangents(equation, reals))(*types, *(types[k] for k in reals))


def _tangents(equation: Any, reals: list[int]) -> Callable[..., Any]:
    """A function of the operands and of tangents of the real ones: the real results' tangents."""

    def of(*given: Any) -> list[Any]:
        operands = list(given[: -len(reals)])
        run = lambda *moving: _reals_of(equation, operands, reals, moving)
        given_tangents = tuple(given[-len(reals) :])
        _, moved = jax.jvp(run, tuple(operands[k] for k in reals), given_tangents)
        return list(moved)

    return of


def _carrying(graph: Graph, x: Value, tangent: Value) -> Value:
    """x without its own derivative, with that of the tangent, which is 0 where it is finite."""
    return carrying(graph, _frozen(graph, x), tangent)


def _is_of_jax(backward: Any) -> bool:
    """Whether a backward rule is one of JAX's own; that of jax.custom_gradient calls its user's."""
    source = str(getattr(getattr(backward, "debug_info", None), "func_src_info", ""))
    return _JAX in source and _CUSTOM_GRADIENT not in source


def _is_checkpointed(called: Any) -> bool:
    """Whether it is a checkpointed loop of Equinox, whose backward rule differentiates the turns that ran; one that is
    batched widens what it carries before."""
    equations = getattr(called, "jaxpr", called).eqns
    loops = [e for e in equations if e.primitive.name == "while"]
    return len(loops) == 1 and all(line_of(e).path.endswith(_CHECKPOINTED) for e in equations)


@rule("custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom_vjp(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """The function, with its author's derivative where that is kept: the backward rule is linear, and
    its transpose takes tangents forward. One that JAX cannot transpose, with a loop over the
    cotangent, is inlined; so is one that is not linear, as it adds to the cotangent or makes integers of it.
    A function whose operations have no derivative, as a bisection, has the rows of its author's, one for each of
    few results."""
    params, graph = equation.params, low.graph
    called = params.get("call_jaxpr") or params["fun_jaxpr"]
    reals = [k for k, x in enumerate(operands) if isinstance(x, Node) and x.is_active]
    if low.options.custom == "inline" or _is_of_jax(params["bwd"]) or not reals:
        graph.notes["custom_vjp_call: inlined"] += 1
        return low.jaxpr(called, operands)
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    try:
        rule_of = jax.make_jaxpr(_transposed(equation, reals))(*types, *(types[k] for k in reals))
    except Exception as error:  # whatever the author's rule raises
        why = f"as JAX cannot transpose its rule ({type(error).__name__})"
        run = lambda whole, moving: _reals_of(equation, whole, reals, moving)
        lost = 0 if _is_checkpointed(called) else len(places_without_derivative(run, called, types, reals))
        made = _by_rows(low, equation, operands, reals, types) if lost else None
        return _without_rule(low, called, operands, why, lost) if made is None else made
    run = lambda whole, moving: _reals_of(equation, whole, reals, moving)
    if why := why_not_linear(run, rule_of, operands, reals):
        return _without_rule(low, called, operands, f"as {why}")
    graph.notes["custom_vjp_call: its author's derivative"] += 1
    with low.inside_of_custom():
        tangents = [graph.motion(operands[k]) for k in reals]
        frozen = [_frozen(graph, x) if x.dtype == REAL else x for x in operands]
        with low.inside_of_rule():
            made = low.jaxpr(rule_of, [*frozen, *tangents])
    count = len(equation.outvars)
    carrying = iter(made[count:])
    return [
        _carrying(graph, x, next(carrying)) if neutral(v.aval.dtype) == REAL else x
        for x, v in zip(made, equation.outvars)
    ]


def _without_rule(low: Lowering, called: Any, operands: Operands, why: str, lost: int = 0) -> list[Value]:
    """The function without its author's derivative. The user is warned where the derivative may be another one. `lost` is the
    number of operands by which it is 0."""
    low.graph.notes[f"custom_vjp_call: inlined, {why}"] += 1
    if not _is_checkpointed(called):
        none = f", which is 0 by {lost} of its operands" if lost else ""
        low.warn(f'a custom_vjp has the derivative of its operations{none}, {why}; custom="inline" asks for that')
    return low.jaxpr(called, operands)


_MOST_ROWS = 64  # results of which each has a run of its author's rule


def _by_rows(
    low: Lowering, equation: Any, operands: Operands, reals: list[int], types: Sequence[Any]
) -> list[Value] | None:
    """The results with their author's derivative. A row of it is the rule's answer to a cotangent of 1 for one result; the rule
    is taken to be linear. None where it cannot be lowered, or has too many rows."""
    is_real = [neutral(v.aval.dtype) == REAL for v in equation.outvars]
    if not 0 < sum(size_of(v.aval.shape) for v, real in zip(equation.outvars, is_real) if real) <= _MOST_ROWS:
        return None
    rows_of, moved_by = _rows(equation, reals)
    try:
        closed = jax.make_jaxpr(rows_of)(*types)
    except Exception:  # whatever the author's rule raises
        return None
    graph = low.graph
    frozen = [_frozen(graph, x) if x.dtype == REAL else x for x in operands]
    with low.inside_of_custom():
        found = low.tried(lambda: low.jaxpr(closed, frozen))
    if found is None:
        return None
    graph.notes["custom_vjp_call: its author's derivative, row by row"] += 1
    made, rows = found[: len(is_real)], [_frozen(graph, x) for x in found[len(is_real) :]]
    tangents = [graph.motion(operands[k]) for k in reals]
    shapes = [[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in xs] for xs in (rows, tangents)]
    moved = iter(low.jaxpr(jax.make_jaxpr(moved_by)(*shapes), [*rows, *tangents]))
    return [_carrying(graph, x, next(moved)) if real else x for x, real in zip(made, is_real)]


def _rows(equation: Any, reals: list[int]) -> tuple[Callable[..., list[Any]], Callable[..., list[Any]]]:
    """Two functions. The first takes the operands, and returns all results and the rows by each real operand. The second
    takes rows and tangents, and returns the tangents of the real results."""
    shaped: Any = None

    def rows_of(*operands: Any) -> list[Any]:
        nonlocal shaped
        out, back = jax.vjp(lambda *moving: _reals_of(equation, operands, reals, moving), *(operands[k] for k in reals))
        flat, shaped = ravel_pytree(out)
        rows = jax.lax.map(lambda one: back(shaped(one)), jnp.eye(flat.size, dtype=flat.dtype))
        return [*_bound(equation, list(operands)), *rows]

    def moved_by(rows: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        products = [jnp.tensordot(row, t, axes=t.ndim) for row, t in zip(rows, tangents)]
        moved: list[Any] = shaped(functools.reduce(jnp.add, products))
        return moved

    return rows_of, moved_by


def _transposed(equation: Any, reals: list[int]) -> Callable[..., Any]:
    """A function of the operands and of tangents of the real ones: all results, and the real ones'
    tangents."""

    def of(*given: Any) -> list[Any]:
        operands, tangents = list(given[: -len(reals)]), given[-len(reals) :]

        def run(*moving: Any) -> tuple[list[Any], list[Any]]:
            whole = list(operands)
            for k, x in zip(reals, moving):
                whole[k] = x
            made = _bound(equation, whole)
            return [x for x in made if jnp.issubdtype(x.dtype, jnp.floating)], made

        out, back, made = jax.vjp(run, *(operands[k] for k in reals), has_aux=True)
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in out]
        moved = jax.linear_transpose(lambda cotangents: back(cotangents), types)(tuple(tangents))
        return [*made, *moved[0]]

    return of


def _reals_of(equation: Any, operands: Sequence[Any], reals: list[int], moving: Sequence[Any]) -> list[Any]:
    """The real results of the primitive, with `moving` in the places of the real operands."""
    whole = list(operands)
    for k, x in zip(reals, moving):
        whole[k] = x
    return [x for x in _bound(equation, whole) if jnp.issubdtype(x.dtype, jnp.floating)]


def _bound(equation: Any, operands: list[Any]) -> list[Any]:
    """The results of the primitive, bound so that JAX applies the author's rules."""
    bound = equation.primitive.get_bind_params(equation.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    made = equation.primitive.bind(*functions, *operands, **params)
    return list(made) if equation.primitive.multiple_results else [made]


# Primitives of Equinox whose rules differentiate what their implementation does.
_OF_THEIR_OPERATIONS = frozenset(("composite", "maybe_set", "noinline"))


@rule(OF_OTHERS)
def _own(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """A primitive of someone's own: its implementation is traced, and lowered in its place. Where JAX differentiates it
    by a rule, it has the derivative of that rule: one with a loop need not have that of the turns that ran."""
    traced, name = low.implementation(equation), equation.primitive.name
    low.graph.notes[f"{name}: its implementation"] += 1
    reals = [k for k, x in enumerate(operands) if isinstance(x, Node) and x.is_active]
    has_rule = equation.primitive in ad.primitive_jvps and name not in _OF_THEIR_OPERATIONS
    if low.options.custom == "inline" or not reals or not has_rule:
        return low.jaxpr(traced, operands)
    made = _by_its_rule(low, equation, operands, reals)
    if made is not None:
        return made
    low.warn(f"{name!r} has the derivative of its operations, as JAX's rule for it is not lowered")
    return low.jaxpr(traced, operands)


def _by_its_rule(low: Lowering, equation: Any, operands: Operands, reals: list[int]) -> list[Value] | None:
    """The results of a primitive, with the derivative that JAX has a rule for; None where that is not lowered."""
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]

    def moved(*given: Any) -> list[Any]:
        whole, tangents = list(given[: -len(reals)]), given[-len(reals) :]
        run = lambda *moving: _reals_of(equation, whole, reals, moving)
        _, out = jax.jvp(run, tuple(whole[k] for k in reals), tuple(tangents))
        return [*_bound(equation, whole), *out]

    try:
        rule_of = jax.make_jaxpr(moved)(*types, *(types[k] for k in reals))
    except Exception:  # whatever the rule raises
        return None
    graph = low.graph
    tangents = [graph.motion(operands[k]) for k in reals]
    frozen = [_frozen(graph, x) if x.dtype == REAL else x for x in operands]
    with low.inside_of_rule():
        made = low.tried(lambda: low.jaxpr(rule_of, [*frozen, *tangents]))
    if made is None:
        return None
    count = len(equation.outvars)
    moving = iter(made[count:])
    return [
        _carrying(graph, x, next(moving)) if neutral(v.aval.dtype) == REAL else x
        for x, v in zip(made, equation.outvars)
    ]


@rule("custom_linear_solve")
def _custom_linear_solve(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """With the derivative of a solution: the matrix gets -w x' of w, which solves the transposed system. It does
    not matter how the solution was found, if the solver is linear in the right side; see _generic for others."""
    lengths = list(equation.params["const_lengths"])
    ends = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    of_matvec, _, of_solve, _ = (operands[a:b] for a, b in zip(ends, ends[1:]))
    right = operands[ends[-1] :]
    jaxprs = equation.params["jaxprs"]
    dense = _dense(low, jaxprs.matvec, of_matvec, of_solve, right)
    if dense is not None:
        return [dense]
    graph = low.graph
    is_linear = _is_linear(jaxprs.solve, of_solve, right)
    if not is_linear and _is_inlined(low, right):
        return low.jaxpr(jaxprs.solve, [*of_solve, *right])
    graph.notes[f"custom_linear_solve: {_SECOND if is_linear else _OF_RANDOM}"] += 1
    if low.of_tangents and not is_linear and _moves(right):
        found: list[Value] = [np.zeros(b.shape) for b in right]
    else:
        found = [_frozen(graph, x) for x in low.jaxpr(jaxprs.solve, [*of_solve, *right])]
    # x + (y - y) is x; y = S(b - A x) carries the derivative by b and by A.
    products = low.jaxpr(jaxprs.matvec, [*of_matvec, *found])
    left = [graph.arithmetic("sub", b, product) for b, product in zip(right, products)]
    if not is_linear:
        left, of_solve = _generic(graph, left), [_frozen(graph, x) if x.dtype == REAL else x for x in of_solve]
    with contextlib.nullcontext() if is_linear else low.of_solver():
        carrying = low.jaxpr(jaxprs.solve, [*of_solve, *left])
    zeros = [graph.arithmetic("sub", y, _frozen(graph, y)) for y in carrying]
    return [graph.arithmetic("add", x, zero) for x, zero in zip(found, zeros)]


_SECOND = "its derivative by a second solve"
_OF_RANDOM = "its derivative by a second solve, of random numbers, as its solver stops by a test"


def _moves(values: Sequence[Value]) -> bool:
    return any(isinstance(x, Node) and x.is_active for x in values)


def _is_inlined(low: Lowering, right: Sequence[Value]) -> bool:
    """Whether the iterations of a solver that is not linear are differentiated themselves; of a tangent never."""
    return low.options.custom == "inline" and not (low.of_tangents and _moves(right))


def _generic(graph: Graph, right: Sequence[Value]) -> list[Value]:
    """Right sides with the derivatives of these, and the values of random numbers. A solver that is not linear, such as
    conjugate gradients, has the derivative of a solution up to its tolerance where it searches every direction: of a
    right side of nothing it makes no turn, and of one with a symmetry it never leaves that."""
    draws = np.random.default_rng(0)
    return [graph.arithmetic("add", graph.motion(b), draws.standard_normal(b.shape)) for b in right]


@rule("linear_solve")
def _linear_solve(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """lineax's solve, which reads the matrix from a state that holds it constant. With the state of the matrix itself
    the derivative is that of its factors; where that cannot be made, and of solvers that stop by a test, it is its
    author's, by a second solve."""
    traced, graph = low.implementation(equation), low.graph
    reals = [k for k, x in enumerate(operands) if isinstance(x, Node) and x.is_active]
    read = {id(v) for e in traced.jaxpr.eqns for v in e.invars} | {id(v) for v in traced.jaxpr.outvars}
    is_read = [id(v) in read for v in traced.jaxpr.invars]
    if low.of_tangents:  # they move right sides alone
        reals = [k for k in reals if is_read[k]]
    stops = "while" in primitives_of(traced) and not _is_inlined(low, operands)
    if all(is_read[k] for k in reals):
        if not stops or not reals:
            return low.jaxpr(traced, operands)
        graph.notes[f"linear_solve: {_OF_RANDOM}"] += 1
        others = [_frozen(graph, x) if x.dtype == REAL else x for x in operands]
        for k, b in zip(reals, _generic(graph, [operands[k] for k in reals])):
            others[k] = b
        with low.of_solver():
            other = low.jaxpr(traced, others)
        if low.of_tangents:
            found = [np.zeros(y.shape) if y.dtype == REAL else y for y in other]
        else:
            found = low.jaxpr(traced, operands)
        return _with_derivative_of(graph, equation, found, other)
    known: dict[Node, Value] = {}
    try:
        moving = [_moving(graph, x, known) for x in operands]
    except RecursionError:  # what is held constant goes far back
        moving = list(operands)
    states = [k for k, x in enumerate(operands) if is_read[k] and k not in reals and x.dtype == REAL]
    if not stops and all(_moves([moving[k]]) for k in states):
        return low.jaxpr(traced, moving)
    graph.notes[f"linear_solve: {_SECOND}"] += 1
    found = low.jaxpr(traced, operands)
    tangents = [graph.motion(operands[k]) for k in reals]
    frozen = [_frozen(graph, x) if x.dtype == REAL else x for x in operands]
    with low.inside_of_rule():
        moved = low.jaxpr(_rule_of(equation, operands, reals), [*frozen, *tangents])
    kinds = [neutral(v.aval.dtype) == REAL for v in equation.outvars]
    each = iter(moved)
    return [_carrying(graph, x, next(each)) if is_real else x for x, is_real in zip(found, kinds)]


def _with_derivative_of(graph: Graph, equation: Any, found: Sequence[Value], other: Sequence[Value]) -> list[Value]:
    """The results that were found, with the derivatives of others."""
    made = []
    for x, y, v in zip(found, other, equation.outvars):
        if neutral(v.aval.dtype) == REAL:
            x = graph.arithmetic("add", _frozen(graph, x), graph.arithmetic("sub", y, _frozen(graph, y)))
        made.append(x)
    return made


def _moving(graph: Graph, x: Value, made: dict[Node, Value]) -> Value:
    """x as it is computed of what was held constant for it; `made` has what is known already."""
    if not isinstance(x, Node) or x.is_active:
        return x
    if x not in made:
        made[x] = x
        if x.op == "stop_gradient":
            made[x] = _moving(graph, graph.value(x.operands[0]), made)
        elif x.op not in ("input", "argument", "literal", "result") and not x.regions:
            operands = [_moving(graph, graph.value(y), made) for y in x.operands]
            if any(isinstance(y, Node) and y.is_active for y in operands):
                made[x] = graph.make(x.op, operands, x.attributes, x.shape, x.dtype)
    return made[x]


def _is_linear(solve: Any, of_solve: Operands, right: Operands) -> bool:
    """Whether JAX can transpose the solver by its right side."""
    run = jax.extend.core.jaxpr_as_fun(solve)
    given, types = ([jax.ShapeDtypeStruct(x.shape, x.dtype) for x in xs] for xs in (of_solve, right))

    def transposed(constants: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        return jax.linear_transpose(lambda *b: run(*constants, *b), *types)(list(cotangents))

    try:
        jax.make_jaxpr(transposed)(given, types)
    except Exception:  # whatever JAX raises of an operation that has no transpose
        return False
    return True


def _frozen(graph: Graph, x: Value) -> Value:
    return graph.emit("stop_gradient", x)


def _dense(
    low: Lowering, matvec: Any, of_matvec: Operands, of_solve: Operands, right: Operands
) -> Value | None:
    """The solution by lu_solve, where the matrix is given and its factors are those of JAX's lu."""
    codes = [e.primitive.name for e in matvec.jaxpr.eqns]
    if codes != ["dot_general"] or len(of_matvec) != 1 or len(of_solve) != 2 or len(right) != 1:
        return None
    [equation] = matvec.jaxpr.eqns
    matrix, (factors, permutation) = of_matvec[0], of_solve
    numbers = ((1,), (0,)), ((), ())
    if equation.params["dimension_numbers"] != numbers or len(matrix.shape) != 2:
        return None
    if list(equation.invars) != list(matvec.jaxpr.invars):
        return None
    made_of = (_matrix_of(factors, "lu"), _matrix_of(permutation, "lu_permutation"))
    if any(x is None or x is not _plain(matrix) for x in made_of):
        return None
    graph = low.graph
    columns = graph.reshape(right[0], [*right[0].shape[:1], max(1, size_of(right[0].shape[1:]))])
    solved = graph.emit("lu_solve", matrix, factors, permutation, columns)
    return graph.reshape(solved, right[0].shape)


def _matrix_of(x: Value, op: str) -> Value | None:
    if isinstance(x, Node) and x.op == op:
        return _plain(x.operands[0])
    return None


def _plain(x: Value) -> Value:
    while isinstance(x, Node) and x.op == "stop_gradient":
        x = x.operands[0]
    return x


@rule(
    *("copy", "copy_p", "device_put", "optimization_barrier", "sharding_constraint", "pvary"),
    *("nonbatchable", "nontraceable"),
)
def _unchanged(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    return operands


@rule("nondifferentiable", "nondifferentiable_backward")
def _nondifferentiable(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    """Equinox refuses derivatives here; there are none."""
    return [_frozen(low.graph, x) if x.dtype == REAL else x for x in operands]


@rule("select_if_vmap")
def _select_if_vmap(low: Lowering, equation: Any, operands: Operands) -> Value:
    """Equinox masks carried values where it is vectorised: here every instance stops alone."""
    return operands[1]


@rule("unvmap_any", "unvmap_all", "unvmap_max")
def _over_instances(low: Lowering, equation: Any, operands: Operands) -> Value:
    """Equinox asks all instances of a batch: here there is one."""
    x = operands[0]
    codes = {"unvmap_any": "any", "unvmap_all": "all", "unvmap_max": "reduce_max"}
    if not x.shape:
        return x
    flat = low.graph.reshape(x, (x.size,))
    return low.graph.emit(codes[equation.primitive.name], flat, axes=(0,))


@rule("debug_callback", "debug_print")
def _debug(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    low.dropped[low.graph.line.text] = equation.primitive.name
    return [np.zeros(v.aval.shape, neutral(v.aval.dtype)) for v in equation.outvars]


@rule("pure_callback", "io_callback")
def _callback(low: Lowering, equation: Any, operands: Operands) -> list[Value]:
    raise NotLowered(
        f"{equation.primitive.name} calls Python at every step",
        "a world is data: write it in jax.numpy, or compute it before",
    )


@rule("platform_index")
def _platform(low: Lowering, equation: Any, operands: Operands) -> Value:
    for number, platforms in enumerate(equation.params["platforms"]):
        if platforms is None or "cpu" in platforms:
            return np.asarray(number, np.int32)
    raise NotLowered("a choice of platforms without the CPU")
