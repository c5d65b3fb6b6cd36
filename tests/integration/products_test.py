"""How matmul adds its products and reads its operands, against NumPy."""

import math

import numpy as np
import pytest
from orders_test import in_order, permutation

import simgrad as sg

M, K, N = 37, 41, 3
ORDERS = ("sequential", "reversed", "pairwise", "compensated", "exact", "shuffled(7)")


def tree(numbers):
    while len(numbers) > 1:
        pairs = [a + b for a, b in zip(numbers[::2], numbers[1::2])]
        numbers = pairs + list(numbers[len(pairs) * 2 :])
    return numbers[0]


def compensated(numbers):
    """Neumaier's sum, rounded to f32 after every operation."""
    total = correction = np.float32(0)
    for x in numbers:
        next_total = total + x
        larger, smaller = (total, x) if abs(total) >= abs(x) else (x, total)
        correction = correction + ((larger - next_total) + smaller)
        total = next_total
    return total + correction


def added(numbers, order):
    """The sum of f32 numbers in an order of the specification."""
    if order == "sequential":
        return in_order(numbers)
    if order == "reversed":
        return in_order(numbers[::-1])
    if order == "pairwise":
        return tree(numbers)
    if order == "compensated":
        return compensated(numbers)
    if order == "exact":
        return np.float32(math.fsum(map(float, numbers)))
    return in_order(numbers[permutation(7, len(numbers))])


def product(a, b, order):
    """a @ b of f32 matrices: each product rounded, then added in an order."""
    return np.array([[added(row * column, order) for column in b.T] for row in a])


