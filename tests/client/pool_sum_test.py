"""Sums of several servers are those of one: rounding, trees, nodes of any cut."""

from fractions import Fraction

import numpy as np
import pytest

from simgrad.pool.aligned_sum import (
    BLOCK_BITS,
    FORMATS,
    Node,
    cover,
    merged,
    multiply,
    pairwise,
    round_to,
    whole_blocks,
)
from simgrad.pool.merge_gradient import encoded


def numbers_of(format):
    """Every finite number of a format of 16 bits, as f64, without -0, ascending."""
    bits = np.arange(1 << 16, dtype=np.uint32)
    if format == "f16":
        values = bits.astype(np.uint16).view(np.float16)
    else:
        values = (bits << 16).view(np.float32)
    return np.unique(values[np.isfinite(values)].astype(np.float64))


def exact_round(format, x):
    """The rule of docs/numerics.md section 1, in rational numbers."""
    if x == 0 or not np.isfinite(x):
        return x
    traits, exact = FORMATS[format], Fraction(float(x))
    exponent = int(np.floor(np.log2(abs(float(x)))))
    exponent += 1 if abs(exact) >= Fraction(2) ** (exponent + 1) else 0
    exponent -= 1 if abs(exact) < Fraction(2) ** exponent else 0
    quantum = Fraction(2) ** max(exponent - traits.precision + 1, traits.emin)
    rounded = round(exact / quantum) * quantum  # half to even
    if abs(rounded) > traits.largest:
        return np.copysign(np.inf, x)
    return np.copysign(float(rounded), x)


@pytest.mark.parametrize("format", ["bf16", "f16"])
def test_numbers_of_a_format_stay_and_halfway_goes_to_the_even_one(format):
    numbers = numbers_of(format)
    assert (round_to(format, numbers) == numbers).all()
    middle = (numbers[1:] + numbers[:-1]) / 2  # exact in f64
    lower, upper = round_to(format, np.nextafter(middle, -np.inf)), round_to(format, np.nextafter(middle, np.inf))
    assert (lower == numbers[:-1]).all() and (upper == numbers[1:]).all()
    even = np.array([n if int(encoded_bits(format, n)) % 2 == 0 else m for n, m in zip(numbers[:-1:97], numbers[1::97])])
    assert (round_to(format, middle[::97]) == even).all()


def encoded_bits(format, number):
    return np.frombuffer(encoded(format, np.array([abs(number)])), "<u2")[0]


@pytest.mark.parametrize("format", ["f32", "bf16", "f16"])
def test_rounding_is_that_of_rational_numbers(format):
    random = np.random.default_rng(3)
    lowest = FORMATS[format].emin - 2
    x = random.normal(size=3000) * 2.0 ** random.uniform(lowest, np.log2(FORMATS[format].largest) + 1, 3000)
    assert (round_to(format, x) == [exact_round(format, v) for v in x]).all()


@pytest.mark.parametrize(
    "format, x, rounded",
    [
        # docs/numerics.md section 1
        ("f16", 65519.99, 65504.0),
        ("f16", 65520.0, np.inf),
        ("bf16", 3.396e38, 3.38953e38),
        ("bf16", -3.3962e38, -np.inf),
        ("f16", 1e-7, 1.1920929e-07),
        ("f32", 1e39, np.inf),
        ("f16", -1e-9, -0.0),
    ],
)
def test_the_edges_of_formats(format, x, rounded):
    found = round_to(format, np.array([x]))[0]
    assert found == pytest.approx(rounded, rel=1e-6) and np.signbit(found) == np.signbit(rounded)


def test_nan_is_the_canonical_one():
    for format in FORMATS:
        odd = np.array([0xFFF8000000000123], np.uint64).view(np.float64)
        assert round_to(format, odd).view(np.uint64)[0] == 0x7FF8000000000000
    assert multiply("f32", np.array([np.inf]), np.array([0.0])).view(np.uint64)[0] == 0x7FF8 << 48


def tree(format, leaves, level=64, index=0):
    """The sum of {id: value} below a node, as the definition says; None without a leaf."""
    if not leaves:
        return None
    if level == 0:
        return leaves[index]
    middle = (2 * index + 1) << (level - 1)
    left = tree(format, {i: v for i, v in leaves.items() if i < middle}, level - 1, 2 * index)
    right = tree(format, {i: v for i, v in leaves.items() if i >= middle}, level - 1, 2 * index + 1)
    if left is None or right is None:
        return left if right is None else right
    return round_to(format, np.array(left + right))[()]


