"""A value of the program being written, with NumPy's operators, methods and functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterator, NoReturn

import numpy as np

from simgrad import indexing, numpy_arithmetic, numpy_elementary, numpy_products, numpy_table
from simgrad.constants import dtype_of, element_name
from simgrad.numpy_operands import element_as

if TYPE_CHECKING:
    from simgrad.program import ProgramBuilder


def _method(function: Any) -> Callable[..., "Expression"]:
    """The method that is NumPy's function of the value: it takes what that takes, and refuses the rest."""

    def method(self: "Expression", *args: Any, **kwargs: Any) -> "Expression":
        made: "Expression" = numpy_table.call(self.builder, function, (self, *args), kwargs)
        return made

    method.__name__, method.__doc__ = function.__name__, f"np.{function.__name__} of the value."
    return method


_transposed, _reshaped = _method(np.transpose), _method(np.reshape)


class Expression:
    """A value of the program being written. Operators and NumPy's functions append operations to it.

    Shapes meet by NumPy's broadcasting. Python's numbers take the type of what they meet. Python
    cannot look at it, as it has no number before the program runs: use where, cond and while_loop.
    """

    __hash__ = object.__hash__

    def __init__(self, builder: "ProgramBuilder", value: int):
        self.builder = builder
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.builder.program.values[self.value].shape)

    @property
    def element(self) -> int:
        return self.builder.program.values[self.value].element

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count

    def __repr__(self) -> str:
        name = self.builder.program.values[self.value].name
        shape = ",".join(str(n) for n in self.shape)
        return f"<{name or 'value'}: {element_name(self.element)}[{shape}]>"

    # ---- Operators ----

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
        return numpy_arithmetic.true_divide(self.builder, self, other)

    def __rtruediv__(self, other: Any) -> "Expression":
        return numpy_arithmetic.true_divide(self.builder, other, self)

    def __floordiv__(self, other: Any) -> "Expression":
        return numpy_arithmetic.floor_divide(self.builder, self, other)

    def __rfloordiv__(self, other: Any) -> "Expression":
        return numpy_arithmetic.floor_divide(self.builder, other, self)

    def __mod__(self, other: Any) -> "Expression":
        return self.builder.apply("mod", self, other)

    def __rmod__(self, other: Any) -> "Expression":
        return self.builder.apply("mod", other, self)

    def __divmod__(self, other: Any) -> "tuple[Expression, Expression]":
        return numpy_arithmetic.divide_with_remainder(self.builder, self, other)

    def __rdivmod__(self, other: Any) -> "tuple[Expression, Expression]":
        return numpy_arithmetic.divide_with_remainder(self.builder, other, self)

    def __pow__(self, other: Any) -> "Expression":
        return numpy_arithmetic.power(self.builder, self, other)

    def __rpow__(self, other: Any) -> "Expression":
        return numpy_arithmetic.power(self.builder, other, self)

    def __matmul__(self, other: Any) -> "Expression":
        return numpy_products.matmul(self.builder, self, other)

    def __rmatmul__(self, other: Any) -> "Expression":
        return numpy_products.matmul(self.builder, other, self)

    def __neg__(self) -> "Expression":
        return self.builder.apply("neg", self)

    def __pos__(self) -> "Expression":
        return self

    def __abs__(self) -> "Expression":
        return self.builder.apply("abs", self)

    def __round__(self, decimals: int = 0) -> "Expression":
        return numpy_elementary.rounded(self, decimals)

    def __floor__(self) -> "Expression":
        return self.builder.apply("floor", self)

    def __ceil__(self) -> "Expression":
        return self.builder.apply("ceil", self)

    def __trunc__(self) -> "Expression":
        return self.builder.apply("trunc", self)

    def __lt__(self, other: Any) -> "Expression":
        return self.builder.apply("lt", self, other)

    def __le__(self, other: Any) -> "Expression":
        return self.builder.apply("le", self, other)

    def __gt__(self, other: Any) -> "Expression":
        return self.builder.apply("gt", self, other)

    def __ge__(self, other: Any) -> "Expression":
        return self.builder.apply("ge", self, other)

    # Values hash by identity, and a dictionary compares identities first: it never comes here.
    def __eq__(self, other: Any) -> "Expression":  # type: ignore[override]
        return self.builder.apply("eq", self, other)

    def __ne__(self, other: Any) -> "Expression":  # type: ignore[override]
        return self.builder.apply("ne", self, other)

    def __and__(self, other: Any) -> "Expression":
        return self.builder.apply("and", self, other)

    def __rand__(self, other: Any) -> "Expression":
        return self.builder.apply("and", other, self)

    def __or__(self, other: Any) -> "Expression":
        return self.builder.apply("or", self, other)

    def __ror__(self, other: Any) -> "Expression":
        return self.builder.apply("or", other, self)

    def __xor__(self, other: Any) -> "Expression":
        return self.builder.apply("xor", self, other)

    def __rxor__(self, other: Any) -> "Expression":
        return self.builder.apply("xor", other, self)

    def __lshift__(self, other: Any) -> "Expression":
        return self.builder.apply("shl", self, other)

    def __rlshift__(self, other: Any) -> "Expression":
        return self.builder.apply("shl", other, self)

    def __rshift__(self, other: Any) -> "Expression":
        return self.builder.apply("shr", self, other)

    def __rrshift__(self, other: Any) -> "Expression":
        return self.builder.apply("shr", other, self)

    def __invert__(self) -> "Expression":
        return self.builder.apply("not", self)

    # ---- Elements ----

    def __getitem__(self, key: Any) -> "Expression":
        return indexing.item(self, key)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TypeError(
            f"{self.builder.here()}a value does not change: write x = x.at[...].set(y), or .add(y)"
        )

    @property
    def at(self) -> indexing.Places:
        """x.at[key].set(y), .add, .mul, .min and .max give x with y brought in at x[key]."""
        return indexing.Places(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.builder.here()}a scalar has no length, and no elements")
        return self.shape[0]

    def __iter__(self) -> Iterator["Expression"]:
        return iter([self[i] for i in range(len(self))])

    # ---- NumPy's methods ----

    @property
    def T(self) -> "Expression":
        return self.transpose()

    def transpose(self, *axes: Any) -> "Expression":
        given = axes[0] if len(axes) == 1 and np.ndim(axes[0]) else axes
        return _transposed(self, None if given in ((), (None,)) else given)

    def reshape(self, *shape: Any, **others: Any) -> "Expression":
        given = shape or (others.pop("shape", ()),)
        return _reshaped(self, given[0] if len(given) == 1 else given, **others)

    def astype(self, dtype: Any) -> "Expression":
        """As the element type of a dtype: real, i32, i64, u32, u8 or bool. Formats of reals are the policy's.

        `int` is i32, and i64 of what is u32 or i64.
        """
        element = numpy_table.with_line(
            self.builder, element_as, dtype, self.element
        )
        return self if element == self.element else self.builder.convert(self, element)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's for the element type; a real is of f64 here, whatever the policy makes it."""
        return dtype_of(self.element)

    # A value does not change: a copy is the value itself.
    copy = _method(np.copy)
    ravel = flatten = _method(np.ravel)
    squeeze = _method(np.squeeze)
    swapaxes = _method(np.swapaxes)
    repeat = _method(np.repeat)
    take = _method(np.take)
    diagonal = _method(np.diagonal)
    trace = _method(np.trace)
    round = _method(np.round)
    sum = _method(np.sum)
    prod = _method(np.prod)
    any = _method(np.any)
    all = _method(np.all)
    mean = _method(np.mean)
    var = _method(np.var)
    std = _method(np.std)
    max = _method(np.max)
    min = _method(np.min)
    argmax = _method(np.argmax)
    argmin = _method(np.argmin)
    argsort = _method(np.argsort)
    searchsorted = _method(np.searchsorted)
    cumsum = _method(np.cumsum)
    cumprod = _method(np.cumprod)
    clip = _method(np.clip)
    dot = _method(np.dot)

    # ---- NumPy's functions ----

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """np.tan(x) and the like append the operation of that name."""
        return numpy_table.ufunc(self.builder, ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return numpy_table.call(self.builder, function, args, kwargs)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"{self.builder.here()}a value of a world has no numbers yet, so it is no array of NumPy: "
            "np.stack([x, y]) makes an array of values, np.broadcast_to(x, shape) repeats one, and sg.literal(table)[i] "
            "takes a computed index into a table of NumPy"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            told = "" if name.startswith("_") or "builder" not in self.__dict__ else (
                f"{self.builder.here()}a value of a world has no {name}; it has NumPy's operators, and of its "
                "functions and methods what docs/python.md says"
            )
            raise AttributeError(told or name)

    # ---- What Python cannot know before the program runs ----

    def __format__(self, spec: str) -> str:
        if spec:
            raise TypeError(
                f"{self.builder.here()}a value of the world has no number before the program runs, and no "
                f"text in format {spec!r}; sg.observe tells it afterwards"
            )
        return repr(self)

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self.builder.here()}Python cannot look at a value of the world, which has no number before "
            "the program runs. Instead of `if`: sg.where(c, a, b), or sg.cond(c, then, otherwise). "
            "Instead of `while`: sg.while_loop. Instead of and, or, not: &, |, ~. Instead of max(a, b): np.maximum. A test with a name: sg.test(\"name\", a < b)"
        )

    def __float__(self) -> float:
        raise TypeError(
            f"{self.builder.here()}float() and the functions of `math` need a number: write np.sin for math.sin. A value of "
            "the world has no number before the program runs, so an array of NumPy does not hold it either: "
            "np.stack([x, y]) makes an array of values, x.at[i].set(y) one with another element"
        )

    def __int__(self) -> int:
        raise TypeError(
            f"{self.builder.here()}a value of the world has no number before the program runs; "
            "x.astype(int) converts it there"
        )

    def __index__(self) -> int:
        raise TypeError(
            f"{self.builder.here()}Python counts and indexes with numbers that it knows. Instead of "
            "range(n): sg.for_loop or sg.while_loop. An array of the world takes a computed index: x[i]"
        )
