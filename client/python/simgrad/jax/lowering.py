"""Lowers a jaxpr: each equation by the rule of its primitive, with the line that asked for it.

A rule is a function (lowering, equation, operands) -> results, registered by the names of primitives:

    @rule("square")
    def _square(low: Lowering, equation: Any, operands: Operands) -> Value:
        return low.graph.arithmetic("mul", operands[0], operands[0])

`equation.params` and `equation.outvars` are JAX's. Operands and results are numbers or nodes. A rule
raises NotLowered with a hint for what it does not know; the rest is lowered, so that all is told at
once. A primitive without a rule is lowered through its own implementation where it has one in JAX (rules_call.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from typing import Any, Callable, Iterable, Iterator, Sequence

import jax
import numpy as np
from jax._src import source_info_util
from jax.extend import core

from simgrad.jax.errors import Problems, told
from simgrad.jax.given import Given
from simgrad.jax.graph import Graph
from simgrad.jax.hints import HINTS
from simgrad.jax.integer_inputs import alone_behind, remedy
from simgrad.jax.node import I64, INSTALLED, U64, Line, Node, Value, known_array, neutral, size_of
from simgrad.jax.ranges import OF_I32
from simgrad.jax.trees import wrapped

Operands = list[Value]
Rule = Callable[["Lowering", Any, Operands], "Value | Sequence[Value]"]

RULES: dict[str, Rule] = {}
OF_KEYS: dict[str, Rule] = {}  # of primitives that move whole random keys
OF_OTHERS = "(no rule of its own)"  # the name of the rule of all other primitives
WIDE: dict[str, Rule] = {}  # of primitives that mean something else of u64 than of the i64 that stands for it
_NOT_WIDE = frozenset(
    (
        *("div", "max", "min", "reduce_max", "reduce_min", "argmax", "argmin", "sort", "cummax", "cummin"),
        *("top_k", "reduce_window", "reduce_window_max", "reduce_window_min", "clamp", "sign", "abs", "pow", "shift_right_arithmetic"),
    )
)
_MOST_ELEMENTS_EVALUATED = 1 << 22
_HERE = f"{pathlib.Path(__file__).parent}{os.sep}"


class NotLowered(Exception):
    """Raised by a rule for something that it does not know; args: (what, hint)."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers the rule of primitives by their names."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


@dataclasses.dataclass(frozen=True)
class Options:
    """How a step is lowered; `simgrad.jax.world` says what each means. `random` is "none" where nothing may be drawn.
    `warned` takes what the user is warned of at the end, each text once: a step is lowered several times.
    `without_x64`: the line that clashes under x64, for which the step has the widths of JAX without it; else empty."""

    custom: str = "keep"
    formats: str = "erase"
    kinks: str = "simgrad"
    random: str = "threefry"
    max_iter: Given[int] = dataclasses.field(default_factory=lambda: Given("max_iter", None))
    warned: dict[str, None] = dataclasses.field(default_factory=dict, compare=False)
    without_x64: str = ""


# The word in Lowering.dropped for an error_if of Equinox, whose condition is then not tested.
ERROR_IF = "error_if"