def ids_of(kind, random):
    if kind == "dense":
        return np.arange(1000, 1300, dtype=np.uint64)
    if kind == "last":
        return np.uint64(2**64 - 300) + np.arange(300, dtype=np.uint64)
    return np.unique(random.integers(0, 2**64, 300, np.uint64))


@pytest.mark.parametrize("kind", ["dense", "sparse", "last"])
@pytest.mark.parametrize("format", ["f64", "f32", "bf16", "f16"])
def test_nodes_of_any_cut_merge_to_the_bits_of_one_sum(format, kind):
    random = np.random.default_rng(7)
    ids = ids_of(kind, random)
    values = round_to(format, random.normal(size=len(ids)) * 8)
    whole = tree(format, dict(zip(ids.tolist(), values)))
    assert pairwise(ids, values[:, None], format)[0] == whole
    leaves = [Node(0, int(i), np.array([v])) for i, v in zip(ids, values)]
    for _ in range(5):
        places = [0, *np.sort(random.integers(0, len(ids), 3)).tolist(), len(ids)]
        nodes = []
        for begin, end in zip(places, places[1:]):
            if begin < end:
                nodes += cover(leaves[begin:end], int(ids[begin]), int(ids[end - 1]), format)
        random.shuffle(nodes)
        assert merged(nodes, format, 1)[0] == whole
        again = cover(nodes, int(ids[0]), int(ids[-1]), format)
        of_one = cover(leaves, int(ids[0]), int(ids[-1]), format)
        assert [(n.level, n.index, n.values.tolist()) for n in again] == [
            (n.level, n.index, n.values.tolist()) for n in of_one
        ]


@pytest.mark.parametrize("format", ["f64", "f32", "bf16", "f16"])
def test_nodes_of_blocks_of_any_cut_merge_to_the_tree_over_blocks(format):
    """Nodes of weights: no level is below 8, and a block may have no node."""
    random = np.random.default_rng(11)
    numbers = np.unique(random.integers(0, 2**56, 40, np.uint64) >> random.integers(0, 52, 40, np.uint64))
    values = round_to(format, random.normal(size=len(numbers)) * 8)
    whole = tree(format, dict(zip(numbers.tolist(), values)), level=64 - BLOCK_BITS)
    blocks = [Node(BLOCK_BITS, int(n), np.array([v])) for n, v in zip(numbers, values)]
    assert merged(blocks, format, 1)[0] == whole
    ends = whole_blocks(blocks[0].first_id + 17, blocks[-1].first_id + 200)
    of_one = cover(blocks, *ends, format)
    for _ in range(5):
        places = [0, *np.sort(random.integers(0, len(blocks), 3)).tolist(), len(blocks)]
        nodes = []
        for begin, end in zip(places, places[1:]):
            if begin < end:
                ids = blocks[begin].first_id + 100, blocks[end - 1].first_id + 100
                nodes += cover(blocks[begin:end], *whole_blocks(*ids), format)
        assert min(n.level for n in nodes) >= BLOCK_BITS
        random.shuffle(nodes)
        assert merged(nodes, format, 1)[0] == whole
        assert [(n.level, n.index, n.values.tolist()) for n in cover(nodes, *ends, format)] == [
            (n.level, n.index, n.values.tolist()) for n in of_one
        ]


def test_whole_blocks_hold_their_ids():
    assert whole_blocks(0, 0) == (0, 255) and whole_blocks(256, 611) == (256, 767)
    assert whole_blocks(300, 2**64 - 1) == (256, 2**64 - 1)


def test_the_order_of_additions_is_seen():
    """1 and 2^-24 twice: sequential sums stay at 1, the tree of f32 does not."""
    ids, values = np.array([0, 2, 3], np.uint64), np.array([1.0, 2.0**-24, 2.0**-24])
    assert pairwise(ids, values[:, None], "f32")[0] == 1 + 2.0**-23
    assert pairwise(np.array([0, 1, 2], np.uint64), values[:, None], "f32")[0] == 1.0


def test_the_sum_of_nothing_is_zero():
    assert merged([], "f32", 3).tolist() == [0, 0, 0]
    assert pairwise(np.zeros(0, np.uint64), np.zeros((0, 2)), "f16").tolist() == [0, 0]


@pytest.mark.parametrize("format", ["bf16", "f16"])
def test_numbers_travel_by_their_bits(format):
    numbers = numbers_of(format)
    bits = np.frombuffer(encoded(format, numbers), "<u2")
    widened = bits.view(np.float16) if format == "f16" else (bits.astype("<u4") << 16).view("<f4")
    assert (widened.astype(np.float64) == numbers).all()
