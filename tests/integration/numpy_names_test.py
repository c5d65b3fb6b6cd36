"""NumPy's operators, indexing and functions mean on a server what they mean in NumPy."""

import numpy as np
import pytest

import simgrad as sg

X = np.random.default_rng(7).uniform(-2, 2, (3, 4))
Y = np.random.default_rng(8).uniform(0.5, 3, (4,))
A = np.random.default_rng(9).uniform(-1, 1, (4, 4)) + 4 * np.eye(4)
K = np.array([2, 0, 2, -1], np.int32)
I = np.array([2, 0, 1, 1], np.int32)
BYTES = np.array([200, 201, 7, 255], np.uint8)
ENDS = np.array([1.0, np.inf, -np.inf, np.inf])

# Functions of x [3, 4], y [4], a [4, 4], and integers k and i [4]; i are indices.
CASES = {
    "broadcast": lambda x, y, a, k, i: x * y + x[:, :1] - y[0],
    "reflected": lambda x, y, a, k, i: 1 - x + 2 / (y + np.array([1.0, 2.0, 3.0, 4.0])),
    "array times": lambda x, y, a, k, i: np.array([[1.0], [2.0], [3.0]]) * y,
    "powers": lambda x, y, a, k, i: x**2 + x**3 - x**7 + y**-2 + y**0.5 + y**1.7 + 2.0**x + x**1,
    "power of arrays": lambda x, y, a, k, i: np.power(y, x),
    "remainders": lambda x, y, a, k, i: x // y + x % y + np.fmod(x, y) + divmod(x, y)[0],
    "integers": lambda x, y, a, k, i: k // 2 + k % 3 - abs(k) * 3 + -k,
    "integers meet reals": lambda x, y, a, k, i: k * y + k / 4 + (k > 0) * y + k**2,
    "quotients of several integers": lambda x, y, a, k, i: k / (i + 1).astype(np.uint32) - np.uint32(7) / (k - 5)
    + np.arange(-4, 0) / (i + 1).astype(np.uint8) + np.true_divide(k, i.astype(np.int64) - 5),
    "areas of integers": lambda x, y, a, k, i: np.trapezoid(k - 5, np.cumsum(i).astype(np.uint32)),
    "comparisons": lambda x, y, a, k, i: (x < y) & ~(x <= 0.1) | (x > 1.5) ^ (x >= 1.9),
    "equality": lambda x, y, a, k, i: (k == 2) | (k != i),
    "bits": lambda x, y, a, k, i: (k & 6 | 1) ^ (i << 2) + (k >> 1) - ~i,
    "where": lambda x, y, a, k, i: np.where(x < y, x, y),
    "where of numbers": lambda x, y, a, k, i: np.where(x < y, 1.0, 0.0),
    "elementary": lambda x, y, a, k, i: np.sin(x)
    + np.exp(x) * np.log(y)
    + np.arctan2(x, y)
    - np.tanh(x),
    "extremes": lambda x, y, a, k, i: np.maximum(x, y) - np.minimum(x, 0.5) + np.clip(x, -1, 1),
    "squares": lambda x, y, a, k, i: np.square(x) + np.reciprocal(y) + np.hypot(x, y),
    "logic": lambda x, y, a, k, i: np.logical_and(x > 0, np.logical_not(y > 1)) | np.isfinite(x),
    "norms of integers": lambda x, y, a, k, i: np.linalg.norm(k + np.int32(2**31 - 3), 1) + np.linalg.norm(k, np.inf),
    "filled like": lambda x, y, a, k, i: np.full_like(x, k[0]) + np.full_like(k, 2) + np.full_like(x, y[0]),
    "inserted": lambda x, y, a, k, i: np.insert(x, 1, y[:3], axis=1).sum(axis=0)[:4] + np.insert(y, -1, 0.5)[1:],
    "inserted stacks": lambda x, y, a, k, i: np.insert(x, 1, x[:, :1], axis=1),
    "inserted rows": lambda x, y, a, k, i: np.insert(x, 1, x[:2] * 2, axis=0),
    "where of integers": lambda x, y, a, k, i: np.where(k, y, 2.0),
    "slices": lambda x, y, a, k, i: x[1:, ::2],
    "an element": lambda x, y, a, k, i: x[-1, 2] + y[3],
    "a row": lambda x, y, a, k, i: x[1] + x[-2, ...],
    "a column": lambda x, y, a, k, i: x[:, 1],
    "new axes": lambda x, y, a, k, i: y[:, None] * y[None, :] + x[0][..., np.newaxis],
    "backward": lambda x, y, a, k, i: x[::-1] + x[:, ::-1],
    "both backward": lambda x, y, a, k, i: x[::-2, ::-1],
    "nothing": lambda x, y, a, k, i: x[2:1].sum() + y[:0].sum(),
    "a list of indices": lambda x, y, a, k, i: x[:, [3, 0, 0, -1]],
    "two arrays of indices": lambda x, y, a, k, i: x[[0, 2, 1], [3, -1, 0]],
    "an array and a slice": lambda x, y, a, k, i: x[[2, 0], 1:3],
    "a mask": lambda x, y, a, k, i: x[np.array([True, False, True])],
    "tuples in a key": lambda x, y, a, k, i: x[:, (1,)] + x[(1,), :] + x[:, (True, False, True, True)].sum()
    + x[:, (0, 2)].sum() + x[(True, False, True),][:, i][0] + x[(2, 0), i[:2]].sum(),
    "indices parted by an ellipsis for no axis": lambda x, y, a, k, i: np.stack([x, 2 * x])[:, [0, 1], ..., [1, 3]]
    + np.stack([x, 2 * x])[:, i[1:3] % 2, ..., [1, 0]]
    + np.stack([x, 2 * x])[:, 1, ..., 2]
    + np.stack([x, 2 * x])[i[1:3] % 2, :, 0, ...][:, :2],
    "no indices": lambda x, y, a, k, i: x[[], i[0]],
    "computed indices": lambda x, y, a, k, i: x[i] + x[:, i][i],
    "a computed element": lambda x, y, a, k, i: x[i[0], i[1]] + y[i[2]],
    "computed and known": lambda x, y, a, k, i: x[i, [3, 0, 1, 2]] + x[1:, i][1] + x[1, i],
    "sums": lambda x, y, a, k, i: x.sum() + x.sum(axis=0) + x.mean(axis=-1, keepdims=True),
    "sum of integers": lambda x, y, a, k, i: k.sum() + (x > 0).sum(axis=0) + np.prod(i),
    "extreme elements": lambda x, y, a, k, i: x.max()
    - x.min(axis=1).max()
    + x.max((0, 1))
    + a.max(0),
    "any and all": lambda x, y, a, k, i: (x > 0).any(axis=1) | (x < 3).all() & np.any(k),
    "products": lambda x, y, a, k, i: x.prod(axis=1) + np.prod(y),
    "where the largest is": lambda x, y, a, k, i: x.argmax(axis=1) + x.argmin() + np.argmax(y),
    "order": lambda x, y, a, k, i: np.sort(x, axis=0) + np.sort(x) + x[:, np.argsort(y)],
    "running sums": lambda x, y, a, k, i: np.cumsum(x, axis=1) + x.cumsum()[-1],
    "shapes": lambda x, y, a, k, i: x.T.reshape(2, -1) + x.ravel()[:6] - x.reshape((-1, 6)),
    "transposed": lambda x, y, a, k, i: np.transpose(x[None], (2, 0, 1))
    + np.swapaxes(x, 0, 1)[:, None],
    "moved": lambda x, y, a, k, i: np.moveaxis(x[None], 0, -1)
    + np.expand_dims(x, 2) * np.squeeze(x[:1, :1]),
    "joined": lambda x, y, a, k, i: np.concatenate([x, y[None], a]) + np.vstack([x, a, y]),
    "side by side": lambda x, y, a, k, i: np.hstack([x, x[:, :1]])
    + np.concatenate([x.T, y[:, None]], 1)[:3, :1],
    "stacked": lambda x, y, a, k, i: np.stack([y, x[0], y], axis=1) + np.stack([y, y, y], -1),
    "rolled": lambda x, y, a, k, i: np.roll(x, 1, axis=0) + np.roll(x, -2, axis=1) + np.roll(x, 5),
    "flipped": lambda x, y, a, k, i: np.flip(x) + np.flip(x, 1) + np.diff(np.hstack([x, x[:, :1]])),
    "products of matrices": lambda x, y, a, k, i: x @ a @ y
    + np.dot(x, y)
    + (y @ a @ y)
    + np.outer(x[:, 0], y) @ y,
    "batches": lambda x, y, a, k, i: np.stack([a, a.T]) @ y + (np.stack([a, a]) @ x.T)[:, :, 0],
    "constants": lambda x, y, a, k, i: np.eye(3) @ x + x @ np.arange(4.0) @ np.ones(3),
    "triangles": lambda x, y, a, k, i: np.tril(a)
    - np.triu(a, 1)
    + np.diag(y)
    + np.diag(np.diag(a)) * np.trace(a),
    "solved": lambda x, y, a, k, i: np.linalg.solve(a, y)
    + np.linalg.norm(x)
    + np.linalg.inv(a) @ y,
    "factors": lambda x, y, a, k, i: np.linalg.cholesky(a @ a.T) + np.linalg.norm(a, axis=1),
    "spread": lambda x, y, a, k, i: np.var(x, axis=0) + np.std(x, ddof=1) + np.mean(x),
    "like": lambda x, y, a, k, i: np.zeros_like(x) + np.ones_like(x) * np.full_like(x, 2.5),
    "rounding": lambda x, y, a, k, i: np.floor(x)
    + np.ceil(x)
    + np.trunc(x)
    + np.rint(x)
    + round(x[0, 0] * 0),
    "converted": lambda x, y, a, k, i: (y * 2).astype(int)
    + k.astype(float)
    + (k > 0).astype(np.int32),
    "along": lambda x, y, a, k, i: np.take_along_axis(x, np.argsort(x, axis=0), 0) + np.take(y, i),
    "negative bits": lambda x, y, a, k, i: (2 << i) + (np.int32(64) >> i),
    "computed on both sides": lambda x, y, a, k, i: np.stack([x, x + 1])[i % 2, :, i].T
    + x[None, i][0, :3]
    + x[1, None, i][:3],
    "computed by others": lambda x, y, a, k, i: x[i.astype(np.int64)]
    + x[:, i.astype(np.uint8)][i.astype(np.uint32), i]
    + a[i[:, None], i],
    "decimals": lambda x, y, a, k, i: np.round(x, 2) + x.round(1) + np.round(100 * x, -1) + round(y[0], 3),
    "rounded to tens": lambda x, y, a, k, i: np.round(k * 5 + np.arange(-20, 20).reshape(-1, 1), -1)
    + np.round(k.astype(np.int64) * 10**15 + 5, -1)
    + np.round(k * np.int32(333333333), -9)
    + np.round(i, -12),
    "inserted into integers": lambda x, y, a, k, i: np.insert(k, 1, [2.7, -2.7]) + np.insert(k, 1, x[0, :2]),
    "few degrees of freedom": lambda x, y, a, k, i: np.stack([np.var(x, ddof=20), np.std(y, ddof=4), np.var(y[:1], ddof=3)]),
    "rounded integers": lambda x, y, a, k, i: np.round(k) + np.floor(k) + np.ceil(i),
    "inverse hyperbolic": lambda x, y, a, k, i: np.arcsinh(x)
    + np.arccosh(1 + y)
    + np.arctanh(x / 3)
    + np.arcsinh(-1e-9 * y) * 1e9,
    "sums of exponents": lambda x, y, a, k, i: np.logaddexp(x, y)
    + np.logaddexp2(x, y)
    + np.logaddexp(y, y)
    + np.logaddexp(x - 50, 0.0) * 1e18,
    "angles": lambda x, y, a, k, i: np.deg2rad(x) + np.degrees(x) + np.radians(y) + np.rad2deg(y),
    "signs": lambda x, y, a, k, i: np.copysign(y, x) + np.heaviside(k, 0.25) + np.sinc(i * x[0]),
    "parts": lambda x, y, a, k, i: np.modf(x)[0] * np.modf(x)[1] + np.ldexp(y, k) + np.float_power(y, 3) + np.log10(y),
    "not a number": lambda x, y, a, k, i: np.isnan(np.log(x)) * 1
    + np.isinf(y / (i - 1)) * 2
    + np.isinf(np.log(x)) * 4
    + np.isnan(k) * 8,
    "without NaN": lambda x, y, a, k, i: np.fmax(np.log(x), 0.0)
    + np.fmin(y, np.log(x))
    + np.nansum(np.log(x), axis=0)
    + np.nan_to_num(np.log(x), nan=3.0, posinf=1.0, neginf=0.0)
    + np.nan_to_num(-y / (i - 1), posinf=7.0, neginf=5.0),
    "near": lambda x, y, a, k, i: np.isclose(x, x + 1e-9) * 1
    + np.isclose(x, x + 1e-3) * 1
    + np.allclose(x, x) * 1
    + np.array_equal(k, k) * 1,
    "selected": lambda x, y, a, k, i: np.select([x > 1, x < 0], [x, y], default=0.5),
    "contracted": lambda x, y, a, k, i: np.einsum("ij,j->i", x, y)[:, None]
    + np.einsum("ij,jk", x, a)
    + np.einsum("ij,kj,k->ji", x, a, y).T
    + np.einsum("ij -> ", x),
    "contracted in batches": lambda x, y, a, k, i: np.einsum("nij,njk->nik", np.stack([a, a.T]), np.stack([a, a]))
    + np.einsum("i,j->ij", y, y)
    + np.einsum("ij,ij->ij", a, a.T)
    + np.einsum("ii", a)
    + np.einsum("ii->i", a)
    + np.einsum("ji", a),
    "contracted integers": lambda x, y, a, k, i: np.einsum("i,i", k, i) + k @ i + np.outer(k, i) @ k,
    "tensors": lambda x, y, a, k, i: np.tensordot(x, a, 1)
    + np.tensordot(x, x, 2)
    + np.tensordot(x, np.stack([a, a]), ([1], [2]))[:, 0]
    + np.tensordot(y, y, 0)[:3],
    "inner": lambda x, y, a, k, i: np.inner(x, a)
    + np.inner(x[:, :1], x[:, :1])[:, :1]
    + np.vdot(x, x)
    + np.dot(y, np.stack([a, a]))[0],
    "dots of stacks": lambda x, y, a, k, i: np.dot(np.stack([a, a.T]), np.stack([a, a])),
    "kronecker": lambda x, y, a, k, i: np.kron(x, a) + np.kron(y, np.stack([y, y, y]))[:, None].sum(),
    "crossed": lambda x, y, a, k, i: np.cross(x[:, :3], y[:3]) + np.cross(x, x[:, ::-1], axis=0)[:, :3],
    "vectors": lambda x, y, a, k, i: np.vecdot(x, y)[:, None] + np.matvec(a, x) + np.vecmat(y, a),
    "convolved": lambda x, y, a, k, i: np.convolve(x[0], y)
    + np.convolve(y, x[0, :2]).sum()
    + np.convolve(y, x[0, :3], "same").sum()
    + np.convolve(x[0, :2], y, "valid").sum(),
    "tiled": lambda x, y, a, k, i: np.tile(x, (2, 1)) + np.tile(y, 2).reshape(2, 4)[0],
    "repeated": lambda x, y, a, k, i: np.repeat(x, 2, axis=0) + np.repeat(y, [1, 0, 2, 1]) + x.repeat(2)[3],
    "padded": lambda x, y, a, k, i: np.pad(x, 1)
    + np.pad(x, ((1, 1), (2, 0)), constant_values=2.5)
    + np.pad(x, 1, "edge")
    + np.pad(x, 1, mode="reflect")
    + np.pad(x, 1, "wrap")
    + np.pad(y, (1, 1), "symmetric"),
    "split": lambda x, y, a, k, i: sum(np.split(y, 2))
    + np.array_split(y, 3)[0]
    + np.hsplit(x, 2)[1][0]
    + np.vsplit(x, [1])[1][0, :2]
    + np.split(x, [1, 3], axis=1)[1][0],
    "columns": lambda x, y, a, k, i: np.column_stack([y, x.T]) + np.dstack([x[:2], x[1:]])[:, :, 0].T @ x[:2],
    "put in": lambda x, y, a, k, i: np.append(y, x[0])[1:5]
    + np.append(x, x, axis=1)[:, 2:6]
    + np.insert(y, 1, 9.0)[:4]
    + np.insert(x, -1, y, axis=0)[1]
    + np.delete(x, [0], axis=0)[1],
    "at least": lambda x, y, a, k, i: np.atleast_2d(y)
    + np.atleast_1d(y[0])
    + np.atleast_3d(x)[:, :, 0]
    + np.broadcast_arrays(x, y)[1],
    "turned": lambda x, y, a, k, i: np.rot90(x).T + np.fliplr(x) + np.flipud(x) + np.matrix_transpose(x).T,
    "diagonals": lambda x, y, a, k, i: np.diagonal(a, 1).sum()
    + x.diagonal()
    + np.diagflat(y[:3], 1)[:3, :3]
    + a.trace()
    + np.trace(x, 1),
    "gradients": lambda x, y, a, k, i: np.gradient(x, 0.5, axis=1)
    + np.gradient(x)[0]
    + np.gradient(y)
    + np.trapezoid(x, dx=0.5)[:, None]
    + np.trapezoid(y, x[0]),
    "gradients in the order of the axes": lambda x, y, a, k, i: np.gradient(x, 0.5, 2.0, axis=(1, 0))[0]
    + np.gradient(x, axis=(-1, 0))[1],
    "running products": lambda x, y, a, k, i: np.cumprod(x, axis=1)
    + x.cumprod()[-1]
    + np.maximum.accumulate(x, axis=1)
    + np.minimum.accumulate(x)
    + np.multiply.accumulate(x),
    "reduced": lambda x, y, a, k, i: np.add.reduce(x)
    + np.maximum.reduce(x, axis=1, keepdims=True)
    + np.multiply.reduce(x, axis=None)
    + np.logical_or.reduce(x > 1.9) * 1
    + np.subtract.outer(y, y)[:3],
    "statistics": lambda x, y, a, k, i: np.median(x, axis=0)
    + np.median(x)
    + np.median(y[:3])
    + np.percentile(x, 30)
    + np.quantile(x, 0.9, axis=0)
    + np.ptp(x, axis=0)
    + np.amax(x, axis=0)
    + np.amin(x)
    + np.average(x, axis=0, weights=[1.0, 2.0, 4.0])
    + np.average(x, weights=x + 3)
    + np.average(y)
    + np.count_nonzero(k)
    + np.count_nonzero(x > 0, axis=0),
    "typed": lambda x, y, a, k, i: np.sum(x > 0, dtype=float)
    + np.zeros_like(k, dtype=float)
    + np.full_like(x, 2, dtype=int)
    + np.mean(k),
    "methods": lambda x, y, a, k, i: x.std(axis=0)
    + x.var(ddof=1)
    + x.copy()
    + x.swapaxes(0, 1).T
    + x.take(i, axis=1)
    + x.take([1])
    + x.std(keepdims=True),
    "taken by bools": lambda x, y, a, k, i: np.take(x, [True, False, True, True], 1) + y.take(True),
    "looked up": lambda x, y, a, k, i: np.searchsorted(np.sort(y), x)
    + np.searchsorted(np.array([0.5, 1.0]), y, side="right")
    + np.interp(x, np.array([-1.5, 0.0, 1.0, 1.6]), y)
    + np.interp(x, [0.5], y[:1]),
    "looked up, NaN": lambda x, y, a, k, i: np.searchsorted(np.sort(y), np.log(x))
    + np.searchsorted(np.sort(np.log(x[0])), np.array([0.1, -5.0, np.inf, 0.0]))
    + np.searchsorted(np.sort(np.log(x[0])), np.log(x), "right")
    + np.searchsorted(k[2:] * 0, np.log(x)),
    "looked up at the points": lambda x, y, a, k, i: np.interp([-1.0, 0.0, 1.0, 2.0], k * 0 + [-1.0, 0.0, 1.0, 2.0], y)
    + np.interp(i - 1.0, [-1.0, 0.0, 1.0], y[:3])
    + np.nan_to_num(np.interp(i - 1.0, [-1.0, 0.0, 1.0], ENDS[:3] * y[:3]), posinf=2, neginf=3),
    "quotients and remainders": lambda x, y, a, k, i: divmod(x, y)[0] * 10
    + divmod(-x, y)[1]
    + divmod(1.0, y)[0]
    + sum(divmod(k, 3))
    + sum(divmod(7, i + 1)),
    "polynomials": lambda x, y, a, k, i: np.polyval([1.0, -2.0, 0.5], x) + np.polyval(y, x),
    "determinants": lambda x, y, a, k, i: np.linalg.det(a[::-1])
    + np.linalg.det(a[:3, 1:])
    + np.linalg.slogdet(-a[:3, :3])[0]
    + np.linalg.slogdet(a[:, ::-1])[1],
    "powers of matrices": lambda x, y, a, k, i: np.linalg.matrix_power(a, 3)
    + np.linalg.matrix_power(a, -2)
    + np.linalg.matrix_power(a, 0)
    + np.linalg.multi_dot([a, x.T, x]),
    "norms": lambda x, y, a, k, i: np.linalg.norm(x, 1, axis=0)
    + np.linalg.norm(y, np.inf)
    + np.linalg.norm(x, ord=-np.inf, axis=1, keepdims=True)
    + np.linalg.norm(x, "fro"),
    "orthogonal": lambda x, y, a, k, i: np.vstack(np.linalg.qr(x.T)) @ x,
    "orthogonal, wide": lambda x, y, a, k, i: np.linalg.qr(x)[0] @ np.linalg.qr(x, mode="r"),
    "orthogonal, complete": lambda x, y, a, k, i: np.linalg.qr(x.T, "complete")[0] + np.linalg.qr(np.tril(a.T))[1],
    "statistics of several axes": lambda x, y, a, k, i: np.median(np.stack([x, 2 * x]), axis=(0, -1))
    + np.quantile(np.stack([x, x + 1]), 0.3, axis=(2, 0))
    + np.percentile(x, 30, axis=(0, 1))
    + np.median(x, keepdims=True)[0],
    "several quantiles": lambda x, y, a, k, i: np.percentile(x, [25, 75, 10], axis=1)[:, :1]
    + np.quantile(y, [[0.1], [0.7], [0.3]])
    + np.quantile(x, np.array([0.5]), axis=0, keepdims=True),
    "statistics of integers": lambda x, y, a, k, i: np.mean(BYTES + 0 * k.astype(np.uint8))
    + np.gradient(BYTES + 0 * k.astype(np.uint8))
    + sum(f(BYTES + 0 * k.astype(np.uint8)) for f in (np.average, np.median, np.var, np.std))
    + np.average(BYTES, weights=BYTES + 0 * k.astype(np.uint8))
    + np.quantile(BYTES + 0 * k.astype(np.uint8), 0.4)
    + np.mean(x > 0, dtype=float)
    + np.std(x > 0),
    "along, known": lambda x, y, a, k, i: np.take_along_axis(x, np.array([[0, 1], [-1, 2], [2, -4]]), 1)
    + np.take_along_axis(x, np.array([[0, -1]]), 1)
    + np.take_along_axis(x, np.array([5, -1]), None),
    "along, by bytes": lambda x, y, a, k, i: np.take_along_axis(
        np.tile(x, 100), i[:3, None].astype(np.uint8) + np.uint8(250), 1
    )
    + np.take_along_axis(x, i[:3, None].astype(np.int64), 1),
    "areas": lambda x, y, a, k, i: np.trapezoid(x, x**2, axis=0)
    + np.trapezoid(x, x**3)[:, None].sum()
    + np.trapezoid(x, y, axis=1).sum()
    + np.trapezoid(y, x)[0],
    "near infinity": lambda x, y, a, k, i: np.isclose(ENDS, (x * 0 + 1)[0] * [np.inf, np.inf, -np.inf, 1.0]) * 1
    + np.allclose(y / (k * 0), np.inf) * 2
    + np.isclose(BYTES + 0 * k.astype(np.uint8), BYTES[::-1]) * 4,
    "infinities": lambda x, y, a, k, i: np.logaddexp(ENDS + 0 * y, [np.inf, np.inf, -np.inf, 3.0])
    + np.logaddexp(np.log(x), 1.0)
    + 2 * np.logaddexp2([-np.inf, 1.0, -np.inf, 2.0], ENDS + 0 * y)
    + np.modf(ENDS * y)[0],
    "far out": lambda x, y, a, k, i: np.arcsinh(1e300 * x)
    + np.arccosh(1e300 * y)
    + np.hypot(1e200 * x, 1e200) / 1e200
    + np.hypot(1e-200 * x, 1e-200) * 1e200
    + np.hypot(k, i),
    "at the ends": lambda x, y, a, k, i: np.nan_to_num(np.arcsinh(ENDS * y), posinf=1, neginf=2)
    + np.nan_to_num(np.arccosh(ENDS * y), nan=5, posinf=1, neginf=2)
    + np.arcsinh(np.log(x)),
    "small determinants": lambda x, y, a, k, i: np.linalg.det(x[:2, :2])
    + np.linalg.det(x[:, 1:])
    + np.linalg.det(a[:1, 1:2])
    + np.linalg.det(a[:0, :0]),
    "whole powers": lambda x, y, a, k, i: x**0 + k**0 + k**2.0 + np.float_power(k, 2) + k**9 + (k**0.0) / 2,
    "rolled along several": lambda x, y, a, k, i: np.roll(x, (1, 2), axis=(0, 1))
    + np.roll(x, (1, 2), axis=1)
    + np.roll(x, 1, axis=(0, 1))
    + np.roll(x, (1, 2)),
    "order of all": lambda x, y, a, k, i: np.sort(x, axis=None) + np.argsort(x, axis=None) + x.argsort(None),
    "order of equals": lambda x, y, a, k, i: np.argsort(k, kind="stable") + 4 * k[np.argsort(k // 3, 0, "mergesort")]
    + np.sort(x, kind="heapsort")[0],
    "taken, outside": lambda x, y, a, k, i: np.take(x, i * 2 - 1, axis=1, mode="clip")
    + np.take(x, [9, -9, -1, 2], axis=1, mode="clip") + np.take(x, [3, -1, 0, 2], 1, mode="raise") + y.take(k, mode="clip"),
    "order of none": lambda x, y, a, k, i: np.sort(y[:0]),
    "shapes by a number": lambda x, y, a, k, i: np.broadcast_to(y[0], 4) + np.tril(y) + np.triu(y, 1),
    "bools": lambda x, y, a, k, i: np.diff(x[0] > 0) * 1 + np.cumsum(x[0] > 0)[1:] + np.tril(x > 0)[2, 1:],
    "order of bools": lambda x, y, a, k, i: np.argmax(x > 0, axis=1) + np.max(x > 1.9, axis=1) * 2 + np.min(x > -1.9)
    + np.sort(x > 0, axis=0)[:, 1] * 4 + np.argsort(x[:, 0] > 0) + np.cumprod(x[:, 1] > 0) * 8,
    "integers in linear algebra": lambda x, y, a, k, i: np.linalg.cholesky(np.diag(i) + np.int32(3) * np.eye(4, dtype=np.int32))
    + np.abs(np.linalg.qr(np.outer(k, i))[1]) + np.nan_to_num(k),
    "other shapes": lambda x, y, a, k, i: np.array_equal(x, x[:2]) * 1 + np.array_equal(x, x + 0) * 2,
    "clipped by new names": lambda x, y, a, k, i: np.clip(x, min=0.5) + np.clip(x, max=0) + x.clip(min=0, max=1),
    "finite integers": lambda x, y, a, k, i: np.isfinite(k) * 1 + np.isnan(i) + np.isinf(k > 0),
    "methods with more": lambda x, y, a, k, i: (x > 0).sum(dtype=float) + x.max(axis=0, keepdims=True) + x.sum(out=None),
    "unpacked": lambda x, y, a, k, i: sum(row * (n + 1) for n, row in enumerate(x)),
}


@pytest.fixture(scope="module")
def observed(client):
    """Every case in one world, as an observable of its own."""

    @sg.world(
        x=sg.State(3, 4),
        y=sg.State(4),
        a=sg.State(4, 4),
        k=sg.State(4, dtype="i32"),
        i=sg.State(4, dtype="i32"),
    )
    def cases(x, y, a, k, i):
        for number, case in enumerate(CASES.values()):
            sg.observe(f"case{number}", case(x, y, a, k, i).astype(float))
        return {}

    r = client.rollout(
        cases,
        steps=1,
        policy="f64",
        initial={"x": X, "y": Y, "a": A, "k": K, "i": I},
        record=[f"case{n}" for n in range(len(CASES))],
    )
    return {name: r.trajectory[f"case{n}"][0, 0] for n, name in enumerate(CASES)}


@pytest.mark.filterwarnings("ignore:Degrees of freedom")
@pytest.mark.parametrize("name", CASES)
def test_it_is_what_numpy_computes(observed, name):
    with np.errstate(all="ignore"):
        expected = np.asarray(CASES[name](X, Y, A, K, I), float)
    assert observed[name].shape == expected.shape
    # Sums and products of at most 16 numbers near 1, in another order than NumPy's.
    np.testing.assert_allclose(observed[name], expected, rtol=1e-12, atol=1e-12)


def test_places_are_written_to_as_numpy_writes(client):
    @sg.world(x=sg.State(3, 4), i=sg.State(4, dtype="i32"))
    def writes(x, i):
        sg.observe("set", x.at[1:, ::2].set([[1.0, 2.0], [3.0, 4.0]]))
        sg.observe("one", x.at[-1, 0].mul(5.0))
        sg.observe("add", x.at[i].add(np.ones((4, 4))))
        sg.observe("outside", x.at[i + 2].add(1.0))
        sg.observe("max", x.at[:, 1].max(0.0))
        sg.observe("pairs", x.at[i, i[::-1]].add([1.0, 2.0, 4.0, 8.0]))
        sg.observe("column", x.at[:, i[0]].set(7.0))
        sg.observe("block", x.at[i[:2, None], i].mul(3.0))
        sg.observe("both", x.at[i[1:3].astype(np.int64), [3, -1]].add(1.0))
        sg.observe("apart", x.reshape(3, 2, 2).at[i, :, i % 2].add(1.0).reshape(3, 4))
        sg.observe("beyond", x.at[i + 1, i - 1].add(1.0))
        sg.observe("parted", x.reshape(3, 2, 2).at[:, [0, 1], ..., [1, 0]].set(np.arange(6.0).reshape(2, 3)).reshape(3, 4))
        return {}

    names = ["set", "one", "add", "outside", "max", "pairs", "column", "block", "both", "apart"]
    names += ["beyond", "parted"]
    r = client.rollout(writes, steps=1, policy="f64", initial={"x": X, "i": I}, record=names)
    expected = {name: X.copy() for name in names}
    expected["set"][1:, ::2] = [[1.0, 2.0], [3.0, 4.0]]
    expected["one"][-1, 0] *= 5
    np.add.at(expected["add"], I, 1.0)
    np.add.at(expected["outside"], [2], 1.0)  # of 4, 2, 3 and 3 the others are dropped
    expected["max"][:, 1] = np.maximum(X[:, 1], 0)
    np.add.at(expected["pairs"], (I, I[::-1]), [1.0, 2.0, 4.0, 8.0])
    expected["column"][:, I[0]] = 7
    np.multiply.at(expected["block"], (I[:2, None], I), 3.0)
    expected["both"][I[1:3], [3, -1]] += 1
    np.add.at(expected["apart"].reshape(3, 2, 2), (I, slice(None), I % 2), 1.0)
    # Of (3, 1), (1, -1), (2, 0) and (2, 0) the first two are dropped, each along another axis.
    np.add.at(expected["beyond"], ([2, 2], [0, 0]), 1.0)
    expected["parted"].reshape(3, 2, 2)[:, [0, 1], ..., [1, 0]] = np.arange(6.0).reshape(2, 3)
    for name in names:
        np.testing.assert_array_equal(r.trajectory[name][0, 0], expected[name], err_msg=name)


def test_gradients_go_through_names_of_numpy(client):
    @sg.world(x=sg.State(3, 4), w=sg.Param(4))
    def step(x, w):
        return np.tanh(x[::-1] * w) + np.sort(x, axis=1)[:, ::-1] @ np.diag(w) / 10

    @step.objective
    def total(x):
        return (x**2).sum()

    def value(w):
        x = X
        for _ in range(3):
            x = np.tanh(x[::-1] * w) + np.sort(x, axis=1)[:, ::-1] @ np.diag(w) / 10
        return (x**2).sum()

    g = client.gradient(
        step, steps=3, policy="f64", initial={"x": X}, params={"w": Y}, objective="total"
    )
    assert g.value == pytest.approx(value(Y), rel=1e-13)
    slopes = [(value(Y + d) - value(Y - d)) / 2e-6 for d in 1e-6 * np.eye(4)]
    np.testing.assert_allclose(g.params["w"], slopes, rtol=1e-7, atol=1e-7)


def composite(a, y, places):
    """Of a [4, 4] and y [4], by functions that are made of several operations."""
    q, r = np.linalg.qr(a[:, :3])
    total = np.sum(q[0] * r[1, 2]) + np.linalg.det(a) / 100 + np.logaddexp(y, Y).sum()
    total = total + np.einsum("ij,kj,k->", a, a, y) / 10 + np.arcsinh(y - Y).sum() + np.median(y)
    return total + np.cumprod(y)[-1] + np.interp(y[0], np.arange(4.0), y) + places


def test_gradients_go_through_what_is_made_of_several_operations(client):
    @sg.world(a=sg.Param(4, 4), y=sg.Param(4), i=sg.State(4, dtype="i32"), x=sg.State())
    def step(a, y, i, x):
        written = (a * 0).at[i, i[::-1]].add(y)
        return {"x": composite(a, y, np.sum(written * a))}

    @step.objective
    def total(x):
        return x * 1.0

    def value(a, y):
        written = np.zeros((4, 4))
        np.add.at(written, (I, I[::-1]), y)
        return composite(a, y, np.sum(written * a))

    given = dict(initial={"x": 0.0, "i": I}, params={"a": A, "y": Y})
    g = client.gradient(step, steps=1, policy="f64", objective="total", **given)
    assert g.value == pytest.approx(value(A, Y), rel=1e-12)
    for name, at in (("a", A), ("y", Y)):
        for direction in np.eye(at.size).reshape(-1, *at.shape):
            by = 1e-6 * direction
            high, low = (
                value(**{"a": A, "y": Y, name: at + e}) for e in (by, -by)
            )
            found = np.sum(g.params[name] * direction)
            assert found == pytest.approx((high - low) / 2e-6, rel=1e-6, abs=1e-8), name


def test_indices_along_an_axis_mean_the_nearest_element_where_they_are_outside(client):
    @sg.world(x=sg.State(3, 4), i=sg.State(3, 1, dtype="i32"), j=sg.State(3, 1, dtype="i64"))
    def step(x, i, j):
        sg.observe("near", np.take_along_axis(x, i, 1))
        sg.observe("far", np.take_along_axis(x, j, 1))
        return {}

    far = [[-5], [9], [2]]
    given = {"x": X, "i": far, "j": np.array(far, np.int64) * 2**33}
    r = client.rollout(step, steps=1, policy="f64", initial=given, record=["near", "far"])
    np.testing.assert_array_equal(r.trajectory["near"][0, 0], X[range(3), [0, 3, 2]][:, None])
    np.testing.assert_array_equal(r.trajectory["far"][0, 0], X[range(3), [0, 3, 3]][:, None])


def test_functions_of_several_operations_stay_in_a_small_format(client):
    far = np.array([1e20, -3e38, 1e-20, 0.5])

    @sg.world(x=sg.State(4))
    def step(x):
        sg.observe("arcsinh", np.arcsinh(x))
        sg.observe("arccosh", np.arccosh(abs(x) + 1))
        sg.observe("hypot", np.hypot(x, x / 2))
        return {}

    names = ["arcsinh", "arccosh", "hypot"]
    r = client.rollout(step, steps=1, policy="f32", initial={"x": far}, record=names)
    expected = [np.arcsinh(far), np.arccosh(abs(far) + 1), np.hypot(far, far / 2)]
    for name, numbers in zip(names, expected):
        # arccosh sees 1 + 1e-20 as 1.
        np.testing.assert_allclose(r.trajectory[name][0, 0], numbers, rtol=3e-7, atol=1e-30, err_msg=name)


def same_bits(ours, theirs):
    """Whether numbers are the same, NaN of any bits."""
    known = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), ~known)
    np.testing.assert_array_equal(ours[known].view(np.int64), theirs[known].view(np.int64))


