"""Writes fp8_casts.txt: numbers of f32, and what ml_dtypes makes of them in float8_e4m3fn and float8_e5m2.

usage: python tests/data/fp8_casts.py > tests/data/fp8_casts.txt      (ml_dtypes 0.2 or later, which JAX brings)
Source: ml_dtypes, github.com/jax-ml/ml_dtypes: to nearest even; beyond the largest e4m3fn gives NaN, e5m2 infinity.
A line is the bits of the number, of its e4m3 and of its e5m2, in hexadecimal. The numbers are all values of both formats,
the midpoints between neighbours, the floats beside all of these, and 2,000 patterns at random, of both signs.
"""

import ml_dtypes
import numpy as np

FORMATS = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


def corners(format):
    values = np.arange(128, dtype=np.uint8).view(format).astype(np.float64)
    values = values[np.isfinite(values)]
    beyond = 2 * values[-1] - values[-2]  # what would follow the largest
    values = np.append(values, beyond)
    return np.concatenate([values, (values[1:] + values[:-1]) / 2])


points = np.concatenate([corners(format) for format in FORMATS]).astype(np.float32)
points = np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(0))])
random = np.random.default_rng(8).integers(2**31, size=2000, dtype=np.uint32)
near = np.exp2(np.random.default_rng(9).uniform(-20, 18, 1000)).astype(np.float32)
bits = np.concatenate([points.view(np.uint32), near.view(np.uint32), random, np.uint32([0x7F800000, 0x7FC00000])])
bits = np.unique(np.concatenate([bits, bits | np.uint32(1 << 31)]))
with np.errstate(all="ignore"):
    casts = [bits.view(np.float32).astype(format).view(np.uint8) for format in FORMATS]
print(f"# ml_dtypes {ml_dtypes.__version__}, numpy {np.__version__}")
for line in zip(bits, *casts):
    print("%08x %02x %02x" % line)
