"""Writes numpy_arrays.json: what NumPy gives for operations on arrays and linear algebra.

usage: python tests/data/numpy_arrays.py > tests/data/numpy_arrays.json
Sources: numpy.take, put_along_axis, ufunc.at, pad, lexsort (stable), linalg.cholesky, linalg.solve, linalg.norm;
scipy.linalg.lu (LAPACK's getrf: partial pivoting, the first of equals).
Numbers are hexadecimal. `tolerance` 0: the bits are those of NumPy; else the largest relative difference.
"""

import json

import numpy as np
import scipy

rng = np.random.default_rng(14)
cases = []


def operand(x):
    x = np.asarray(x)
    element = "i32" if x.dtype.kind == "i" else "real"
    return {"shape": list(x.shape), "element": element, "values": [float(v).hex() for v in x.ravel()]}


def case(name, code, operands, result, tolerance=0.0, **attributes):
    cases.append({"name": name, "code": code, "operands": [operand(x) for x in operands],
                  "attributes": attributes, "result": operand(result), "tolerance": tolerance})


def ints(*values):
    return np.array(values, dtype=np.int32)


x = rng.standard_normal((4, 5))
case("every second column", "slice", [x], x[1:4:2, ::2], start=[1, 0], shape=[2, 3], stride=[2, 2])
padded = np.full((4 + 2 + 1, 5 + 4), 2.5)
padded[2:6, 0:9:2] = x
case("between columns", "pad", [x], padded, start=[2, 0], shape=[7, 9], interior=[0, 1], fill=2.5)
cube = rng.standard_normal((2, 3, 4))
case("axes turned", "transpose", [cube], cube.transpose(2, 0, 1), dims=[2, 0, 1])
flat = [0, 7, -1, 7, 19]
case("elements by number", "take", [x], np.array([x.ravel()[i] if i >= 0 else -1.0 for i in flat]),
     shape=[5], indices=flat, fill=-1.0)

at = ints(3, -2, 0, 9, 3)
case("gather clips", "gather", [x, at], np.take(x, at, axis=0, mode="clip"), axes=[0], bounds="clip")
inside = (at >= 0) & (at < 4)
case("gather fills", "gather", [x, at],
     np.where(inside[:, None], np.take(x, at, axis=0, mode="clip"), 0.5), axes=[0], bounds="fill", fill=0.5)
table = ints(1, 4, 0, 0, 2, 1).reshape(2, 3)
case("gather by a table", "gather", [x, table], np.take(x, table, axis=1), axes=[1], bounds="clip")

for combine, at_ in (("add", np.add.at), ("mul", np.multiply.at), ("min", np.minimum.at), ("max", np.maximum.at)):
    for name, places in (("some outside", ints(2, 0, 7, 2, -1, 3)), ("all equal", ints(1, 1, 1, 1, 1, 1)),
                         ("all outside", ints(4, 5, 6, -1, -2, -3)), ("none", ints())):
        updates = rng.standard_normal((len(places), 5))
        kept = (places >= 0) & (places < 4)
        out = x.copy()
        at_(out, places[kept], updates[kept])
        case(f"scatter {combine} {name}", "scatter", [x, places, updates], out, axes=[0], bounds="drop",
             combine=combine)
places = ints(2, 0, 2, 9)
updates = rng.standard_normal((4, 5))
out = x.copy()
for p, u in zip(np.clip(places, 0, 3), updates):
    out[p] = u
case("scatter sets the last", "scatter", [x, places, updates], out, axes=[0], bounds="clip", combine="set")

case("window moved inside", "dynamic_slice", [x, ints(9, -3)], x[2:4, 0:3], shape=[2, 3])
part = rng.standard_normal((2, 2))
out = x.copy()
out[1:3, 3:5] = part
case("window written", "update", [x, part, ints(1, 4)], out)

