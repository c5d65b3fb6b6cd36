"""Writes fake_quantize.json: what ml_dtypes and NumPy make of numbers that are rounded to 8 bits under a scale.

usage: python tests/data/fake_quantize.py > tests/data/fake_quantize.json      (ml_dtypes 0.2 or later, which JAX brings)
Source: ml_dtypes, github.com/jax-ml/ml_dtypes, for casts to float8_e4m3fn and float8_e5m2; Python's fractions for scales.
Numbers are hexadecimal. `axes`: those that share a scale; `scale`: the given one, or null; `kept`: where nothing was clamped.
"""

import json
from fractions import Fraction

import ml_dtypes
import numpy as np

SMALL = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
DTYPES = {"f64": np.float64, "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
ROUNDED_UP = {"e4m3": 464.0, "e5m2": 61440.0}  # from where on, or above which, a number overflows
rng = np.random.default_rng(67)
cases = []


def cast(x, to):
    """Saturating, and whether it clamped."""
    with np.errstate(all="ignore"):
        plain = np.asarray(x).astype(SMALL[to]).astype(np.float64)
    clamped = ~np.isfinite(plain) & ~np.isnan(np.asarray(x).astype(np.float64))
    most = float(ml_dtypes.finfo(SMALL[to]).max)
    return np.where(clamped, np.copysign(most, np.asarray(x).astype(np.float64)), plain), clamped


def power_of(line, to):
    """k of the scale 2^k: the smallest with amax <= max 2^k, by exact fractions."""
    magnitudes = [Fraction(abs(float(v))) for v in line.ravel() if np.isfinite(float(v))]
    amax, most = max(magnitudes, default=Fraction(0)), Fraction(float(ml_dtypes.finfo(SMALL[to]).max))
    if amax == 0:
        return 0
    k = -1200
    while amax > most * Fraction(2) ** k:
        k += 1
    return k


def saturated(x, dtype):
    with np.errstate(all="ignore"):
        rounded = np.asarray(x).astype(dtype).astype(np.float64)
    most = float(ml_dtypes.finfo(dtype).max)
    return np.where(np.isinf(rounded), np.copysign(most, rounded), rounded)


def quantized(x, scale, dtype, to):
    x64 = x.astype(np.float64)
    with np.errstate(all="ignore"):
        if scale is None:
            k = power_of(x, to)
            # In two halves, as 2^-k may be no double. What underflows is far below the small format.
            down = np.ldexp(np.ldexp(x64, -(k // 2)), -(k - k // 2))
            small, clamped = cast(down, to)
            up = np.ldexp(np.ldexp(small, k // 2), k - k // 2)
            return saturated(up, dtype), clamped
        s = dtype(scale) if np.isfinite(scale) and scale > 0 else dtype(1)
        small, _ = cast(saturated((x / s).astype(dtype), dtype), to)
        _, clamped = cast((x / s).astype(dtype), to)
        product = small * np.float64(s)  # of 4 and at most 53 digits: of f64 rounded as f64 rounds it
        return saturated(product, dtype), clamped


def case(name, x, format, to, axes=None, scale=None):
    dtype = DTYPES[format]
    with np.errstate(all="ignore"):
        x = np.asarray(x, np.float64).astype(dtype)
    shared = list(range(x.ndim)) if axes is None else axes
    kept_axes = [a for a in range(x.ndim) if a not in shared]
    scales = None if scale is None else np.broadcast_to(scale, [x.shape[a] for a in kept_axes])
    result, clamped = np.empty(x.shape), np.empty(x.shape, bool)
    for at in np.ndindex(*(x.shape[a] for a in kept_axes)):
        index = [slice(None)] * x.ndim
        for a, i in zip(kept_axes, at):
            index[a] = i
        index = tuple(index)
        line_scale = None if scales is None else float(scales[at])
        result[index], clamped[index] = quantized(x[index], line_scale, dtype, to)
    numbers = lambda values: [float(v).hex() for v in np.asarray(values).ravel()]
    cases.append({"name": f"{name}, {format} to {to}", "shape": list(x.shape), "role": format, "format": to,
                  "axes": shared, "x": numbers(x), "scale": None if scales is None else numbers(scales),
                  "result": numbers(result), "kept": [int(not c) for c in clamped.ravel()]})


for format, dtype in DTYPES.items():
    info = ml_dtypes.finfo(dtype)
    most, least = float(info.max), float(info.smallest_subnormal)
    ulp = float(info.eps)
    for to in SMALL:
        top = float(ml_dtypes.finfo(SMALL[to]).max)
        case("a matrix", rng.standard_normal((4, 5)), format, to)
        case("rows", rng.standard_normal((3, 4)) * [[1], [100], [0.01]], format, to, axes=[1])
        case("columns of planes", rng.standard_normal((2, 3, 4)) * [1, 30, 0.1, 3], format, to, axes=[0, 1])
        case("each by itself", [1 / 3, 0.0, -7.7, 1e-3], format, to, axes=[])
        case("a scalar", 0.3, format, to)
        case("zeros", [0.0, -0.0, 0.0], format, to)
        # A largest magnitude on the boundary of its power of two, and one ulp beyond.
        for name, amax in (("at the top", top / 16), ("an ulp above", top / 16 * (1 + ulp)), ("a power of two", 0.5),
                           ("an ulp above a power of two", 0.5 * (1 + ulp))):
            case(name, [amax, -amax / 3, amax / 50, amax / 7000, amax / 300], format, to)
        case("subnormal", least * np.array([1, 3, -7, 21, 0, 43, 100]), format, to)
        case("one subnormal", [least], format, to)
        case("the largest", [most, -most / 3, most / 1000, 1.0], format, to)
        case("around 1", 1 + np.arange(17) / 64, format, to)
        case("down to nothing", top / 16 * 2.0 ** -np.arange(30 if format != "f16" else 18), format, to)
        case("not finite", [np.inf, -np.inf, np.nan, 1.0, -0.3], format, to)
        case("nothing finite", [np.inf, np.nan], format, to)
        limit = ROUNDED_UP[to]
        near = max(ulp, 2.0**-23)  # ml_dtypes takes f64 through f32
        points = np.array([top, limit, limit * (1 - near), limit * (1 + 2 * near), top * (1 + near), 1.0])
        if format != "f16" or to == "e4m3":
            case("a scale of a half", np.append(points, -points) / 2, format, to, scale=0.5)
            case("a scale of 1", np.append(points, -points), format, to, scale=1.0)
        case("a scale of 3", rng.standard_normal((2, 3)) * 10, format, to, scale=3.0)
        case("a scale a row", rng.standard_normal((2, 3)) * top / 100, format, to, axes=[1], scale=[1 / 64, 2.0])
        case("a scale of 0, below 0", rng.standard_normal((2, 3)) * top, format, to, axes=[1], scale=[0.0, -2.0])
        case("a scale that is none", rng.standard_normal((2, 3)), format, to, axes=[1], scale=[np.inf, np.nan])

print(json.dumps({"source": f"ml_dtypes {ml_dtypes.__version__}, numpy {np.__version__}, fake_quantize.py",
                  "cases": cases}, separators=(",", ":")).replace('},{', '},\n{'))
