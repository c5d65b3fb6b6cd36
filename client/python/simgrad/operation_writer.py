"""Appends operations to a program: types and shapes of results, literals, broadcasts, lines of the source.

`simgrad.operations` has a method per operation on top of this; `simgrad.program` the rest.
"""

from __future__ import annotations

import contextlib
import operator
from typing import Any, Iterator, Sequence, cast

import numpy as np

from simgrad.array_shapes import array_shape
from simgrad.constants import (
    LARGEST_WHOLE,
    constant,
    element_name,
    holds,
    met_element,
    numbers_of,
    own_element,
    range_of,
    widest,
)
from simgrad.expression import Expression as Expression
from simgrad.source_line import source_line
from simgrad.v1 import program_pb2
from simgrad.v1.program_pb2 import (
    ELEMENT_TYPE_BOOL,
    ELEMENT_TYPE_I32,
    ELEMENT_TYPE_I64,
    ELEMENT_TYPE_REAL,
    ELEMENT_TYPE_U32,
    INPUT_KIND_CONFIG,
    INPUT_KIND_STEP,
)

BOOL = ELEMENT_TYPE_BOOL
I32 = ELEMENT_TYPE_I32
U32 = ELEMENT_TYPE_U32
Shape = tuple[int, ...]

_SMALL_FORMATS = ("e4m3", "e5m2")  # of fake_quantize
_OF_BITS = frozenset(("and", "or", "not", "xor", "shl", "shr"))
_OF_BOOLS = frozenset(("and", "or", "not", "xor", "eq", "ne", "select", "stop_gradient"))
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
# Scopes: that of inputs, which every region sees, and that of the step.
INPUTS = 0
STEP = 1
_EVERYWHERE = (INPUT_KIND_CONFIG, INPUT_KIND_STEP)  # inputs that a function with a vjp may use around it
_NO_ARGUMENT = (
    "a function with a vjp of its own uses nothing around it but numbers, configs and the step; make it an argument"
)