def in_bf16(x):
    """x of f32 rounded to bf16, ties to even; no NaN, no overflow."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    up = 0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)


@sg.world
def multiplied(x: sg.State(M, K), y: sg.State(M, N), w: sg.Param(K, N), c: sg.Param(M, N)):
    with sg.role("network"):
        product = x @ w
    return {"x": x, "y": product}


@multiplied.objective
def total(y, c):
    return np.sum(y * c)


RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(M, K)).astype(np.float32)
W = RANDOM.normal(size=(K, N)).astype(np.float32)
C = RANDOM.normal(size=(M, N)).astype(np.float32)


def run(client, policy, **options):
    initial = {"x": X[None], "y": np.zeros((1, M, N))}
    params = {"w": W, "c": C}
    return client.rollout(
        multiplied, steps=1, initial=initial, params=params, policy=policy, **options
    )


def differentiate(client, policy):
    """The gradient by w: x^T c, one matmul of role `adjoint`."""
    initial = {"x": X[None], "y": np.zeros((1, M, N))}
    g = client.gradient(
        multiplied,
        steps=1,
        initial=initial,
        params={"w": W, "c": C},
        policy=policy,
        objective="total",
        wrt=["w"],
    )
    return g.params["w"], g


@pytest.mark.parametrize("order", ORDERS)
def test_products_are_added_in_the_order_of_the_role(client, order):
    policy = sg.Policy("f32").role("network", products=order)
    r = run(client, policy)
    np.testing.assert_array_equal(r.state["y"][0], product(X, W, order))
    assert r.program.text.count("matmul") == 1
    assert f" products={order} accumulator=f32" in r.program.text
    assert r.program.policy.roles["network"].products == order
    assert r.program.policy.roles["adjoint"].products == "fma_chain"


@pytest.mark.parametrize("order", ORDERS)
def test_a_narrow_network_adds_products_of_its_accumulator(client, order):
    """Operands in bf16; products and sums in f32; the total is rounded to bf16."""
    policy = sg.Policy("f32").role("network", format="bf16", products=order)
    expected = in_bf16(product(in_bf16(X), in_bf16(W), order))
    np.testing.assert_array_equal(run(client, policy).state["y"][0], expected)


@pytest.mark.parametrize("order", ORDERS)
def test_matmuls_of_the_adjoint_go_by_its_role(client, order):
    plain, _ = differentiate(client, "f32")
    of_network, _ = differentiate(client, sg.Policy("f32").role("network", products=order))
    np.testing.assert_array_equal(of_network, plain)
    of_adjoint, g = differentiate(client, sg.Policy("f32").role("adjoint", products=order))
    np.testing.assert_array_equal(of_adjoint, product(X.T.copy(), C, order))
    assert (of_adjoint != plain).any()
    # In the adjoint of the last step, and in that of those before.
    assert g.program.text.count(f"products={order}") == 2


def test_no_order_of_sums_applies_to_products(client):
    """Each link of the chain is one fma: exact in f64, as products have 48 bits, then rounded."""
    sums = np.zeros((M, N), np.float32)
    for k in range(K):
        exact = sums.astype(np.float64) + np.float64(X[:, k, None]) * np.float64(W[k])
        sums = exact.astype(np.float32)
    programs = set()
    for policy in (
        sg.Policy("f32"),
        sg.Policy("f32").role("network", order="reversed"),
        sg.Policy("f32").role("network", products="fma_chain"),
    ):
        r = run(client, policy)
        np.testing.assert_allclose(r.state["y"][0], sums, rtol=0, atol=2e-6)
        programs.add((r.program.fingerprint, r.state["y"].tobytes()))
        assert "products" not in r.program.text
    assert len(programs) == 1


def test_products_that_mean_nothing_are_refused(client):
    with pytest.raises(sg.InvalidArgument, match="one of fma_chain, sequential") as error:
        run(client, sg.Policy("f32").role("network", products="tree"))
    assert error.value.field == "spec.policy.roles[0].setting.products"
    with pytest.raises(sg.InvalidArgument, match="no matmul has role 'tape'") as error:
        run(client, sg.Policy("f32").role("tape", products="pairwise"))
    assert error.value.field == "spec.policy.roles[0].setting.products"


def in_tf32(x, rounding):
    """x of f32 rounded to 11 bits of precision at exponents down to 2^-136: by integers of Python."""
    results = []
    for bits in np.asarray(x, np.float32).ravel().view(np.uint32).tolist():
        magnitude = bits & 0x7FFFFFFF
        if magnitude > 0x7F800000:
            results.append(0x7FC00000)
            continue
        kept, rest = divmod(magnitude, 1 << 13)
        if rounding == "nearest_even":
            kept += rest > 1 << 12 or (rest == 1 << 12 and kept % 2 == 1)
        elif rounding == "nearest_away":
            kept += rest >= 1 << 12
        results.append((bits & 0x80000000) | kept << 13)
    return np.array(results, np.uint32).view(np.float32).reshape(np.shape(x))


def special():
    """Random bits, ties and their neighbours, subnormal numbers, the edges of the range, Inf and NaN."""
    bits = list(RANDOM.integers(0, 2**32, 200, dtype=np.uint32))
    for exponent in (0, 1, 100, 127, 253, 254):
        for significand in (0x1000, 0x3000, 0x7FE000, 0x7FF000):
            tie = exponent << 23 | significand
            bits += [tie - 1, tie, tie + 1, 0x80000000 | tie]
    bits += [0, 1, 0x80000000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000]
    return np.array(bits, np.uint32).view(np.float32)


ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero")


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_operands_are_rounded_as_the_policy_says(client, rounding):
    """Times 1, on either side: the sum is what was read, with +0 for -0."""
    x = special()
    n = x.size

    @sg.world
    def alone(x: sg.State(n), left: sg.State(n), right: sg.State(n)):
        with sg.role("network"):
            one = np.ones((1, 1))
            left = np.reshape(np.reshape(x, (n, 1)) @ one, (n,))
            right = np.reshape(one @ np.reshape(x, (1, n)), (n,))
        return {"x": x, "left": left, "right": right}

    zeros = np.zeros((1, n))
    r = client.rollout(
        alone,
        steps=1,
        initial={"x": x[None], "left": zeros, "right": zeros},
        policy=sg.Policy("f32").role("network", format="tf32", rounding=rounding),
    )
    expected = in_tf32(x, rounding) + np.float32(0)
    for side in ("left", "right"):
        np.testing.assert_array_equal(r.state[side][0].astype(np.float32), expected)
    np.testing.assert_array_equal(r.state["x"][0], x)
    assert f" inputs=tf32 {rounding} accumulator=f32" in r.program.text
    ran = r.program.policy.roles["network"]
    assert (ran.format, ran.rounding, ran.accumulator) == ("tf32", rounding, "f32")
    assert ran.execution == "emulated"


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_chain_of_tf32_operands_rounds_nothing_else(client, rounding):
    """Products have 22 bits and lie between 2^-2 and 2^2, so f64 holds each sum exactly."""
    x = (RANDOM.uniform(0.5, 2, (M, K)) * RANDOM.choice([-1, 1], (M, K))).astype(np.float32)
    w = (RANDOM.uniform(0.5, 2, (K, N)) * RANDOM.choice([-1, 1], (K, N))).astype(np.float32)
    sums = np.zeros((M, N), np.float32)
    a, b = (in_tf32(v, rounding).astype(np.float64) for v in (x, w))
    for k in range(K):
        sums = (sums + a[:, k, None] * b[k]).astype(np.float32)
    policy = sg.Policy("f32").role("network", format="tf32", rounding=rounding)
    r = client.rollout(
        multiplied,
        steps=1,
        initial={"x": x[None], "y": np.zeros((1, M, N))},
        params={"w": w, "c": C},
        policy=policy,
    )
    np.testing.assert_array_equal(r.state["y"][0], sums)


def test_tf32_and_an_order_go_together(client):
    policy = sg.Policy("f32").role("network", format="tf32", products="pairwise")
    expected = product(in_tf32(X, "nearest_even"), in_tf32(W, "nearest_even"), "pairwise")
    np.testing.assert_array_equal(run(client, policy).state["y"][0], expected)


def test_the_adjoint_reads_tf32_where_its_role_says_so(client):
    plain, _ = differentiate(client, "f32")
    of_network, g = differentiate(client, sg.Policy("f32").role("network", format="tf32"))
    np.testing.assert_array_equal(of_network, plain)
    assert g.program.text.count("inputs=tf32") == 1
    both = sg.Policy("f32").role("network", format="tf32").role("adjoint", format="tf32")
    of_both, g = differentiate(client, both)
    assert g.program.text.count("inputs=tf32 nearest_even") == 3
    ordered, _ = differentiate(client, both.role("adjoint", products="sequential"))
    read = in_tf32(X.T, "nearest_even"), in_tf32(C, "nearest_even")
    np.testing.assert_array_equal(ordered, product(*read, "sequential"))
    np.testing.assert_allclose(of_both, ordered, rtol=1e-5, atol=1e-5)
    assert (of_both != plain).any()


def test_tf32_is_refused_where_nothing_is_read_as_it(client):
    for role in ("state", "termination", "tape"):
        with pytest.raises(sg.InvalidArgument, match="no format of values") as error:
            run(client, sg.Policy("f32").role(role, format="tf32"))
        assert error.value.field == "spec.policy.roles[0].setting.format"
    with pytest.raises(sg.InvalidArgument, match="not stochastic") as error:
        run(client, sg.Policy("f32").role("network", format="tf32", rounding="stochastic"))
    assert error.value.field == "spec.policy.roles[0].setting.rounding"


def test_what_is_wrong_with_a_role_is_said_in_its_own_words(client):
    in_tf32_with_a_scale = sg.Policy("f32").role("network", format="tf32", scale="amax")
    with pytest.raises(sg.InvalidArgument, match="role 'network' is in tf32, which needs no scale"):
        run(client, in_tf32_with_a_scale)
    # What is listed may be had: no accumulator is in e4m3 or tf32.
    for accumulator in ("tf32", "e3m4"):
        with pytest.raises(sg.InvalidArgument, match=r"one of f64, f32, bf16, f16$"):
            run(client, sg.Policy("f32").role("network", accumulator=accumulator))