class Lowering:
    """One step being lowered into a graph.

    Attributes:
      graph: takes the operations.
      options: of the world.
      problems: what could not be lowered.
      chosen: branches that are known to run, by the node that decides them.
      erased: lines where JAX rounds to a narrower format, and the world does not, with counts.
      dropped: callbacks that are left out, by line.
      wide: primitives whose integers of 64 bits may be ones that 32 bits do not hold, by line.
      above_one: what is above 1 in numbers that were made of bits: a draw is such a number less 1.
      draws_normally: inside of jax.random.normal.
    """

    def __init__(self, graph: Graph, options: Options):
        self.graph = graph
        self.options = options
        self.problems = Problems()
        self.chosen: dict[Node, int] = {}
        self.erased: dict[str, str] = {}
        self.dropped: dict[str, str] = {}
        self.wide: dict[str, str] = {}
        self.above_one: dict[Node, Value] = {}
        self.draws_normally = False
        self.of_tangents = False  # see inside_of_rule
        self._open: list[Any] = []  # equations that are being lowered, the innermost last

    def jaxpr(self, closed: Any, operands: Sequence[Value]) -> list[Value]:
        """The results of a jaxpr for these operands."""
        jaxpr = getattr(closed, "jaxpr", closed)
        environment: dict[Any, Value] = {}
        for variable, constant in zip(jaxpr.constvars, getattr(closed, "consts", ())):
            environment[variable] = _of_width(_constant(constant), variable.aval)
        environment.update(zip(jaxpr.invars, operands))

        def read(variable: Any) -> Value:
            if isinstance(variable, core.Literal):
                return _of_width(known_array(variable.val), variable.aval)
            return environment[variable]

        for equation in jaxpr.eqns:
            self._open.append(equation)
            with self.graph.at(line_of(equation)):
                results = self.equation(equation, [read(v) for v in equation.invars])
            self._open.pop()
            environment.update(zip(equation.outvars, results))
        return [read(v) for v in jaxpr.outvars]

    def line_outside(self, package: str) -> Line:
        """The innermost line of what is being lowered that no file of a package asks for; else the innermost one."""
        for equation in reversed(self._open):
            line = line_of(equation, outside=(f"{os.sep}{package}{os.sep}",))
            if line.path:
                return line
        return self.graph.line

    def asked(self, line: Line | None = None) -> str:
        """The line outside of installed packages that asks for what is being lowered; empty where its own line, or the one
        that is given, is one, or none is known."""
        if not (line or self.graph.line).is_installed:
            return ""
        lines = (line_of(equation, outside=INSTALLED).text for equation in reversed(self._open))
        return next((line for line in lines if line), "")

    def refuse(self, what: str, hint: str = "") -> None:
        """Adds a problem of what is being lowered."""
        self.problems.add(self.graph.line, what, hint, self.asked())

    def warn(self, what: str) -> None:
        """Adds a warning about what is being lowered."""
        self.options.warned[f"{told(self.graph.line.text, self.asked())}: {what}"] = None

    def function(self, function: Callable[..., Any], *operands: Value) -> list[Value]:
        """The results of a function of JAX for these operands: for primitives that are made of others."""
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
        return self.jaxpr(jax.make_jaxpr(function)(*types), operands)

    def function_in(self, aval: Any, function: Callable[..., Any], x: Value) -> Value:
        """The result of a function of JAX, each operation of which is rounded to a format that is kept."""
        dtype = aval.dtype if self.is_narrow(aval) else x.dtype
        return self.jaxpr(jax.make_jaxpr(function)(jax.ShapeDtypeStruct(x.shape, dtype)), [x])[0]

    @contextlib.contextmanager
    def inside_of_custom(self) -> Iterator[None]:
        """A function with a derivative of its own: what it calls needs none."""
        before = self.options
        self.options = dataclasses.replace(before, custom="inline")
        try:
            yield
        finally:
            self.options = before

    @contextlib.contextmanager
    def inside_of_rule(self) -> Iterator[None]:
        """A rule of tangents, each of which is x less itself: what depends on them is 0, and linear in them."""
        before, self.of_tangents = self.of_tangents, True
        try:
            with self.inside_of_custom():
                yield
        finally:
            self.of_tangents = before

    @contextlib.contextmanager
    def of_solver(self) -> Iterator[None]:
        """The work of a solver on a right side that moves: whatever it makes of that moves too, in a rule as well."""
        before, self.of_tangents = self.of_tangents, False
        try:
            yield
        finally:
            self.of_tangents = before

    def tried(self, lower: Callable[[], list[Value]]) -> list[Value] | None:
        """The results of `lower`; None where it has problems: of those and of all else that it told nothing is kept."""
        lists: Sequence[dict[str, Any]] = (self.graph.notes, self.options.warned, self.wide)
        before = [dict(entries) for entries in lists]
        halts = len(self.graph.halts)
        with self.problems.apart() as found:
            made = lower()
        if not found:
            return made
        del self.graph.halts[halts:]
        for entries, kept in zip(lists, before):
            entries.clear()
            entries.update(kept)
        return None

    def equation(self, equation: Any, operands: Operands) -> list[Value]:
        name = equation.primitive.name
        try:
            if self._is_evaluated(equation, operands):
                return evaluated(equation, operands)
            if _is_complex(equation) and name not in HINTS:
                if any(isinstance(x, Node) and x.op == "unknown" for x in operands):  # what made them is told
                    return self._placeholders(equation)
                raise NotLowered(f"{name!r} of complex numbers", "compute real and imaginary parts apart")
            if _is_narrow(equation):
                raise NotLowered(f"{name!r} of integers of 8 or 16 bits", "use int32")
            made = self._rule(equation, operands)(self, equation, operands)
        except NotLowered as error:
            found = self._evaluated_after_all(equation, operands)
            if found is not None:
                return found
            what, hint = (*error.args, "")[:2]
            self.refuse(what, f"{hint}{remedy(alone_behind(operands))}")
            return self._placeholders(equation)
        results = [made] if isinstance(made, (Node, np.ndarray)) else list(made)
        for variable, x in zip(equation.outvars, results):
            expected = getattr(variable.aval, "shape", None)
            if expected is not None and not _is_key(variable.aval) and x.shape != tuple(expected):
                raise AssertionError(f"{name}: {x.shape} for {variable.aval}")
        self._note_wide(equation, results)
        if name in _ROUNDED:
            results = [self.narrowed(x, v.aval) for x, v in zip(results, equation.outvars)]
        return results

    def _note_wide(self, equation: Any, results: Sequence[Value]) -> None:
        """Notes what JAX without x64 has as an integer of 32 bits, and may be another one here."""
        name = equation.params["name"] if "name" in equation.params else equation.primitive.name
        if name not in _GROWING:
            return
        for variable, x in zip(equation.outvars, results):
            if variable.aval.dtype == I64 and (name == _RANDINT or not self.graph.ranges.of(x).inside(OF_I32)):
                self.wide[self.graph.line.text] = name.strip("_")

    def _rule(self, equation: Any, operands: Operands) -> Rule:
        name, avals = equation.primitive.name, [v.aval for v in (*equation.invars, *equation.outvars)]
        if name in OF_KEYS and any(_is_key(x) for x in avals):
            return OF_KEYS[name]
        if _is_wide(equation):
            if name in _NOT_WIDE:
                raise NotLowered(f"{name!r} of unsigned integers of 64 bits", "use int64, or uint32")
            return WIDE.get(name) or RULES.get(name, RULES[OF_OTHERS])
        return RULES.get(name, RULES[OF_OTHERS])

    def is_narrow(self, aval: Any) -> bool:
        """Whether the step names a narrower format although it is traced in f64, and formats are kept."""
        return self.options.formats == "keep" and FORMATS.get(str(aval.dtype), "f64") != "f64"

    def narrowed(self, x: Value, aval: Any) -> Value:
        """x rounded as JAX has it, where the format is narrow."""
        return self.graph.emit("cast", x, format=FORMATS[str(aval.dtype)]) if self.is_narrow(aval) else x

    def _is_evaluated(self, equation: Any, operands: Operands) -> bool:
        """Whether JAX itself computes it: all is known, and no rule folds it faster."""
        whole = _is_complex(equation) or (_is_wide(equation) and not nested_jaxprs(equation.params.values()))
        return (whole or equation.primitive.name in EVALUATED) and self._may_be_evaluated(equation, operands)

    def _may_be_evaluated(self, equation: Any, operands: Operands) -> bool:
        """Whether JAX can compute it: all is known, and it is not too large."""
        if not operands or any(isinstance(x, Node) for x in operands) or getattr(equation, "effects", None):
            return False
        return sum(size_of(v.aval.shape) for v in equation.outvars) <= _MOST_ELEMENTS_EVALUATED

    def _evaluated_after_all(self, equation: Any, operands: Operands) -> list[Value] | None:
        """The results of what no rule knows, where JAX can compute them; else None."""
        if equation.primitive.name in _NEVER_EVALUATED or not self._may_be_evaluated(equation, operands):
            return None
        try:
            return evaluated(equation, operands)
        except Exception:  # whatever JAX raises of a primitive that it does not bind so
            return None

    def _placeholders(self, equation: Any) -> list[Value]:
        return [self.placeholder(v.aval) for v in equation.outvars]

    def implementation(self, equation: Any) -> Any:
        """The jaxpr of what a primitive of someone's own does."""
        implementation = getattr(equation.primitive, "impl", None)
        name = equation.primitive.name
        refused = NotLowered(f"primitive {name!r} has no rule", HINTS.get(name, ""))
        if implementation is None:
            raise refused
        types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
        try:
            traced = jax.make_jaxpr(lambda *args: implementation(*args, **equation.params))(*types)
        except Exception:
            raise refused from None
        if sum(outer.primitive is equation.primitive for outer in self._open) > _MOST_INSIDE:
            raise refused  # it does itself, without end
        return traced

    def placeholder(self, aval: Any) -> Value:
        """Stands for what could not be lowered; the world is refused in the end."""
        key = _is_key(aval)
        shape = (*aval.shape, *aval.dtype._impl.key_shape) if key else getattr(aval, "shape", ())
        dtype = np.uint32 if key else neutral(getattr(aval, "dtype", np.float64))
        return self.graph.make("unknown", [], {"id": object()}, shape, dtype)


