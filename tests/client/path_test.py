"""Paths as arrays: where two of them part, without a server."""

import numpy as np
import pytest

import simgrad as sg
from simgrad.path import Column, _first, _first_in_order

# A test, then a loop with a test in each of three turns, then a number.
LAYOUT = [
    Column("top", "test", "bool", (2,), 0, 0, (-1,)),
    Column("loop", "count", "int32", (), 1, 1, ()),
    Column("inside", "test", "bool", (3,), 2, 0, (1,)),
    Column("best", "choice", "int32", (), 2, 2, ()),
]


def path(*instances):
    """One step of each: top, iterations, inside, best."""
    packed = np.zeros((len(instances), 1, 4), np.uint8)
    for n, (top, count, inside, best) in enumerate(instances):
        packed[n, 0, 0] = np.packbits([*top, *inside], bitorder="little")[0]
        packed[n, 0, 1] = count
        packed[n, 0, 2:] = np.frombuffer(np.uint16(best).tobytes(), np.uint8)
    return sg.Path("s", LAYOUT, packed)


def test_columns_are_the_decisions():
    p = path(((1, 0), 2, (1, 1, 0), 700), ((0, 1), 0, (0, 0, 0), 3))
    assert p["top"].tolist() == [[[True, False]], [[False, True]]]
    assert p["loop"].tolist() == [[2], [0]] and p["loop"].dtype == np.int32
    assert p["inside"].tolist() == [[[True, True, False]], [[False] * 3]]
    assert p["best"].tolist() == [[700], [3]]
    assert (len(p), p.instances, p.steps, p.nbytes) == (4, 2, 1, 8)
    with pytest.raises(KeyError, match="no site 'rest' in the path"):
        p["rest"]


def test_paths_part_where_the_run_first_decided_otherwise():
    same = ((1, 0), 2, (1, 0, 0), 5)
    others = [
        (same, "", ()),
        (((1, 1), 3, (0, 0, 1), 5), "top", (1,)),
        (((1, 0), 3, (0, 0, 1), 5), "inside", (0,)),  # in turn 0; the loop ended in turn 2
        (((1, 0), 3, (1, 0, 1), 5), "loop", ()),  # its third turn is in one of them alone
        (((1, 0), 1, (1, 1, 0), 6), "loop", ()),
        (((1, 0), 2, (1, 0, 0), 6), "best", ()),
    ]
    mine = path(*[same] * len(others))
    parted = mine.first_difference(path(*[other for other, _, _ in others]))
    assert parted.step.tolist() == [-1, 0, 0, 0, 0, 0]
    assert list(zip(parted.site, parted.index)) == [(site, index) for _, site, index in others]


def test_a_loop_that_runs_backwards_parts_at_its_last_element():
    """A decision of each turn, then in each turn a loop of two more, forwards; the outer loop runs down."""
    layout = [
        Column("cause", "test", "bool", (3,), 0, 0, (-2,)),
        Column("inner", "test", "bool", (3, 2), 3, 0, (-2, 1)),
    ]

    def packed(cause, inner):
        return np.packbits([*cause, *np.ravel(inner)], bitorder="little").reshape(1, 1, 2)

    none = ((0, 0, 0), [(0, 0)] * 3)
    others = [
        (((1, 0, 1), [(0, 0)] * 3), "cause", (2,)),
        (((1, 0, 0), [(0, 0), (1, 1), (0, 0)]), "inner", (1, 0)),
        (((0, 1, 0), [(0, 0), (1, 1), (0, 0)]), "cause", (1,)),
        (((0, 0, 0), [(1, 1), (0, 0), (0, 1)]), "inner", (2, 1)),
    ]
    for other, site, index in others:
        parted = sg.Path("s", layout, packed(*none)).first_difference(sg.Path("s", layout, packed(*other)))
        assert (parted.site, parted.index) == ([site], [index])
    # A path that was saved before layouts marked such loops.
    old = [Column(c.site, c.kind, c.dtype, c.shape, c.first, c.width, (0, *c.loops[1:])) for c in layout]
    saved, now = sg.Path("s", old, packed(*none)), sg.Path("s", layout, packed(*others[0][0]))
    for one, other in ((saved, now), (now, saved)):
        assert one.first_difference(other).index == [(2,)]


def test_the_step_is_the_first_that_differs():
    random = np.random.default_rng(1)
    packed = random.integers(0, 4, (50, 6, 4), np.uint8)
    changed = np.where(random.random(packed.shape) < 0.03, packed ^ 1, packed)
    expected = [next((t for t in range(6) if (a[t] != b[t]).any()), -1) for a, b in zip(packed, changed)]
    assert {-1, 0, 5} < {*expected}
    mine, others = (sg.Path("s", LAYOUT, x) for x in (packed, changed))
    assert mine.first_difference(others).step.tolist() == expected
    for nothing in ((0, 6, 4), (3, 0, 4)):
        empty = sg.Path("s", LAYOUT, np.zeros(nothing, np.uint8))
        assert empty.first_difference(empty).step.tolist() == [-1] * nothing[0]


def test_many_instances_part_where_each_of_them_does():
    """Without decisions in the turns of loops they are looked at together."""
    random, compared = np.random.default_rng(0), 0
    for _ in range(100):
        layout, mine, others = [], [], []
        for k, kind in enumerate(random.choice(["test", "count", "choice"], random.integers(1, 5))):
            shape = [(), (3,), (2, 2), (0,)][random.integers(4)]
            layout.append(Column(f"s{k}", kind, "bool" if kind == "test" else "int32", shape, 0, 0, (-1,) * len(shape)))
            mine.append(random.integers(0, 2 if kind == "test" else 4, (20, *shape)))
            others.append(np.where(random.random(mine[k].shape) < 0.8, mine[k], (mine[k] + 1) % 3))
        parted = [n for n in range(20) if any((a[n] != b[n]).any() for a, b in zip(mine, others))]
        mine, others = ([column[parted] for column in side] for side in (mine, others))
        each = [_first(layout, [a[k] for a in mine], [b[k] for b in others]) for k in range(len(parted))]
        assert _first_in_order(layout, mine, others) == each
        compared += len(parted)
    assert compared > 1000
    assert _first_in_order(layout, *([column[:0] for column in side] for side in (mine, others))) == []
    assert _first_in_order([], [], []) == []  # a world without tests


def test_paths_of_other_structures_do_not_compare():
    mine = path(((1, 0), 2, (1, 0, 0), 5))
    other = sg.Path("t", LAYOUT, np.zeros((1, 1, 4), np.uint8))
    assert mine != other
    with pytest.raises(ValueError, match="different structures"):
        mine.first_difference(other)


def test_instances_are_taken_by_index_or_by_mask():
    p = path(*(((0, 0), n, (0, 0, 0), n) for n in range(4)))
    mask = np.array([True, False, True, False])
    for chosen, expected in ((mask, [0, 2]), (mask.tolist(), [0, 2]), ([3, 0], [3, 0]), ((n for n in (1, 1)), [1, 1]), ([], [])):
        assert p.take(chosen)["best"][:, 0].tolist() == expected
    for wrong in ([0.9, 1.7], [[0, 1]], ["0"]):
        with pytest.raises(TypeError, match="indices or a mask of bools"):
            p.take(wrong)
    with pytest.raises(IndexError):
        p.take(mask[:3])