class OperationWriter:
    """A program being written: operations go into the region being written, with the current role
    and site.

    With a level of tests, operations have the line of the user's file that asked for them as their
    label, and a comparison of reals is a site named after the site or the function that it stands in,
    "step.2" the second one of `step`, unless it gets a name of its own.
    """

    def __init__(self, name: str, level: str = ""):
        self.program = program_pb2.Program(name=name, level=level)
        self._regions = [self.program.step]
        self._role = ""
        self._site = ""
        self._scopes = [INPUTS, STEP]  # of the regions that can be seen
        self._scope_count = 1
        self._seen_from = -1  # the first scope that a function with a vjp of its own sees
        self._scope_of: list[int] = []  # by value
        self._lines: list[str] = []  # by value
        self._literals: set[int] = set()  # values
        self._comparisons: dict[int, program_pb2.Op] = {}  # by result
        self._ordinals: dict[str, int] = {}  # comparisons of each site and function so far

    @contextlib.contextmanager
    def role(self, role: str, site: str = "") -> Iterator[None]:
        """Operations written inside have this role, and belong to `site` where one is named."""
        before = self._role, self._site
        self._role, self._site = role, site or self._site
        try:
            yield
        finally:
            self._role, self._site = before

    def literal(
        self, value: Any, shape: Sequence[int] | None = None, element: int | None = None
    ) -> Expression:
        """An array of numbers; with `shape` one number for every element, or a sequence of one per
        element, row-major. Without `element`, NumPy's integers are i32, u8, u32 or i64 and its bools bools; all
        else is real."""
        array = constant(value)
        if shape is not None:
            shape = tuple(shape)
            array = (
                array.reshape(shape)
                if array.size > 1 or array.ndim
                else np.broadcast_to(array, shape)
            )
        kept = own_element(value) if element is None else element
        if not holds(kept, array):
            outside = next(n for n in array.flat if not holds(kept, n))
            raise ValueError(f"{self.here()}a constant of {element_name(kept)} is {range_of(kept)}, not {outside}")
        if np.isnan(array).any():
            raise ValueError(f"{self.here()}a constant is no NaN: np.log(-np.ones_like(x)) and the like make one")
        whole = array if array.dtype.kind in "iu" else np.zeros(0, np.int64)
        if kept == ELEMENT_TYPE_I64 and ((whole > LARGEST_WHOLE) | (whole < -LARGEST_WHOLE)).any():
            # A literal travels as f64: halves of it are exact.
            wide = whole.astype(np.int64)
            high, low = (self.literal(half, element=kept) for half in (wide >> 32, wide & 0xFFFFFFFF))
            return self.apply("or", self.apply("shl", high, np.int64(32)), low)
        return self._emit("literal", [], array.shape, kept, literal=numbers_of(array))

    def uniform(self, shape: int | Sequence[int] = ()) -> Expression:
        """Random numbers, evenly spread over [0, 1): by the seed of the request, the id of the instance, the
        step and the place in the program. Draws are not differentiated."""
        lengths = self._lengths(shape)
        return self._emit("uniform", [], lengths, ELEMENT_TYPE_REAL, shape=lengths)

    def normal(self, shape: int | Sequence[int] = ()) -> Expression:
        """Random numbers, normally distributed with mean 0 and variance 1; as `uniform`."""
        lengths = self._lengths(shape)
        return self._emit("normal", [], lengths, ELEMENT_TYPE_REAL, shape=lengths)

    def apply(self, code: str, *operands: Any, **attributes: Any) -> Expression:
        """An operation of the table by its name, for those whose name is computed."""
        method = getattr(type(self), f"{code}_" if code in ("and", "or", "not") else code, None)
        if method is None:
            raise TypeError(
                f"{self.here()}there is no operation {code!r}; docs/programs.md lists them"
            )
        return cast(Expression, method(self, *operands, **attributes))

    # ---- One per kind of result; `element` None: the last operand's ----

    def _elementwise(
        self, code: str, element: int | None, *operands: Any, **attributes: Any
    ) -> Expression:
        first = 1 if code == "select" else 0
        chosen = [self.value(x) for x in operands[:first]]
        arrays = self._broadcast([*chosen, *self.matched(operands[first:], shapes=False)])
        kept = arrays[-1].element if element is None else element
        self._check_kind(code, arrays[-1].element)
        if code in _COMPARISONS:
            attributes.update(self._test_name(arrays[0]))
        result = self._emit(code, arrays, arrays[0].shape, kept, **attributes)
        if code in _COMPARISONS:
            self._comparisons[result.value] = self._regions[-1].ops[-1]
        return result

    def _converted(self, code: str, element: int, a: Any) -> Expression:
        x = self.value(a)
        return self._emit(code, [x], x.shape, element)

    def _reshaped(
        self, code: str, element: None, a: Any, *, shape: Sequence[int], **attributes: Any
    ) -> Expression:
        x = self.value(a)
        return self._emit(code, [x], shape, x.element, shape=shape, **attributes)

    def _joined(
        self, code: str, element: None, *operands: Any, axes: int | Sequence[int] | None
    ) -> Expression:
        arrays = self.matched(operands, shapes=False)
        axis = self._one_axis(code, axes, arrays[0].shape)
        shape = list(arrays[0].shape)
        for x in arrays[1:]:
            others = [n for a, n in enumerate(x.shape) if a != axis]
            if len(x.shape) != len(shape) or others != [
                n for a, n in enumerate(shape) if a != axis
            ]:
                raise self.unmet(arrays[0].shape, x.shape)
            shape[axis] += x.shape[axis]
        return self._emit(code, arrays, shape, arrays[0].element, axes=[axis])

    def _reduced(
        self, code: str, element: int | None, a: Any, axes: int | Sequence[int] | None
    ) -> Expression:
        x = self.value(a)
        gone = [self._one_axis(code, axes, x.shape)] if code in _ALONG_ONE else self._axes(axes, x.shape)
        shape = [n for axis, n in enumerate(x.shape) if axis not in gone]
        return self._emit(code, [x], shape, x.element if element is None else element, axes=gone)

    def _scanned(
        self, code: str, element: None, a: Any, axes: int | Sequence[int] | None, reverse: bool
    ) -> Expression:
        x = self.value(a)
        axis = self._one_axis(code, axes, x.shape)
        return self._emit(code, [x], x.shape, x.element, axes=[axis], reverse=reverse)

    def _quantized(
        self,
        code: str,
        element: None,
        a: Any,
        scale: Any,
        *,
        format: str,
        axes: int | Sequence[int] | None,
    ) -> Expression:
        x = self.value(a, ELEMENT_TYPE_REAL)
        if format not in _SMALL_FORMATS:
            raise ValueError(f"{self.here()}format {format!r}: one of {', '.join(_SMALL_FORMATS)}")
        shared = self._axes(axes, x.shape)
        operands = [x]
        if scale is not None:
            kept = tuple(n for axis, n in enumerate(x.shape) if axis not in shared)
            given = self.value(scale, ELEMENT_TYPE_REAL)
            try:
                operands.append(self.broadcast_to(given, kept))
            except ValueError:
                raise ValueError(
                    f"{self.here()}scale of shape {given.shape} does not widen to {kept}, the lengths of "
                    "the axes along which each index has a scale of its own"
                ) from None
        return self._emit(code, operands, x.shape, x.element, format=format, axes=shared)

    def _array(
        self, code: str, element: int | None, *operands: Any, **attributes: Any
    ) -> Expression:
        if code in _WITH_ROWS and operands[-1] is None:
            operands = operands[:-1]
        indices = _INDICES.get(code, ())
        others = [x for i, x in enumerate(operands) if i not in indices]
        # The keys of argsort may be of several types.
        values = (
            list(map(self.value, others))
            if code == "argsort"
            else self.matched(others, shapes=False)
        )
        arrays = [
            self.value(x, I32) if i in indices else values.pop(0) for i, x in enumerate(operands)
        ]
        if "axes" in attributes:
            axes, along = attributes["axes"], arrays[0].shape if arrays else attributes["shape"]
            attributes["axes"] = [self._one_axis(code, axes, along)] if code in _ALONG_ONE else self._axes(axes, along)
        if code == "gather" and attributes["bounds"] == "clip" and attributes["fill"] != 0:
            raise ValueError(
                f'{self.here()}gather with fill={attributes["fill"]!r}: bounds="clip" takes the nearest element and fills '
                'nothing: bounds="fill", or no fill'
            )
        if code == "scatter":
            moved = array_shape("gather", [x.shape for x in arrays], attributes)
            arrays[2] = self.broadcast_to(arrays[2], moved)
        try:
            shape = array_shape(code, [x.shape for x in arrays], attributes)
        except ValueError as error:
            raise ValueError(f"{self.here()}{error}") from None
        kept = arrays[0].element if element is None else element
        return self._emit(code, arrays, shape, kept, **attributes)

    # ---- Values ----

    def value(self, x: Any, element: int | None = None) -> Expression:
        """x as a value of this program: a number or an array becomes a literal, of `element` where
        it is given; a list with values in it is stacked."""
        if isinstance(x, Expression):
            self._check_seen(x)
            return x
        if isinstance(x, (list, tuple)) and holds_values(x):
            values = self.matched(x, shapes=False)
            if len({v.shape for v in values}) != 1:
                raise self.unmet(*(v.shape for v in values))
            parts = [
                self._emit("reshape", [v], (1, *v.shape), v.element, shape=(1, *v.shape))
                for v in values
            ]
            return self._joined("concat", None, *parts, axes=0)
        try:
            return self.literal(x, element=element)
        except TypeError as error:
            raise TypeError(f"{self.here()}{error}") from None

    def matched(self, operands: Sequence[Any], shapes: bool = True) -> list[Expression]:
        """Values of one element type and, with `shapes`, one shape, by NumPy's rules."""
        given = [
            self.value(x) if isinstance(x, Expression) or holds_values(x) else x for x in operands
        ]
        known = [x.element for x in given if isinstance(x, Expression)]
        elements = [self.element_of(x, known) for x in given]
        kept = widest(elements) if elements else ELEMENT_TYPE_REAL
        values = [
            self._as_element(x, kept) if isinstance(x, Expression) else self.value(x, kept)
            for x in given
        ]
        return self._broadcast(values) if shapes else values

    def broadcast_to(self, x: Any, shape: int | Sequence[int]) -> Expression:
        """x in a larger shape, by NumPy's rules. Raises ValueError where they do not meet."""
        value, wanted = self.value(x), self._lengths(shape)
        if value.shape == wanted:
            return value
        missing = len(wanted) - len(value.shape)
        axes = [a for a, n in enumerate(value.shape) if missing >= 0 and n == wanted[missing + a]]
        if missing < 0 or any(n != 1 for a, n in enumerate(value.shape) if a not in axes):
            raise self.unmet(value.shape, wanted)
        kept = [value.shape[a] for a in axes]
        if len(kept) < len(value.shape):
            value = self._emit("reshape", [value], kept, value.element, shape=kept)
        dims = [missing + a for a in axes]
        return self._emit("broadcast", [value], wanted, value.element, shape=wanted, dims=dims)

    def _lengths(self, shape: int | Sequence[int]) -> Shape:
        """A shape; one number is the length of one axis. Raises TypeError or ValueError for what is none."""
        try:
            given = [shape] if np.ndim(shape) == 0 else shape
            lengths = tuple(map(operator.index, given))  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"{self.here()}a shape of {shape!r}: whole numbers that are known") from None
        if min(lengths, default=0) < 0:
            raise ValueError(f"{self.here()}a shape of {shape!r}: lengths of at least 0")
        return lengths

    def unmet(self, *shapes: Shape) -> ValueError:
        return ValueError(f"{self.here()}shapes {' and '.join(map(str, shapes))} do not meet")

    def here(self) -> str:
        """ "pendulum.py:31: ", in front of an error's text."""
        line = source_line().text
        return f"{line}: " if line else ""

    def element_of(self, x: Any, known: Sequence[int] = ()) -> int:
        """The element type of a value, or of a constant among values with these types."""
        try:
            return x.element if isinstance(x, Expression) else met_element(x, known)
        except TypeError as error:
            raise TypeError(f"{self.here()}{error}") from None

    def _check_kind(self, code: str, element: int) -> None:
        """Raises TypeError for bools in arithmetic, and for reals where bits are asked for."""
        if element == ELEMENT_TYPE_BOOL and code not in _OF_BOOLS:
            raise TypeError(
                f"{self.here()}{code} takes no bools: &, | and ~ combine them, and x.astype(int) makes numbers of them"
            )
        if element == ELEMENT_TYPE_REAL and code in _OF_BITS:
            raise TypeError(f"{self.here()}{code} takes no reals: x.astype(int), or np.int32(1) for a number")

    def _as_element(self, x: Expression, element: int) -> Expression:
        return x if x.element == element else self._converted("convert", element, x)

    def _broadcast(self, values: Sequence[Expression]) -> list[Expression]:
        try:
            shape = np.broadcast_shapes(*(x.shape for x in values))
        except ValueError:
            raise self.unmet(*(x.shape for x in values)) from None
        return [self.broadcast_to(x, shape) for x in values]

    def _axes(self, axes: int | Sequence[int] | None, shape: Sequence[int]) -> list[int]:
        """Ascending, counted from the front; None: all of them. Raises TypeError for what is no whole number, ValueError
        for an axis that is not there or stands twice."""
        rank = len(shape)
        if axes is None:
            return list(range(rank))
        try:
            named = [axes] if np.ndim(axes) == 0 else axes
            given = [operator.index(axis) for axis in named]  # type: ignore[union-attr, arg-type]
        except TypeError:
            raise TypeError(f"{self.here()}axes {axes!r}: whole numbers that are known") from None
        if any(not -rank <= axis < rank for axis in given):
            raise ValueError(f"{self.here()}axes {axes} are not all of an array of shape {tuple(shape)}")
        in_front = sorted({axis % rank for axis in given})
        if len(in_front) < len(given):
            raise ValueError(f"{self.here()}axes {axes} name an axis twice")
        return in_front

    def _one_axis(self, code: str, axes: int | Sequence[int] | None, shape: Sequence[int]) -> int:
        """The axis of an operation that takes one; None: that of a vector. As `_axes` otherwise."""
        found = self._axes(axes, shape)
        if len(found) != 1:
            given = f"axes={axes}, of shape {tuple(shape)}"
            raise ValueError(f"{self.here()}{code} takes one axis, not {given}: axes=0, or another one")
        return found[0]

    def _new(self, shape: Sequence[int], element: int, name: str = "") -> Expression:
        self.program.values.add(element=element, shape=shape, name=name)
        self._scope_of.append(self._scopes[-1])
        self._lines.append(source_line().text)
        return self._expression(len(self.program.values) - 1)

    def _expression(self, value: int) -> Expression:
        return Expression(cast(Any, self), value)  # every writer is a ProgramBuilder

    def _name(self, x: Expression) -> str:
        return self.program.values[x.value].name

    def _check_seen(self, x: Expression) -> None:
        """Raises ValueError for a value that cannot be used in the region being written."""
        if x.builder is not cast(Any, self):
            raise ValueError(f"{self.here()}{x!r} belongs to another world")
        scope = self._scope_of[x.value]
        is_around = scope < self._seen_from and x.value not in self._literals
        if is_around:
            is_around = not any(i.value == x.value and i.kind in _EVERYWHERE for i in self.program.inputs)
        if scope in self._scopes and not is_around:
            return
        made = f"{x!r} of {self._lines[x.value]}" if self._lines[x.value] else repr(x)
        raise ValueError(f"{self.here()}{made} cannot be used here: {_NO_ARGUMENT if is_around else self._why_unseen()}")

    def _why_unseen(self) -> str:
        return "it was made inside a loop or a branch: return it from there"

    def _test_name(self, x: Expression) -> dict[str, str]:
        """The site of a comparison in a program with a level, else nothing; costs and `initial` have no sites."""
        in_step = STEP in self._scopes
        if not self.program.level or x.element != ELEMENT_TYPE_REAL or not in_step:
            return {}
        scope = self._site or source_line().function
        if not scope:
            return {}
        self._ordinals[scope] = self._ordinals.get(scope, 0) + 1
        return {"decision_site": f"{scope}.{self._ordinals[scope]}"}

    def _label(self) -> str:
        return source_line().text if self.program.level else ""

    def _emit(
        self,
        code: str,
        operands: Sequence[Expression],
        result_shape: Sequence[int],
        element: int,
        **attributes: Any,
    ) -> Expression:
        for x in operands:
            self._check_seen(x)
        result = self._new(result_shape, element)
        if code == "literal":
            self._literals.add(result.value)
        self._regions[-1].ops.add(
            code=code,
            role=self._role,
            site=self._site,
            label=self._label(),
            operands=[x.value for x in operands],
            results=[result.value],
            **attributes,
        )
        return result


def holds_values(x: Any) -> bool:
    return isinstance(x, (list, tuple)) and any(
        isinstance(y, Expression) or holds_values(y) for y in x
    )


def type_text(x: Expression) -> str:
    return f"{element_name(x.element)}[{','.join(str(n) for n in x.shape)}]"


# Operations along just one axis.
_ALONG_ONE = frozenset(("argsort", "gather", "scatter", "iota", "reduce_max", "reduce_min", "argmax", "argmin"))

# Operations whose last operand may be left out.
_WITH_ROWS = ("lu", "lu_permutation")

# The operands that are indices: Python's numbers are integers there.
_INDICES = {
    "gather": (1,),
    "scatter": (1,),
    "dynamic_slice": (1,),
    "update": (2,),
    "lu": (1,),
    "lu_permutation": (1,),
    "lu_solve": (2,),
}