_MOST_INSIDE = 8  # implementations of one primitive inside of each other, as a solver that solves by another
# Primitives that are not the same at every call, or call Python.
_NEVER_EVALUATED = frozenset(("rng_uniform", "pure_callback"))
# The names that the language has for JAX's formats of reals.
FORMATS = {"float64": "f64", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}
# Primitives that JAX rounds to its format, while the operations that they lower to do not narrow.
_ROUNDED = frozenset(
    (
        *("exp2", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "erfc", "erf_inv"),
        *("cbrt", "cumprod", "cholesky", "triangular_solve"),
        *("add", "sub", "mul", "div", "sqrt", "rsqrt", "convert_element_type", "add_any", "exp", "log"),
        *("integer_pow", "square", "reduce_sum", "reduce_prod", "dot_general", "sin"),
        *("scatter-add", "scatter-sub", "scatter-mul", "scatter_add", "scatter_sub", "scatter_mul"),
        *("cos", "tan", "tanh", "pow", "rem", "log1p", "expm1", "atan2", "logistic", "cumsum"),
        *("conv_general_dilated", "reduce_window", "reduce_window_sum", "cumlogsumexp"),
    )
)
_RANDINT = "_randint"  # the function of jax.random, which draws other numbers for integers of 64 bits
# Primitives and functions whose integers of 64 bits are others than those of 32 bits that JAX has without x64. Sums of
# two are left out, as every loop counts.
_GROWING = frozenset(
    (
        *("mul", "integer_pow", "square", "reduce_sum", "reduce_prod", "cumsum", "cumprod", "dot_general"),
        *("shift_left", "scatter-add", "scatter-mul", _RANDINT),
    )
)
# Operations that JAX evaluates where all operands are known; the others are folded by rules.
EVALUATED = frozenset(
    (
        *("while", "scan", "cholesky", "lu", "sort", "threefry2x32", "triangular_solve", "erf_inv"),
        *("top_k", "lgamma", "digamma", "qr", "geqrf", "ormqr", "householder_product", "eigh", "svd"),
        *("random_bits", "random_seed", "random_split", "random_fold_in"),
        *("bitcast_convert_type", "erf", "erfc", "asinh", "acosh"),
        *("atanh", "cumprod", "cummax", "cummin", "cumlogsumexp"),
        *("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul", "scatter-min"),
        *("scatter_min", "scatter-max", "scatter_max", "lu_pivots_to_permutation", "conv_general_dilated"),
        *("population_count", "clz", "igamma", "igammac", "regularized_incomplete_beta", "eig"),
    )
)


