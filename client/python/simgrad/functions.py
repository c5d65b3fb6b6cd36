"""Control flow and choices on values of a world, by the names that NumPy and JAX users know.

Each finds the world in its arguments; where those are numbers alone, it is the one that
`simgrad.world` is writing. Values may come alone or in a tuple or list, and come back the same way.
NumPy's own functions (np.sin, np.where, np.stack) work on values too.
"""

from __future__ import annotations

import contextlib
import contextvars
import numbers
from typing import Any, Callable, Iterable, Iterator, Sequence

import numpy as np

from simgrad.expression import Expression
from simgrad.numpy_operands import builder_of
from simgrad.operation_writer import type_text
from simgrad.program import ProgramBuilder
from simgrad.v1.program_pb2 import ELEMENT_TYPE_BOOL, ELEMENT_TYPE_REAL

_WRITTEN: contextvars.ContextVar[ProgramBuilder | None] = contextvars.ContextVar(
    "simgrad_written", default=None
)


@contextlib.contextmanager
def writing(builder: ProgramBuilder) -> Iterator[None]:
    """Inside, functions without a value among their arguments belong to this builder."""
    token = _WRITTEN.set(builder)
    try:
        yield
    finally:
        _WRITTEN.reset(token)


def builder(*values: Any) -> ProgramBuilder:
    """The builder that these values belong to, or the one that is writing: for operations that have
    no function here, as sg.builder().erf(x)."""
    try:
        return builder_of(*values)
    except TypeError:
        written = _WRITTEN.get()
        if written is None:
            raise TypeError(
                "no world is being written: call this in a function under sg.world"
            ) from None
        return written


# ---- Choices ----


def where(condition: Any, a: Any, b: Any) -> Expression:
    """a where the condition holds, else b. Both are computed; a NaN of the one that is not taken
    reaches neither result nor gradient."""
    return builder(condition, a, b).where(condition, a, b)


def cond(
    condition: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *args: Any
) -> Any:
    """then(*args) where the condition holds, else otherwise(*args): only one of them runs."""
    b = builder(condition, args)
    return _branches(lambda regions: b.cond(condition, regions[0], regions[1], args), [then, otherwise])


def switch(index: Any, branches: Sequence[Callable[..., Any]], *args: Any) -> Any:
    """branches[index](*args); the first or the last where there is none of that number."""
    b = builder(index, args)
    return _branches(lambda regions: b.switch(index, regions, args), branches)


def _branches(write: Callable[..., list[Expression]], branches: Sequence[Callable[..., Any]]) -> Any:
    form: list[Any] = []

    def noting(branch: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inner: Any) -> Any:
            made = branch(*inner)
            form.append(made)
            return made

        return run

    made = write([noting(branch) for branch in branches])
    return _formed(form[0], made)


# ---- Loops ----


def while_loop(
    body: Callable[..., Any],
    start: Any,
    *,
    until: Callable[..., Any],
    max_iter: int,
    site: str = "",
    cap_first: bool = False,
) -> Any:
    """start = body(*start), until until(*start) holds, or `max_iter` times. Returns the last values.

    Args:
      until: a bool of the values, true where the loop stops: abs(x) < 1e-9, or a formula with & and |.
      site: its name in diagnostics; without one, that of `body`.
      cap_first: after `max_iter` iterations the test is not evaluated again.
    """
    b = builder(start)
    values = _listed(start)

    def stops(*carried: Expression) -> Any:
        stop = until(*carried)
        if not isinstance(stop, (list, tuple)) and (value := b.value(stop)).element != ELEMENT_TYPE_BOOL:
            raise TypeError(f"{b.here()}`until` returns a bool, as lambda x: abs(x) < 1e-9, not {value!r}")
        return stop

    made, _, _ = b.while_loop(
        site or _site_of(body),
        values,
        stops,
        lambda carried, exports: body(*carried),
        max_iter=max_iter,
        cap_first=cap_first,
    )
    return _formed(start, made)