def elementwise(client, function, *arrays, policy="f64"):
    """What a server makes of `function`, a list of arrays, and the names of the sites that it has."""
    dtypes = {"f": "real", "i": "i32"}

    @sg.world(**{f"x{n}": sg.State(*a.shape, dtype=dtypes[a.dtype.kind]) for n, a in enumerate(arrays)})
    def step(**given):
        made = function(*given.values())
        made = made if isinstance(made, tuple) else (made,)
        for n, x in enumerate(made):
            sg.observe(f"y{n}", x)
        return {}

    names = [e.name for e in step.program.exports]
    given = {f"x{n}": a for n, a in enumerate(arrays)}
    r = client.rollout(step, steps=1, policy=policy, initial=given, record=names)
    return [r.trajectory[name][0, 0] for name in names], [*r.events, *r.sites]


@pytest.mark.parametrize(
    "policy, least, most", [("f64", -307, 308), ("f32", -37, 38), ("bf16_unsafe", -37, 38), ("f16_unsafe", -4, 4)]
)
def test_the_decimal_logarithm_of_a_power_of_ten_is_whole(client, policy, least, most):
    whole = np.arange(least, most + 1)
    powers = np.array([float(f"1e{k}") for k in whole])
    [made], sites = elementwise(client, np.log10, powers, policy=policy)
    np.testing.assert_array_equal(made, whole)
    assert not sites