def evaluated(equation: Any, operands: Operands) -> list[Value]:
    """The results of an equation, computed by JAX: its operands are numbers."""
    with jax.ensure_compile_time_eval():
        given = [
            wrapped(x, v.aval.dtype) if _is_key(v.aval) else np.asarray(x, v.aval.dtype)
            for x, v in zip(operands, equation.invars)
        ]
        made = equation.primitive.bind(*given, **equation.params)
    results = made if equation.primitive.multiple_results else [made]
    return [_constant(x) for x in results]


def equations_of(closed: Any) -> Iterator[Any]:
    """All equations of a jaxpr, those of nested ones too."""
    for equation in getattr(closed, "jaxpr", closed).eqns:
        yield equation
        for nested in nested_jaxprs(equation.params.values()):
            yield from equations_of(nested)


def primitives_of(closed: Any) -> set[str]:
    """The names of all primitives of a jaxpr, in nested ones too."""
    return {equation.primitive.name for equation in equations_of(closed)}


def nested_jaxprs(values: Iterable[Any]) -> list[Any]:
    found = []
    for value in values:
        for x in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(x, "jaxpr", x)
            if hasattr(inner, "eqns"):
                found.append(inner)
    return found


def line_of(equation: Any, outside: Sequence[str] = ()) -> Line:
    """The innermost frame of the user's, or of a library's, that is not JAX's own or one of these rules, nor of a file whose
    path has one of `outside` in it."""
    info = equation.source_info
    frames: Iterable[Any] = ()
    if info.traceback is not None:
        frames = source_info_util.user_frames(info.traceback)
    for frame in frames:
        if frame.file_name.startswith(_HERE) or any(part in frame.file_name for part in outside):
            continue
        return Line(frame.file_name, frame.start_line, frame.function_name, str(info.name_stack))
    return Line()


