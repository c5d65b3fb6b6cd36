"""Whether a backward rule of a custom_vjp is linear in its cotangent, so that its transpose takes tangents forward.

JAX refuses to transpose most rules that are not. It transposes the linear part of a rule that adds to its cotangent, and
takes what makes integers or bools of a cotangent, by a conversion, a comparison or a sort, to be linear, of derivative 0.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from simgrad.jax.lowering import nested_jaxprs
from simgrad.jax.node import REAL, Node, Value

# Sizes of the numbers that stand in for operands, and of cotangents: small ones are 0 as integers.
_SIZES = ((1.0, 1.0), (1e3, 1e3), (1e-3, 1e3))


def why_not_linear(
    run: Callable[[Sequence[Any], Sequence[Any]], list[Any]], transposed: Any, operands: Sequence[Value], reals: Sequence[int]
) -> str:
    """Tells why a backward rule is not linear, as far as numbers show it; empty where they show nothing. Where operands
    are unknown, numbers of three sizes stand in.

    Args:
      run: run(operands, moving): the real results, with `moving` in the places of the real operands, which JAX
        differentiates by the rule.
      transposed: the jaxpr of operands and tangents that gives tangents of the real results, the last ones that it gives.
      reals: the places of real operands.
    """
    draws = np.random.default_rng(0)
    near = _nearness(transposed)
    for size, of_cotangents in _SIZES:
        whole = [_stand_in(x, draws, size) if isinstance(x, Node) else jnp.asarray(x) for x in operands]
        try:
            out, back = jax.vjp(lambda *moving: run(whole, moving), *(whole[k] for k in reals))
            if any((np.isfinite(x) & (x != 0)).any() for x in _arrays(back([jnp.zeros_like(x) for x in out]))):
                return "its rule gives more than 0 for a cotangent of 0"
            moved = lambda tangents: core.jaxpr_as_fun(transposed)(*whole, *tangents)[-len(out) :]
            cotangents = [jnp.asarray(of_cotangents * draws.normal(size=x.shape), x.dtype) for x in out]
            if out and _differ(back, moved, cotangents, draws, near):
                return "its rule is not linear in the cotangent, and JAX's transpose of it gives other numbers"
        except Exception:  # whatever the author's rule raises of such numbers
            continue
    return ""


def places_without_derivative(
    run: Callable[[Sequence[Any], Sequence[Any]], list[Any]], called: Any, types: Sequence[Any], reals: Sequence[int]
) -> list[int]:
    """The places of real operands by which some result has a derivative under the author's backward rule, and none under the
    operations of the function. A bisection has such operands: it compares them, and computes nothing from them. Both
    derivatives are traced; nothing is run.

    Args:
      run, reals: as of why_not_linear. called: the jaxpr of the function. types: shapes and dtypes of its operands.
    """

    function: Any = core.jaxpr_as_fun(called)

    def pulled(whole: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        _, back = jax.vjp(lambda *moving: run(whole, moving), *(whole[k] for k in reals))
        return back(list(cotangents))

    def moved(k: int, whole: Sequence[Any], tangent: Any) -> list[Any]:
        of_one = lambda x: _reals(function(*whole[:k], x, *whole[k + 1 :]))
        found: list[Any] = jax.jvp(of_one, (whole[k],), (tangent,))[1]
        return found

    try:
        out = jax.eval_shape(lambda whole: _reals(function(*whole)), types)
        by_rule = _reached(jax.make_jaxpr(pulled)(types, out), len(types))
        lost = []
        for place, k in enumerate(reals):
            by_operations = _reached(jax.make_jaxpr(lambda *given: moved(k, *given))(types, types[k]), len(types))
            if any(i in by_rule[place] and not by_operations[i] for i in range(len(out))):
                lost.append(k)
        return lost
    except Exception:  # whatever a rule, or JAX, raises of them
        return []


def _reals(given: Sequence[Any]) -> list[Any]:
    return [x for x in given if jnp.issubdtype(x.dtype, jnp.floating)]


def _reached(closed: Any, first: int) -> list[set[int]]:
    """For each result of a jaxpr, the inputs from `first` on that reach it, counted from `first`. A loop or a branch counts as
    one operation: each of its results depends on all its inputs."""
    reached: dict[Any, set[int]] = {v: {place} for place, v in enumerate(closed.jaxpr.invars[first:])}

    def of(variables: Iterable[Any]) -> set[int]:
        return {place for v in variables if not isinstance(v, core.Literal) for place in reached.get(v, ())}

    for equation in closed.jaxpr.eqns:
        reached.update(dict.fromkeys(equation.outvars, of(equation.invars)))
    return [of([v]) for v in closed.jaxpr.outvars]


def _differ(
    back: Callable[[Any], Any], moved: Callable[[Any], Any], given: list[Any], draws: np.random.Generator, near: float
) -> bool:
    """Whether <back(c), t> is another number than <c, moved(t)>. Places where a number is not finite are left out: of
    the cotangents c in a second turn. No sum cancels, as t has the signs of back(c)."""
    for _ in range(2):
        pulled = _arrays(back(given))
        tangents = []
        for p in pulled:
            t = draws.normal(size=p.shape)
            tangents.append(np.where(np.isfinite(p), np.where(p == 0, t, np.copysign(t, p)), 0.0))
        found = _arrays(moved([jnp.asarray(t) for t in tangents]))
        first, second = _products(pulled, tangents), _products(found, _arrays(given))
        if np.isfinite(second).all():
            return bool(abs(first.sum() - second.sum()) > near * (np.abs(first).sum() + np.abs(second).sum()))
        given = [jnp.where(jnp.isfinite(m), c, jnp.zeros_like(c)) for m, c in zip(found, given)]
    return False


def _products(found: Sequence[np.ndarray], by: Sequence[np.ndarray]) -> np.ndarray:
    """Products of all elements, those by 0 being left out: 0 times NaN is none."""
    return np.concatenate([x[y != 0] * y[y != 0] for x, y in zip(found, by)])


def _arrays(given: Sequence[Any]) -> list[np.ndarray]:
    """The reals among them, as f64."""
    return [np.asarray(x, np.float64) for x in given if jnp.issubdtype(x.dtype, jnp.floating)]


def _stand_in(x: Node, draws: np.random.Generator, size: float) -> Any:
    numbers = size * draws.normal(size=x.shape)
    return jnp.asarray(numbers.astype(x.dtype) if x.dtype == REAL else np.ones(x.shape, x.dtype))


def _nearness(closed: Any) -> float:
    """The relative difference of what is equal but for rounding: a third of the digits of the coarsest format of a jaxpr."""
    coarsest = float(jnp.finfo(np.float64).eps)

    def walk(jaxpr: Any) -> None:
        nonlocal coarsest
        for equation in jaxpr.eqns:
            for v in equation.outvars:
                if jnp.issubdtype(getattr(v.aval, "dtype", np.int32), jnp.floating):
                    coarsest = max(coarsest, float(jnp.finfo(v.aval.dtype).eps))
            if equation.primitive.name == "reduce_precision":
                coarsest = max(coarsest, 2.0 ** -equation.params["mantissa_bits"])
            for nested in nested_jaxprs(equation.params.values()):
                walk(nested)

    walk(getattr(closed, "jaxpr", closed))
    return float(coarsest ** (1 / 3))
