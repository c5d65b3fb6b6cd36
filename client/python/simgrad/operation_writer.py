"""Appends operations to a program: the types of results, and the widening of scalars.

`simgrad.operations` has a method per operation on top of this; `simgrad.program` the rest.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Sequence

from simgrad.array_shapes import array_shape
from simgrad.v1 import program_pb2
from simgrad.v1.program_pb2 import (
    ELEMENT_TYPE_BOOL,
    ELEMENT_TYPE_I32,
    ELEMENT_TYPE_REAL,
    ELEMENT_TYPE_U8,
    ELEMENT_TYPE_U32,
)

BOOL = ELEMENT_TYPE_BOOL
I32 = ELEMENT_TYPE_I32
U32 = ELEMENT_TYPE_U32
U8 = ELEMENT_TYPE_U8
Shape = tuple[int, ...]


class Expression:
    """A value of the program being written. Operators and NumPy's functions append operations to it."""

    def __init__(self, builder: "OperationWriter", value: int):
        self.builder = builder
        self.value = value

    @property
    def shape(self) -> Shape:
        return tuple(self.builder.program.values[self.value].shape)

    @property
    def element(self) -> int:
        return self.builder.program.values[self.value].element

    def __add__(self, other: Any) -> "Expression":
        return self.builder.apply("add", self, other)

    def __radd__(self, other: Any) -> "Expression":
        return self.builder.apply("add", other, self)

    def __sub__(self, other: Any) -> "Expression":
        return self.builder.apply("sub", self, other)

    def __rsub__(self, other: Any) -> "Expression":
        return self.builder.apply("sub", other, self)

    def __mul__(self, other: Any) -> "Expression":
        return self.builder.apply("mul", self, other)

    def __rmul__(self, other: Any) -> "Expression":
        return self.builder.apply("mul", other, self)

    def __truediv__(self, other: Any) -> "Expression":
        return self.builder.apply("div", self, other)

    def __rtruediv__(self, other: Any) -> "Expression":
        return self.builder.apply("div", other, self)

    def __mod__(self, other: Any) -> "Expression":
        return self.builder.apply("mod", self, other)

    def __rmod__(self, other: Any) -> "Expression":
        return self.builder.apply("mod", other, self)

    def __pow__(self, other: Any) -> "Expression":
        return self.builder.apply("pow", self, other)

    def __rpow__(self, other: Any) -> "Expression":
        return self.builder.apply("pow", other, self)

    def __neg__(self) -> "Expression":
        return self.builder.apply("neg", self)

    def __abs__(self) -> "Expression":
        return self.builder.apply("abs", self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """np.tan(x) and the like append the operation of that name."""
        code = _OF_NUMPY.get(ufunc.__name__)
        if code is None or method != "__call__" or kwargs:
            return NotImplemented
        return self.builder.apply(code, *inputs)

    def __bool__(self) -> bool:
        raise TypeError("a world branches at named sites only: use event with select or cond, or while_loop")


class OperationWriter:
    """A program being written: operations go into the region being written, with the current role
    and site."""

    def __init__(self, name: str, level: str = ""):
        self.program = program_pb2.Program(name=name, level=level)
        self._regions = [self.program.step]
        self._role = ""
        self._site = ""

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
        self, value: Any, shape: Sequence[int] = (), element: int = ELEMENT_TYPE_REAL
    ) -> Expression:
        """One number for every element of `shape`, or a sequence of one per element, row-major."""
        values = [float(x) for x in value] if isinstance(value, Sequence) else [float(value)]
        return self._emit("literal", [], shape, element, literal=values)

    def apply(self, code: str, *operands: Any, **attributes: Any) -> Expression:
        """One elementwise operation by its name, for those whose name is computed."""
        return self._elementwise(code, BOOL if code in _BOOLEAN else None, *operands, **attributes)

    # ---- One per kind of result; `element` None: the last operand's ----

    def _elementwise(
        self, code: str, element: int | None, *operands: Any, **attributes: Any
    ) -> Expression:
        arrays = self._widened(operands)
        kept = arrays[-1].element if element is None else element
        return self._emit(code, arrays, arrays[0].shape, kept, **attributes)

    def _converted(self, code: str, element: int, a: Any) -> Expression:
        x = self._value(a)
        return self._emit(code, [x], x.shape, element)

    def _reshaped(
        self, code: str, element: None, a: Any, *, shape: Sequence[int], **attributes: Any
    ) -> Expression:
        x = self._value(a)
        return self._emit(code, [x], shape, x.element, shape=shape, **attributes)

    def _joined(
        self, code: str, element: None, *operands: Any, axes: int | Sequence[int] | None
    ) -> Expression:
        arrays = [self._value(x) for x in operands]
        [axis] = _axes(axes, arrays[0])
        shape = list(arrays[0].shape)
        for x in arrays[1:]:
            if len(x.shape) != len(shape):
                raise ValueError(f"shapes {arrays[0].shape} and {x.shape} do not meet")
            shape[axis] += x.shape[axis]
        return self._emit(code, arrays, shape, arrays[0].element, axes=[axis])

    def _reduced(
        self, code: str, element: int | None, a: Any, axes: int | Sequence[int] | None
    ) -> Expression:
        x = self._value(a)
        gone = _axes(axes, x)
        shape = [n for axis, n in enumerate(x.shape) if axis not in gone]
        return self._emit(code, [x], shape, x.element if element is None else element, axes=gone)

    def _scanned(
        self, code: str, element: None, a: Any, axes: int | Sequence[int] | None, reverse: bool
    ) -> Expression:
        x = self._value(a)
        return self._emit(code, [x], x.shape, x.element, axes=_axes(axes, x), reverse=reverse)

    def _array(
        self, code: str, element: int | None, *operands: Any, **attributes: Any
    ) -> Expression:
        arrays = [self._value(x) for x in operands]
        if "axes" in attributes:
            axes = attributes["axes"]
            attributes["axes"] = _axes(axes, arrays[0]) if arrays else [axes]
        shape = array_shape(code, [x.shape for x in arrays], attributes)
        kept = arrays[0].element if element is None else element
        return self._emit(code, arrays, shape, kept, **attributes)

    # ---- Values ----

    def _new(self, shape: Sequence[int], element: int, name: str = "") -> Expression:
        self.program.values.add(element=element, shape=shape, name=name)
        return Expression(self, len(self.program.values) - 1)

    def _name(self, x: Expression) -> str:
        return self.program.values[x.value].name

    def _value(self, x: Any) -> Expression:
        return x if isinstance(x, Expression) else self.literal(x)

    def _widened(self, operands: Sequence[Any]) -> list[Expression]:
        values = [self._value(x) for x in operands]
        widest = max((x.shape for x in values), key=len)
        for x in values:
            if x.shape not in ((), widest):
                raise ValueError(f"shapes {x.shape} and {widest} do not meet")
        return [
            (
                x
                if x.shape == widest
                else self._emit("broadcast", [x], widest, x.element, shape=widest)
            )
            for x in values
        ]

    def _emit(
        self,
        code: str,
        operands: Sequence[Expression],
        result_shape: Sequence[int],
        element: int,
        **attributes: Any,
    ) -> Expression:
        result = self._new(result_shape, element)
        self._regions[-1].ops.add(
            code=code,
            role=self._role,
            site=self._site,
            operands=[x.value for x in operands],
            results=[result.value],
            **attributes,
        )
        return result


def _axes(axes: int | Sequence[int] | None, x: Expression) -> list[int]:
    """None: all of them."""
    if axes is None:
        return list(range(len(x.shape)))
    return [axes] if isinstance(axes, int) else sorted(axes)


_BOOLEAN = frozenset(("lt", "le", "gt", "ge", "eq", "ne", "is_finite"))

# NumPy's functions of numbers, by what the operations are called.
_OF_NUMPY = {
    **{
        name: name
        for name in (
            *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "sinh"),
            *("cosh", "tanh", "cbrt", "floor", "ceil", "trunc", "sign"),
        )
    },
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "negative": "neg",
    "absolute": "abs",
    "fabs": "abs",
    "minimum": "min",
    "maximum": "max",
    "power": "pow",
    "remainder": "mod",
    "fmod": "rem",
    "rint": "round",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arctan2": "atan2",
    "nextafter": "next_after",
    "isfinite": "is_finite",
}