def fixed_point(
    step: Callable[..., Any],
    start: Any,
    *,
    tol: float | Expression,
    max_iter: int,
    site: str = "",
) -> Any:
    """x with x = step(x), by iteration until no number of x changes by `tol`, which is above 0, or more.

    It is differentiated as unrolled, the gradient being that of the iterations that ran, unless the request
    says otherwise of the site: client.gradient(..., loops={"newton": sg.Implicit()}).
    """
    b = builder(start)
    values = [b.value(x) for x in _listed(start)]
    if all(x.element != ELEMENT_TYPE_REAL for x in values):
        raise TypeError(
            f"{b.here()}sg.fixed_point and sg.root take reals, not {', '.join(map(type_text, values)) or 'nothing'}: "
            "x.astype(float); sg.while_loop iterates over integers"
        )
    count, tol = len(values), _tolerance(b, tol)

    def body(carried: Sequence[Expression], exports: Sequence[Expression]) -> list[Any]:
        before = carried[:count]
        after = [b.value(x) for x in _listed(step(*before))]
        changes = [_largest(abs(x - y)) for x, y in zip(after, before)]
        change = changes[0]
        for other in changes[1:]:
            change = b.max(change, other)
        return [*after, change]

    def stops(*carried: Expression) -> tuple[Expression, Any]:
        return carried[count], tol

    # The first test compares this number: far above tol, and finite in every format.
    far = b.max(2.0**15, b.value(tol) * 2) if isinstance(tol, Expression) else b.literal(max(2.0**15, tol * 2))
    made, _, _ = b.while_loop(
        site or _site_of(step), [*values, far], stops, body, max_iter=max_iter, cap_first=True
    )
    return _formed(start, made[:count])


def root(
    residual: Callable[..., Any],
    start: Any,
    *,
    tol: float | Expression,
    max_iter: int,
    jacobian: Callable[..., Any] | None = None,
    scale: float = 1.0,
    site: str = "",
) -> Any:
    """x with residual(x) = 0, by Newton's method from `start`, until no number of x changes by `tol` or more.

    x is one value, or values in a tuple or list, and the residual has as many real numbers. The step
    is not shortened, so `start` must be near enough; a singular Jacobian ends the loop as non-finite.

    The derivative is -J^-1 times that of the residual by what it reads, J at the last iterate: of the request's
    choices sg.Implicit() gives it exactly, whatever Jacobian the iteration uses, which counts as a
    constant. Unrolled, which is the default, and truncated come to it as the iteration does.

    Args:
      jacobian: of the same arguments, a matrix [n, n] of the n numbers of the residual by those of x, in their
        order; of one number a number. None: by differences, n evaluations of the residual for each iteration.
      scale: how large numbers of x are at least, above 0, for the differences: sqrt(eps) (abs(x) + scale). Not beside
        a Jacobian, which needs none.
      site: its name in diagnostics; without one, that of `residual`.
    """
    b = builder(start)
    known = None if isinstance(scale, Expression) else np.asarray(scale)
    if jacobian is not None and (known is None or np.any(known != 1.0)):
        raise ValueError(f"{b.here()}sg.root with a jacobian and scale={scale!r}: scale is that of differences; leave it out")
    if known is not None and known.dtype.kind not in "iuf":
        raise TypeError(f"{b.here()}scale {scale!r} of sg.root: a number, or one for each of x")
    if known is not None and not np.all(np.isfinite(known) & (known > 0)):
        raise ValueError(f"{b.here()}scale {scale!r} of sg.root: above 0 and finite, else every difference is NaN")
    forms = [b.value(x) for x in _listed(start)]
    count = sum(x.size for x in forms)

    def packed(values: Any, what: str, shape: tuple[int, ...]) -> Expression:
        flat = [b.value(x).reshape(-1) for x in _listed(values)]
        if sum(x.size for x in flat) != int(np.prod(shape)):
            raise ValueError(
                f"{b.here()}{what} of sg.root has {sum(x.size for x in flat)} numbers, where x has {count}: "
                f"it returns {int(np.prod(shape))}"
            )
        return (b.concat(*flat, axes=0) if len(flat) > 1 else flat[0]).reshape(shape)

    def unpacked(x: Expression) -> list[Expression]:
        values, at = [], 0
        for form in forms:
            values.append(x[at : at + form.size].reshape(form.shape))
            at += form.size
        return values

    def of(x: Expression) -> Expression:
        return packed(residual(*unpacked(x)), "the residual", (count,))

    def slopes(x: Expression, now: Expression) -> Expression:
        if jacobian is not None:
            return packed(jacobian(*unpacked(x)), "the Jacobian", (count, count))
        step = b.sqrt(b.next_after(1.0, 2.0) - 1.0) * (abs(x) + scale)

        def column(carried: Any, row: list[Expression]) -> tuple[Any, Any]:
            [unit] = row
            by = unit * step
            return [], [(of(x + by) - now) / by.sum()]

        _, [columns] = b.scan(column, [], [np.eye(count)])
        return columns.T

    def newton(*values: Any) -> Any:
        x = packed(list(values), "x", (count,))
        now = of(x)
        matrix = b.stop_gradient(slopes(x, now))
        made = unpacked(x - b.solve(matrix, now.reshape(-1, 1)).reshape(-1))
        return _formed(start, made)

    return fixed_point(
        newton, start, tol=tol, max_iter=max_iter, site=site or _site_of(residual)
    )