keys = np.array([2.0, -0.0, np.nan, 0.0, 2.0, -1.0, np.nan, -np.inf])
second = ints(5, 3, 2, 3, 1, 0, 1, 9)
case("sorted with NaN last and equal zeros", "argsort", [keys], np.argsort(keys, kind="stable").astype(np.int32), axes=[0])
order = np.lexsort((second, np.where(np.isnan(keys), np.inf, keys + 0.0), np.isnan(keys)))
case("sorted by two keys", "argsort", [keys, second], order.astype(np.int32), axes=[0])
case("all keys equal", "argsort", [np.zeros(5)], np.arange(5, dtype=np.int32), axes=[0])
case("no keys", "argsort", [np.zeros(0)], np.zeros(0, dtype=np.int32), axes=[0])
case("rows sorted", "argsort", [x], np.argsort(x, axis=1, kind="stable").astype(np.int32), axes=[1])

a, b = rng.standard_normal((3, 7)), rng.standard_normal((7, 2))
case("product", "matmul", [a, b], a @ b, 1e-14)
case("product over nothing", "matmul", [np.zeros((2, 0)), np.zeros((0, 3))], np.zeros((2, 3)))
a, b = rng.standard_normal((3, 2, 4)), rng.standard_normal((3, 4, 5))
case("products", "matmul", [a, b], a @ b, 1e-14)
m = rng.standard_normal((6, 6))
spd = m @ m.T + 6 * np.eye(6)
low = np.linalg.cholesky(spd)
case("cholesky", "cholesky", [np.tril(spd)], low, 1e-14)
case("cholesky of two", "cholesky", [np.stack([spd, np.eye(6)])], np.linalg.cholesky(np.stack([spd, np.eye(6)])), 1e-14)
b = rng.standard_normal((6, 3))
for upper in (False, True):
    for transposed in (False, True):
        t = np.triu(low.T) if upper else low
        case(f"triangle {upper} {transposed}", "triangular_solve", [t, b],
             np.linalg.solve(t.T if transposed else t, b), 1e-13, upper=upper, transposed=transposed)
unit = np.tril(m, -1) / 8 + np.eye(6)
case("triangle with ones", "triangular_solve", [np.tril(m, -1) / 8, b], np.linalg.solve(unit, b), 1e-13, unit=True)
case("solution", "solve", [m, b], np.linalg.solve(m, b), 1e-11)
case("solution that needs pivots", "solve", [np.array([[0.0, 1.0], [1.0, 0.0]]), b[:2]], b[1::-1], 0.0)
case("norms", "norm2", [x], np.linalg.norm(x, axis=1), 1e-15, axes=[1])
case("norm of huge numbers", "norm2", [np.array([3e300, 4e300])], np.array(5e300), 1e-15, axes=[0])
case("norm of tiny numbers", "norm2", [np.array([3e-310, 4e-310])], np.array(5e-310), 1e-12, axes=[0])
case("norm of nothing", "norm2", [np.zeros(0)], np.array(0.0), axes=[0])

for rows, columns in ((6, 6), (6, 4), (4, 6), (7, 1), (1, 5), (0, 3), (3, 0)):
    for kind in ("random", "singular", "tied"):
        a = rng.standard_normal((rows, columns))
        if kind == "singular" and columns > 1:
            a[:, 1] = 0.0
        if kind == "tied":
            a = rng.integers(-1, 2, (rows, columns)).astype(np.float64)
        place, left, right = scipy.linalg.lu(a, p_indices=True) if a.size else (np.arange(rows), a, a)
        least = min(rows, columns)
        factors = np.zeros((rows, columns))
        if a.size:
            factors[:, :least] += np.tril(left, -1)
            factors[:least] += np.triu(right)
        order = np.argsort(place).astype(np.int32)
        case(f"factors {rows} by {columns} {kind}", "lu", [a], factors, 1e-13)
        case(f"rows of factors {rows} by {columns} {kind}", "lu_permutation", [a], order)

print(json.dumps({"source": f"numpy {np.__version__}, scipy {scipy.__version__}, numpy_arrays.py", "cases": cases}, indent=1))
