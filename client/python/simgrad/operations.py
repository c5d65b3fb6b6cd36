# Printed from sim/op by simgrad-operations --python; a test holds it to the table.
"""One method per operation that a world may use; `simgrad.program` adds inputs and control flow."""

from __future__ import annotations

from typing import Any, Sequence

from .operation_writer import BOOL, I32, Expression, OperationWriter


class Operations(OperationWriter):
    """The operations of docs/programs.md, by name.

    Operands are expressions or numbers; a scalar is widened to the shape of the others. A method
    returns the result and raises ValueError for shapes that do not meet; all else is verified by
    the server.
    """

    def add(self, a: Any, b: Any) -> Expression:
        """a + b, real or integer."""
        return self._elementwise("add", None, a, b)

    def sub(self, a: Any, b: Any) -> Expression:
        """a - b, real or integer."""
        return self._elementwise("sub", None, a, b)

    def mul(self, a: Any, b: Any) -> Expression:
        """a b, real or integer."""
        return self._elementwise("mul", None, a, b)

    def div(self, a: Any, b: Any) -> Expression:
        """a / b, real; of integers toward minus infinity, and 0 for a zero divisor."""
        return self._elementwise("div", None, a, b)

    def neg(self, a: Any) -> Expression:
        """-a, real or integer."""
        return self._elementwise("neg", None, a)

    def abs(self, a: Any) -> Expression:
        """|a|, real or integer."""
        return self._elementwise("abs", None, a)

    def sign(self, a: Any) -> Expression:
        """-1, 0 or 1, real or integer; NaN of NaN."""
        return self._elementwise("sign", None, a)

    def min(self, a: Any, b: Any) -> Expression:
        """The smaller of a and b, real or integer; the cotangent goes to the one taken."""
        return self._elementwise("min", None, a, b)

    def max(self, a: Any, b: Any) -> Expression:
        """The larger of a and b, real or integer; the cotangent goes to the one taken."""
        return self._elementwise("max", None, a, b)

    def fma(self, a: Any, b: Any, c: Any) -> Expression:
        """a b + c, rounded once."""
        return self._elementwise("fma", None, a, b, c)

    def sqrt(self, a: Any) -> Expression:
        """The square root of a."""
        return self._elementwise("sqrt", None, a)

    def floor(self, a: Any) -> Expression:
        """The largest integer not above a, as a real."""
        return self._elementwise("floor", None, a)

    def round(self, a: Any) -> Expression:
        """The nearest integer as a real, ties to even."""
        return self._elementwise("round", None, a)

    def mod(self, a: Any, b: Any) -> Expression:
        """a - b floor(a / b), real or integer; of integers 0 for a zero divisor."""
        return self._elementwise("mod", None, a, b)

    def rem(self, a: Any, b: Any) -> Expression:
        """a - b trunc(a / b), real, exact, or integer; of integers a for a zero divisor."""
        return self._elementwise("rem", None, a, b)

    def quot(self, a: Any, b: Any) -> Expression:
        """trunc(a / b), real, or integer; of integers -1, or the largest unsigned, for a
        zero divisor."""
        return self._elementwise("quot", None, a, b)

    def ceil(self, a: Any) -> Expression:
        """The smallest integer not below a, as a real."""
        return self._elementwise("ceil", None, a)

    def trunc(self, a: Any) -> Expression:
        """a without its fraction."""
        return self._elementwise("trunc", None, a)

    def next_after(self, a: Any, b: Any) -> Expression:
        """The number next to a in the format of the role, on the side of b; b where they
        are equal. The cotangent goes to a."""
        return self._elementwise("next_after", None, a, b)

    def exp(self, a: Any) -> Expression:
        """e^a."""
        return self._elementwise("exp", None, a)

    def log(self, a: Any) -> Expression:
        """The natural logarithm of a."""
        return self._elementwise("log", None, a)

    def log1p(self, a: Any) -> Expression:
        """log(1 + a), exact near 0."""
        return self._elementwise("log1p", None, a)

    def expm1(self, a: Any) -> Expression:
        """e^a - 1, exact near 0."""
        return self._elementwise("expm1", None, a)

    def sin(self, a: Any) -> Expression:
        """The sine of a, in radians."""
        return self._elementwise("sin", None, a)

    def cos(self, a: Any) -> Expression:
        """The cosine of a, in radians."""
        return self._elementwise("cos", None, a)

    def atan2(self, y: Any, x: Any) -> Expression:
        """The angle of the point (x, y), in radians."""
        return self._elementwise("atan2", None, y, x)

    def tanh(self, a: Any) -> Expression:
        """The hyperbolic tangent of a."""
        return self._elementwise("tanh", None, a)

    def sigmoid(self, a: Any) -> Expression:
        """1 / (1 + e^-a)."""
        return self._elementwise("sigmoid", None, a)

    def softplus(self, a: Any) -> Expression:
        """log(1 + e^a)."""
        return self._elementwise("softplus", None, a)

    def pow(self, a: Any, b: Any) -> Expression:
        """a^b."""
        return self._elementwise("pow", None, a, b)

    def exp2(self, a: Any) -> Expression:
        """2^a."""
        return self._elementwise("exp2", None, a)

    def log2(self, a: Any) -> Expression:
        """The logarithm of a to base 2."""
        return self._elementwise("log2", None, a)

    def rsqrt(self, a: Any) -> Expression:
        """1 / sqrt(a), rounded once."""
        return self._elementwise("rsqrt", None, a)

    def cbrt(self, a: Any) -> Expression:
        """The real cube root of a."""
        return self._elementwise("cbrt", None, a)

    def tan(self, a: Any) -> Expression:
        """The tangent of a, in radians."""
        return self._elementwise("tan", None, a)

    def asin(self, a: Any) -> Expression:
        """The angle in [-pi/2, pi/2] whose sine is a."""
        return self._elementwise("asin", None, a)

    def acos(self, a: Any) -> Expression:
        """The angle in [0, pi] whose cosine is a."""
        return self._elementwise("acos", None, a)

    def atan(self, a: Any) -> Expression:
        """The angle in [-pi/2, pi/2] whose tangent is a."""
        return self._elementwise("atan", None, a)

    def sinh(self, a: Any) -> Expression:
        """The hyperbolic sine of a."""
        return self._elementwise("sinh", None, a)

    def cosh(self, a: Any) -> Expression:
        """The hyperbolic cosine of a."""
        return self._elementwise("cosh", None, a)

    def erf(self, a: Any) -> Expression:
        """The error function of a."""
        return self._elementwise("erf", None, a)

    def erfc(self, a: Any) -> Expression:
        """1 - erf(a), without cancellation."""
        return self._elementwise("erfc", None, a)

    def lt(self, a: Any, b: Any) -> Expression:
        """The bool a < b. Of reals it is a site where the program's `level` says so;
        without a level it decides no `select` and enters no loop: use `event`."""
        return self._elementwise("lt", BOOL, a, b)

    def le(self, a: Any, b: Any) -> Expression:
        """The bool a <= b; of reals as for `lt`."""
        return self._elementwise("le", BOOL, a, b)

    def gt(self, a: Any, b: Any) -> Expression:
        """The bool a > b; of reals as for `lt`."""
        return self._elementwise("gt", BOOL, a, b)

    def ge(self, a: Any, b: Any) -> Expression:
        """The bool a >= b; of reals as for `lt`."""
        return self._elementwise("ge", BOOL, a, b)

    def eq(self, a: Any, b: Any) -> Expression:
        """The bool a == b, also of bools; of reals as for `lt`."""
        return self._elementwise("eq", BOOL, a, b)

    def ne(self, a: Any, b: Any) -> Expression:
        """The bool a != b, also of bools, false where one is NaN; of reals as for `lt`."""
        return self._elementwise("ne", BOOL, a, b)

    def is_finite(self, a: Any) -> Expression:
        """Whether a real is neither infinite nor NaN; no test, as it has no threshold."""
        return self._elementwise("is_finite", BOOL, a)

    def and_(self, a: Any, b: Any) -> Expression:
        """Whether both bools hold; of integers the bits that both have."""
        return self._elementwise("and", None, a, b)

    def or_(self, a: Any, b: Any) -> Expression:
        """Whether one of two bools holds; of integers the bits that one of them has."""
        return self._elementwise("or", None, a, b)

    def not_(self, a: Any) -> Expression:
        """Whether a bool does not hold; of an integer the bits that it does not have."""
        return self._elementwise("not", None, a)

    def xor(self, a: Any, b: Any) -> Expression:
        """Whether just one of two bools holds; of integers the bits that just one of them
        has."""
        return self._elementwise("xor", None, a, b)

    def shl(self, a: Any, b: Any) -> Expression:
        """The bits of an integer moved up by b places; 0 where b is negative, or the
        width or more."""
        return self._elementwise("shl", None, a, b)

    def shr(self, a: Any, b: Any) -> Expression:
        """The bits of an integer moved down by b places, copies of the sign behind them;
        nothing but the sign where b is negative, or the width or more."""
        return self._elementwise("shr", None, a, b)

    def select(self, condition: Any, a: Any, b: Any) -> Expression:
        """a where the condition, a bool of their shape, holds, else b."""
        return self._elementwise("select", None, condition, a, b)

    def broadcast(self, a: Any, shape: Sequence[int], dims: Sequence[int]) -> Expression:
        """a repeated: `shape` is that of the result; `dims` gives, for each axis of a,
        the axis of the result it becomes, ascending (none for a scalar)."""
        return self._reshaped("broadcast", None, a, shape=shape, dims=dims)

    def reshape(self, a: Any, shape: Sequence[int]) -> Expression:
        """The same elements, row-major, in another `shape`."""
        return self._reshaped("reshape", None, a, shape=shape)

    def slice(
        self, a: Any, start: Sequence[int], shape: Sequence[int], stride: Sequence[int] = ()
    ) -> Expression:
        """The part of a that begins at `start` and has `shape`, per axis; of `stride` n
        every n-th element."""
        return self._reshaped("slice", None, a, start=start, shape=shape, stride=stride)

    def pad(
        self, a: Any, start: Sequence[int], shape: Sequence[int], interior: Sequence[int] = (), fill: float = 0.0
    ) -> Expression:
        """a in `shape`, from `start` on, with `interior` places between neighbours, per
        axis; `fill` everywhere else, rounded and within the range of the format."""
        return self._reshaped("pad", None, a, start=start, shape=shape, interior=interior, fill=fill)

    def concat(self, *operands: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """The operands one after the other along the one axis of `axes`."""
        return self._joined("concat", None, *operands, axes=axes)

    def transpose(self, a: Any, dims: Sequence[int]) -> Expression:
        """a with its axes in another order: axis k of the result is axis `dims`[k] of a."""
        return self._array("transpose", None, a, dims=dims)

    def take(
        self, a: Any, shape: Sequence[int], indices: Sequence[int], fill: float = 0.0
    ) -> Expression:
        """Elements of a by their row-major numbers `indices`, in `shape`; -1 gives
        `fill`, rounded and within the range of the format."""
        return self._reshaped("take", None, a, shape=shape, indices=indices, fill=fill)

    def iota(
        self, element: int, shape: Sequence[int], axes: int | Sequence[int] | None = None
    ) -> Expression:
        """Integers of `shape`: the position of each element along the one axis of `axes`."""
        return self._array("iota", element, shape=shape, axes=axes)

    def gather(
        self, a: Any, indices: Any, axes: int | Sequence[int] | None = None, fill: float = 0.0, bounds: str = "clip"
    ) -> Expression:
        """Elements of a along the one axis of `axes`, at i32 indices of any shape, which
        takes the place of the axis. Where an index is outside, `bounds` `clip` takes
        the nearest, `fill` gives `fill`, rounded and within the range of the format."""
        return self._array("gather", None, a, indices, axes=axes, fill=fill, bounds=bounds)

    def scatter(
        self, a: Any, indices: Any, updates: Any, axes: int | Sequence[int] | None = None, bounds: str = "clip", combine: str = "add"
    ) -> Expression:
        """a with updates brought in along the one axis of `axes`, at i32 indices, one
        after the other: `combine` is `set`, `add`, `mul`, `min` or `max`, each
        rounded. Where an index is outside, `bounds` `clip` takes the nearest place,
        `drop` none. The cotangent of `mul` is that of distinct indices."""
        return self._array("scatter", None, a, indices, updates, axes=axes, bounds=bounds, combine=combine)

    def dynamic_slice(self, a: Any, starts: Any, shape: Sequence[int]) -> Expression:
        """The part of a of `shape` that begins at starts, an i32 per axis, moved inside
        where it would leave a."""
        return self._array("dynamic_slice", None, a, starts, shape=shape)

    def update(self, a: Any, part: Any, starts: Any) -> Expression:
        """a with a part written over it that begins at starts, an i32 per axis, moved
        inside where it would leave a."""
        return self._array("update", None, a, part, starts)

    def argsort(self, *operands: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """The i32 places of the elements of keys in ascending order along the one axis of
        `axes`: equal ones of the first key by the next, then as they stand; zeros are
        equal, NaN comes last."""
        return self._array("argsort", I32, *operands, axes=axes)

    def matmul(self, a: Any, b: Any) -> Expression:
        """The product of matrices [..., m, k] and [..., k, n], with the same axes in
        front: each number one chain of fma over k in the accumulator of the role, or
        its products in another order where the policy says so."""
        return self._array("matmul", None, a, b)

    def cholesky(self, a: Any) -> Expression:
        """The lower factor of symmetric matrices [..., n, n], of which the lower triangle
        is read, +0 above; from a pivot that is not above 0 on, the lower triangle is
        NaN."""
        return self._array("cholesky", None, a)

    def triangular_solve(
        self, t: Any, b: Any, upper: bool = False, transposed: bool = False, unit: bool = False
    ) -> Expression:
        """x with t x = b, of a lower triangle t [..., n, n] (`upper`: an upper one;
        `transposed`: of its transpose; `unit`: ones on its diagonal) and b [..., n,
        m]. The rest of t is not read."""
        return self._array("triangular_solve", None, t, b, upper=upper, transposed=transposed, unit=unit)

    def lu(self, a: Any, rows: Any = None) -> Expression:
        """The factors of a matrix [m, n] with its rows in the order of `lu_permutation`:
        below the diagonal the multipliers, from it on the upper factor. A column of
        zeros has multipliers 0. With `rows`, an i32 per row, the pivot of column k is
        row rows[k] of the matrix, or the first that is left where that is none or has
        been one; numbers from min(m, n) on are not read."""
        return self._array("lu", None, a, rows)

    def lu_permutation(self, a: Any, rows: Any = None) -> Expression:
        """The row of a matrix [m, n] that each row of its `lu` is: the pivot of a column
        is the first largest magnitude, or the first NaN. With `rows`, as for `lu`: the
        rows that would be the pivots by this rule, each behind the given ones before
        it; that is no order for `lu_solve`, which takes `rows`."""
        return self._array("lu_permutation", I32, a, rows)

    def lu_solve(
        self, a: Any, factors: Any, permutation: Any, b: Any, transposed: bool = False
    ) -> Expression:
        """x with a x = b (`transposed`: of the transpose of a) from the factors and the
        permutation of a; a itself is not read, and receives the cotangent."""
        return self._array("lu_solve", None, a, factors, permutation, b, transposed=transposed)

    def norm2(self, a: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """The Euclidean norm over `axes`, ascending; those axes go. Numbers are scaled by
        the power of two of the largest, squared, and added in the order and
        accumulator of the role."""
        return self._array("norm2", None, a, axes=axes)

    def solve(self, a: Any, b: Any) -> Expression:
        """x with a x = b, of a square matrix a and b [n, m]: `lu`, `lu_permutation` and
        `lu_solve`."""
        return self._array("solve", None, a, b)

    def sum(self, a: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """The sum over `axes`, ascending; those axes go. Of reals, order and accumulator
        are the policy's for the role; integers wrap."""
        return self._reduced("sum", None, a, axes=axes)

    def reduce_max(self, a: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """The largest element along the one axis of `axes`; NaN propagates; the cotangent
        goes to the first largest."""
        return self._reduced("reduce_max", None, a, axes=axes)

    def reduce_min(self, a: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """The smallest element along the one axis of `axes`; NaN propagates; the
        cotangent goes to the first smallest."""
        return self._reduced("reduce_min", None, a, axes=axes)

    def argmax(self, a: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """The i32 index of the first largest element, or of the first NaN, along the one
        axis of `axes`."""
        return self._reduced("argmax", I32, a, axes=axes)

    def argmin(self, a: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """The i32 index of the first smallest element, or of the first NaN, along the one
        axis of `axes`."""
        return self._reduced("argmin", I32, a, axes=axes)

    def cumsum(
        self, a: Any, axes: int | Sequence[int] | None = None, reverse: bool = False
    ) -> Expression:
        """The running sum along the one axis of `axes`; with `reverse` from the last
        element down. Sequential; the accumulator is the policy's for the role."""
        return self._scanned("cumsum", None, a, axes=axes, reverse=reverse)

    def any(self, a: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """Whether any of the bools over `axes` holds."""
        return self._reduced("any", BOOL, a, axes=axes)

    def all(self, a: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """Whether all of the bools over `axes` hold."""
        return self._reduced("all", BOOL, a, axes=axes)

    def prod(self, a: Any, axes: int | Sequence[int] | None = None) -> Expression:
        """The product over `axes`, ascending, real, rounded after each factor, or
        integer; those axes go."""
        return self._reduced("prod", None, a, axes=axes)

    def cast(self, a: Any, format: str = "", overflow: str = "", rounding: str = "") -> Expression:
        """A real rounded to `format`, else to the role's; `overflow` is `ieee` or
        `saturate`, else the role's; `rounding` is `nearest_even`, `nearest_away`,
        `toward_zero` or `stochastic` (only in `step`), else the role's."""
        return self._elementwise("cast", None, a, format=format, overflow=overflow, rounding=rounding)

    def convert(self, a: Any, element: int) -> Expression:
        """a as the element type of its result: real to integer toward zero, saturating,
        NaN to 0; integer to integer modulo its width; to bool whether a is not 0, NaN
        to false. It has no derivative."""
        return self._converted("convert", element, a)

    def stop_gradient(self, a: Any) -> Expression:
        """a, without a cotangent."""
        return self._elementwise("stop_gradient", None, a)

    def fake_quantize(
        self, a: Any, format: str = "e4m3", axes: int | Sequence[int] | None = None, scale: Any = None
    ) -> Expression:
        """The rest of a in `format`, e4m3 or e5m2, under a scale: a divided by it,
        rounded, saturating, times the scale. The elements along `axes` share a scale:
        the smallest power of two that brings their largest finite magnitude within the
        format, 1 where that is 0, or `scale`. The cotangent passes where nothing was
        clamped; the scale has none."""
        return self._quantized("fake_quantize", None, a, scale, format=format, axes=axes)