def for_loop(count: int, body: Callable[..., Any], start: Any) -> Any:
    """`count` times start = body(index, *start). Returns the last values."""
    b = builder(start)
    made = b.for_loop(count, _listed(start), lambda index, carried: body(index, *carried))
    return _formed(start, made)


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    start: Any,
    scanned: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """carried, stacked = body(carried, element) over the leading axis of `scanned`.

    Args:
      body: returns the next carried values and what is stacked (None: nothing).
      length: how many turns, where nothing is scanned; the body's element is None then.
    Returns: the last carried values, and what was stacked along a leading axis.
    """
    b = builder(start, scanned)
    form: list[Any] = []

    def write(carried: list[Expression], elements: list[Expression]) -> tuple[Any, Any]:
        given = None if scanned is None else _formed(scanned, elements)
        following, stacked = body(_formed(start, carried), given)
        form.append(stacked)
        return following, [] if stacked is None else stacked

    made, stacks = b.scan(
        write,
        _listed(start),
        [] if scanned is None else _listed(scanned),
        length=length,
        reverse=reverse,
    )
    return _formed(start, made), None if form[0] is None else _formed(form[0], stacks)


class custom_vjp:
    """A function with a derivative of its own, as in JAX.

        @sg.custom_vjp
        def norm(x):
            return np.sqrt((x * x).sum())

        @norm.defvjp
        def norm_vjp(args, result, cotangent):
            (x,) = args
            return cotangent * x / sg.where(result > 0, result, 1.0)

    The vjp takes the arguments, what the function returned and the cotangents of its real values in the
    same form, and returns the cotangents of the real arguments, in their order. Neither function may
    use values around it, but numbers and configs: whatever is to have a gradient is an argument.
    """

    def __init__(self, body: Callable[..., Any]):
        self._body = body
        self._vjp: Callable[[tuple[Any, ...], Any, Any], Any] | None = None
        self.__name__ = getattr(body, "__name__", "call")
        self.__doc__ = body.__doc__ or type(self).__doc__

    def defvjp(
        self, vjp: Callable[[tuple[Any, ...], Any, Any], Any]
    ) -> Callable[[tuple[Any, ...], Any, Any], Any]:
        """Says how a call is differentiated. Returns its argument, so that it may decorate."""
        self._vjp = vjp
        return vjp

    def __call__(self, *args: Any) -> Any:
        b = builder(args)
        form: list[Any] = []

        def body(*inner: Any) -> Any:
            form.append(self._body(*inner))
            return form[-1]

        vjp = self._vjp
        if vjp is None:
            raise TypeError(f"{b.here()}{self.__name__} has no vjp: define one with defvjp")

        def reversed_call(
            operands: list[Expression], results: list[Expression], cotangents: list[Expression]
        ) -> Any:
            return vjp(tuple(operands), _formed(form[0], results), _formed(form[0], cotangents))

        results = b.call(body, args, reversed_call)
        return _formed(form[0], results)


# ---- Random numbers ----


def uniform(shape: int | Sequence[int] = ()) -> Expression:
    """Random numbers, evenly spread over [0, 1). Every call draws others, in every step and for every
    instance, by the `seed` of the request and the instance's id."""
    return builder().uniform(shape)


def normal(shape: int | Sequence[int] = ()) -> Expression:
    """Random numbers, normally distributed with mean 0 and variance 1; as `uniform`."""
    return builder().normal(shape)


# ---- What a step tells ----


def observe(name: str, x: Expression) -> Expression:
    """Exports x: it can be recorded, and costs may read it. Returns x."""
    builder(x).observe(name, x)
    return x


def test(site: str, condition: Expression, kind: str = "") -> Expression:
    """Makes a comparison an event with a name, which reports: sg.test("cold", x < 0.5). `kind`
    declares what it is for: acceptance, membership, halt or guard."""
    return builder(condition).test(site, condition, kind)


def literal(numbers: Any) -> Expression:
    """Numbers that the world holds, as a value of it: an array of NumPy takes no computed index, and
    sg.literal(TABLE)[i] does."""
    return builder().literal(numbers)


def accept(site: str, condition: Expression, trial: Any, current: Any) -> Expression:
    """trial where the condition, a comparison of reals, holds, else current: a site of kind
    acceptance, compared in role `termination`, as a solver's tests are."""
    b = builder(condition)
    return b.where(b.test(site, condition, "acceptance"), trial, current)