def test_decimal_logarithms_beside_powers_of_ten_lie_on_their_side(client):
    powers = np.array([float(f"1e{k}") for k in range(-307, 308)])
    rng = np.random.default_rng(3)
    others = 10.0 ** rng.uniform(-300, 300, 1000)
    ends = np.array([0.0, -0.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 3e-310])
    x = np.concatenate([np.nextafter(powers, np.inf), np.nextafter(powers, 0), others, ends])
    [made], _ = elementwise(client, np.log10, x)
    with np.errstate(all="ignore"):
        expected = np.log10(x)
    np.testing.assert_array_equal(np.floor(made)[:615], np.floor(expected)[:615])
    # 1.004 u of log, 0.85 u of the rounded log(10) and u of the quotient are below 3 ulps; NumPy has one more.
    finite = np.isfinite(expected)
    apart = abs(made[finite] - expected[finite])
    assert (apart <= 4 * np.spacing(abs(expected[finite]))).all()
    np.testing.assert_array_equal(made[~finite], expected[~finite])


@pytest.mark.parametrize("policy, dtype, most", [("f64", np.float64, 2200), ("f32", np.float32, 300), ("f16_unsafe", np.float16, 45)])
def test_scaling_by_a_power_of_two_rounds_once_and_leaves_no_format_between(client, policy, dtype, most):
    rng = np.random.default_rng(5)
    x = (rng.normal(size=2000) * 2.0 ** rng.integers(-most // 3, most // 3, 2000)).astype(dtype)
    n = rng.integers(-most, most, 2000).astype(np.int32)
    least, largest = np.nextafter(dtype(0), dtype(1)), np.finfo(dtype).max
    span = int(np.log2(largest.astype(float)) - np.log2(least.astype(float)))
    x[:8] = [0, -0.0, np.inf, -np.inf, np.nan, least, largest, 0]
    n[:8] = [2**31 - 1, -(2**31), -(2**31), 2**31 - 1, 5, span, -span, -most]
    [made], sites = elementwise(client, np.ldexp, x.astype(float), n, policy=policy)
    with np.errstate(over="ignore", under="ignore"):
        expected = np.ldexp(x, n)
    same_bits(made.astype(float), expected.astype(float))
    assert not sites


def test_known_and_wide_exponents_are_held(client):
    x = np.array([1.5, 3.0, 0.0, 2.0])

    def scaled(x, n):
        return np.ldexp(x, [2**40, -5, 2**62, -(2**40)]), np.ldexp(x, n.astype(np.int64) * 2**33), np.ldexp(1.0, n), np.ldexp(x, 3)

    n = np.array([1, 0, -1, -3], np.int32)
    made, _ = elementwise(client, scaled, x, n)
    expected = [[np.inf, 3 / 32, 0, 0], [np.inf, 3, 0, 0], [2, 1, 0.5, 0.125], 8 * x]
    np.testing.assert_array_equal(made, expected)


def test_a_quotient_goes_with_its_remainder_as_in_numpy(client):
    rng = np.random.default_rng(6)
    x = np.concatenate([[1.0, -1.0, 5.0, -5.0, np.inf, np.nan, 3.0, -3.0, 0.0, 1e300], rng.normal(size=2000) * 10.0 ** rng.uniform(-3, 6, 2000)])
    y = np.concatenate([[0.1, 0.1, np.inf, np.inf, 2.0, 2.0, 0.0, 0.0, 0.0, 7.0], rng.normal(size=2000)])
    decimals = np.round(rng.normal(size=(2, 1000)) * 30) / 10
    x, y = np.append(x, decimals[0]), np.append(y, decimals[1])
    # The sign of a zero quotient of a zero is not NumPy's.
    x, y = x[x != 0], y[x != 0]
    [quotient, remainder, other], sites = elementwise(client, lambda x, y: (*divmod(x, y), np.divmod(x, y)[0]), x, y)
    with np.errstate(all="ignore"):
        expected = np.divmod(x, y)
    same_bits(quotient, expected[0])
    same_bits(remainder, expected[1])
    same_bits(other, expected[0])
    assert not sites
    [plain], _ = elementwise(client, lambda x, y: x // y, x[:2], y[:2])
    np.testing.assert_array_equal(plain, [10, -10])


@pytest.mark.parametrize(
    "function, at, slopes",
    [
        (np.arcsinh, [0.0, 1e-20, -3.0, 1e200], [1, 1, 10**-0.5, 1e-200]),
        (np.arccosh, [1.25, 1e200], [4 / 3, 1e-200]),
        (lambda x: np.hypot(x, 2 * x), [1e-170, 3.0, -1e200], [5**0.5, 5**0.5, -(5**0.5)]),
        (lambda x: np.hypot(x, 0.0), [0.0], [0]),
        (lambda x: np.logaddexp(x, x), [-np.inf, 2.0], [1, 1]),
        (lambda x: np.logaddexp2(x, 1.0), [-np.inf, 1.0], [0, 0.5]),
        (lambda x: np.modf(x)[0], [np.inf, 1.5], [0, 1]),
        (np.log10, [10.0, 2.0, 1e-300, 1e300], np.array([0.1, 0.5, 1e300, 1e-300]) / np.log(10)),
        (lambda x: np.ldexp(x, [3, -1000, 900, 2000]), [1.0, 2.0, 0.0, 1e-300], [8, 2.0**-1000, 2.0**900, np.inf]),
        (lambda x: divmod(x, 2.0)[0] + divmod(x, 2.0)[1], [7.0, -7.0], [1, 1]),
        (lambda x: np.interp(x, [-1.0, 0.0, 1.0], [3.0, 1.0, 2.0]), [-2.0, -0.5, 0.0, 0.5, 2.0], [0, -2, 1, 1, 0]),
        # The first place is multiplied by x[0], x[2] = 0 and x[3], the second by x[1].
        (lambda x: np.array([10.0, 1.0]) * np.ones_like(x[:2]).at[[0, 1, 0, 0]].mul(x), [2.0, 7.0, 0.0, 5.0], [0, 1, 100, 0]),
        (lambda x: x.at[[2, 0, 2]].mul([3.0, 4.0, 5.0]), [1.0, 1.0, 1.0], [4, 1, 15]),
        (lambda x: x**0 + x, [0.0, 2.0], [1, 1]),
        (np.linalg.det, np.arange(9.0).reshape(3, 3), [[-3, 6, -3], [6, -12, 6], [-3, 6, -3]]),
        (np.linalg.det, [[1.0, 1.0], [1.0, 1.0]], [[1, -1], [-1, 1]]),
        (np.linalg.det, np.zeros((3, 3)), np.zeros((3, 3))),
    ],
)
def test_gradients_are_those_of_the_function(client, function, at, slopes):
    at = np.asarray(at)

    @sg.world(x=sg.Param(*at.shape), z=sg.State())
    def step(x, z):
        return {"z": np.sum(function(x))}

    @step.objective
    def total(z):
        return z * 1.0

    g = client.gradient(step, steps=1, policy="f64", initial={"z": 0.0}, params={"x": at}, objective="total")
    np.testing.assert_allclose(g.params["x"], slopes, rtol=1e-13, atol=1e-300)


def test_fabs_and_rint_of_integers_are_reals(client):
    """As in NumPy; floor, ceil and trunc keep integers there too."""

    @sg.world
    def squares(n: sg.State(2, dtype="i32"), c: sg.State(2, dtype="u8"), y: sg.State[2], z: sg.State[2]):
        return {"n": n, "c": c, "y": np.fabs(n) * np.fabs(n), "z": np.rint(c) * 2}

    start = {"n": np.array([100_000, -3], np.int32), "c": np.array([200, 7], np.uint8), "y": np.zeros(2), "z": np.zeros(2)}
    out = client.rollout(squares, steps=1, initial=start, policy="f64")
    assert out.state["y"][0].tolist() == [1e10, 9.0] and out.state["z"][0].tolist() == [400.0, 14.0]