def _is_key(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def _is_wide(equation: Any) -> bool:
    """Whether it takes or gives u64."""
    return any(getattr(v.aval, "dtype", None) == U64 for v in (*equation.invars, *equation.outvars))


def _is_complex(equation: Any) -> bool:
    """Whether it takes or gives complex numbers, and calls nothing that would tell where."""
    dtypes = [str(getattr(v.aval, "dtype", "")) for v in (*equation.invars, *equation.outvars)]
    return any(x.startswith("complex") for x in dtypes) and not nested_jaxprs(equation.params.values())


def _is_narrow(equation: Any) -> bool:
    """Whether it gives integers that would have to wrap at 8 or 16 bits."""
    narrow = {"int4", "uint4", "int8", "int16", "uint16"}
    gives = any(str(getattr(v.aval, "dtype", "")) in narrow for v in equation.outvars)
    return gives and not nested_jaxprs(equation.params.values())


def _of_width(x: np.ndarray, aval: Any) -> np.ndarray:
    """Known integers in the type that JAX gives them, which Python's integers do not have."""
    dtype = getattr(aval, "dtype", None)
    if x.dtype.kind != "i" or _is_key(aval) or dtype is None:
        return x
    return x.astype(neutral(dtype), copy=False)


def _constant(x: Any) -> np.ndarray:
    """Numbers of a constant; of a random key its words."""
    return known_array(jax.random.key_data(x) if _is_key(x) else x)