def halt(name: str, condition: Expression, *, error: bool = False) -> None:
    """Ends the run of an instance where the condition holds, behind this step: sg.halt("fell", z < 0.2).

    Its states stand still from then on, later steps cost nothing, and an answer's `halted` says which halt
    ended it, in which step. With `error` this step does not count either, and the instance has no
    gradient. Halts stand in the step itself, in no loop and no branch.
    """
    builder(condition).halt(name, condition, error=error)


def stop_gradient(x: Any) -> Expression:
    """x, without a cotangent."""
    return builder(x).stop_gradient(x)


def fake_quantize(
    x: Any,
    format: str = "e4m3",
    *,
    keep_axes: int | Sequence[int] = (),
    scale: Any = None,
) -> Expression:
    """The rest of x in `format`, e4m3 or e5m2, under a scale: x is divided by it, rounded to the nearest
    number of the format, the largest one where it is beyond, and multiplied by it. Shape and format of
    the result are those of x.

    The cotangent passes where nothing was clamped; the scale has none.

    Args:
      x: real, of any shape.
      keep_axes: axes, of channels as a rule, along which the scale keeps its length: each index there
        has a scale of its own, which the elements along all other axes share. None of them: x has one.
        (The operation `ProgramBuilder.fake_quantize` takes those other axes, as `axes`.)
      scale: real, of the lengths of `keep_axes` in the order of x, or what widens to them; one that is
        not above 0 or not finite counts as 1. None: the smallest power of two that brings the largest
        finite magnitude within the format, in every instance by itself, and 1 where that is 0.

    Raises ValueError for another format, for `keep_axes` that x does not have or that name an axis
    twice, and for a scale of another shape.
    """
    b = builder(x, scale)
    value = b.value(x)
    rank = len(value.shape)
    kept: list[Any] = list(keep_axes) if isinstance(keep_axes, Iterable) else [keep_axes]
    if not all(isinstance(axis, numbers.Integral) and -rank <= int(axis) < rank for axis in kept):
        has = f"from {-rank} to {rank - 1}" if rank else "not there, as it has none"
        raise ValueError(
            f"{b.here()}keep_axes {keep_axes!r}: axes of an array of shape {value.shape} are {has}"
        )
    own = [int(axis) % rank for axis in kept]
    repeated = [axis for axis in dict.fromkeys(own) if own.count(axis) > 1]
    if repeated:
        named = f"{'axis' if len(repeated) == 1 else 'axes'} {', '.join(map(str, repeated))}"
        raise ValueError(
            f"{b.here()}keep_axes {keep_axes!r} names {named} of an array of shape {value.shape} more "
            "than once: name each axis once"
        )
    shared = [axis for axis in range(rank) if axis not in own]
    return b.fake_quantize(value, format=format, axes=shared, scale=scale)


def role(name: str, site: str = "") -> contextlib.AbstractContextManager[None]:
    """Operations written inside have this role, and belong to `site` where one is named."""
    return builder().role(name, site)


# ---- Forms ----


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _formed(like: Any, values: Sequence[Any]) -> Any:
    """The values alone, in a tuple, a named one too, or a list, as `like` was."""
    if not isinstance(like, (list, tuple)):
        return values[0]
    if hasattr(like, "_fields"):
        return type(like)(*values)
    return type(like)(values) if type(like) in (list, tuple) else tuple(values)


def _site_of(body: Callable[..., Any]) -> str:
    name = getattr(body, "__name__", "")
    return name if name.isidentifier() and name.isascii() else "loop"


def _tolerance(b: ProgramBuilder, tol: Any) -> float | Expression:
    """A tolerance: a real scalar of the world, or a number. Raises TypeError or ValueError for anything else."""
    if isinstance(tol, Expression):
        if tol.shape or tol.element != ELEMENT_TYPE_REAL:
            raise TypeError(f"{b.here()}tol is one real, not {type_text(tol)}")
        return tol
    known = np.asarray(tol)
    if known.dtype.kind not in "iuf" or known.shape:
        raise TypeError(f"{b.here()}tol is one number, not {tol!r}")
    if not np.isfinite(known):
        raise ValueError(f"{b.here()}tol {tol!r}: a finite number")
    if known <= 0:
        raise ValueError(
            f"{b.here()}tol {tol!r}: above 0, as no change is below it and the loop would turn `max_iter` times in every "
            "run; sg.for_loop turns a known number of times"
        )
    return float(known)


def _largest(x: Expression) -> Expression:
    return x.max() if x.shape else x
