"""NumPy's operators, indexing and functions mean on a server what they mean in NumPy."""

import numpy as np
import pytest

import simgrad as sg

X = np.random.default_rng(7).uniform(-2, 2, (3, 4))
Y = np.random.default_rng(8).uniform(0.5, 3, (4,))
A = np.random.default_rng(9).uniform(-1, 1, (4, 4)) + 4 * np.eye(4)
K = np.array([2, 0, 2, -1], np.int32)
I = np.array([2, 0, 1, 1], np.int32)

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


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_numpy_computes(observed, name):
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
        return {}

    names = ["set", "one", "add", "outside", "max"]
    r = client.rollout(writes, steps=1, policy="f64", initial={"x": X, "i": I}, record=names)
    expected = {name: X.copy() for name in names}
    expected["set"][1:, ::2] = [[1.0, 2.0], [3.0, 4.0]]
    expected["one"][-1, 0] *= 5
    np.add.at(expected["add"], I, 1.0)
    np.add.at(expected["outside"], [2], 1.0)  # of 4, 2, 3 and 3 the others are dropped
    expected["max"][:, 1] = np.maximum(X[:, 1], 0)
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
