"""A list of the pairs of particles that may interact, made anew only when a particle has moved far.

A list holds the pairs nearer than cutoff + skin. While no particle is farther than skin/2 from where it
was when the list was made, no pair without an entry is within the cutoff: two particles come closer by
at most skin. Then the forces are those of all pairs, added in the same order.

Sites: `rebuild`, of the largest squared move against skin^2/4; `listed`, of pairs when a list is made;
`overflow`, of the pairs that are too many for the list against 1/2. Where `overflow` holds, forces are
missing: take a larger capacity than the most of state `near`. In margins of the cutoff a pair that is
not listed counts as at twice the cutoff.

Cost: a comparison per pair and step, and all distances when a list is made; else `capacity` pairs.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

import simgrad.functions as sgf
from simgrad.world_function import State
from simgrad.worlds.arguments import whole


class AllPairs:
    """Every pair once, as numbers that are known."""

    def __init__(self, particles: int, box: float | None):
        self.particles, self._box = particles, box
        self.first, self.second = np.triu_indices(particles, 1)

    def between(self, x: Any, first: Any, second: Any) -> tuple[Any, Any]:
        """Vectors from the second to the first, and squared distances."""
        d = x[first] - x[second]
        if self._box is not None:
            d = d - self._box * np.rint(d / self._box)  # of the nearest image
        return d, np.sum(d * d, axis=1)

    def separations(self, x: Any) -> tuple[Any, Any]:
        return self.between(x, self.first, self.second)

    def tested(self, q: Any, test: Callable[[Any], Any]) -> Any:
        """test(q), which has one decision per pair."""
        return test(q)

    # The methods that VerletList has too:

    def states(self, dimensions: int) -> dict[str, State]:
        return {}

    def build(self, x: Any) -> dict[str, Any]:
        return {}

    def follow(self, x: Any, states: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        return {}, self


class ListedPairs:
    """Those of a list: numbers of pairs, the number behind the last where nothing is."""

    def __init__(self, pairs: Any, every: AllPairs, far: float):
        self._pairs, self._every, self._far = pairs, every, far
        self._is_one = pairs < np.int32(len(every.first))
        none = np.array([every.particles])  # reads any particle, and writes to none
        ends = [np.concatenate([e, none]).astype(np.int32) for e in (every.first, every.second)]
        self.first, self.second = (sgf.builder(pairs).value(e)[pairs] for e in ends)

    def separations(self, x: Any) -> tuple[Any, Any]:
        d, q = self._every.between(x, self.first, self.second)
        return d, sgf.where(self._is_one, q, self._far)

    def tested(self, q: Any, test: Callable[[Any], Any]) -> Any:
        """As of all pairs, so that a pair is one decision wherever it stands."""
        unlisted = sgf.builder(q).value(np.full(len(self._every.first), self._far))
        return test(unlisted.at[self._pairs].set(sgf.stop_gradient(q)))[self._pairs] & self._is_one


class VerletList:
    """States `pairs`, `built` (positions when they were found) and `near` (how many belong there)."""

    def __init__(self, every: AllPairs, cutoff: float, skin: float, capacity: int | None):
        if skin < 0:
            raise ValueError(f"skin {skin}: not below 0")
        self._every, self._cutoff, self._skin = every, cutoff, skin
        self._capacity = len(every.first) if capacity is None else capacity
        whole(0, capacity=self._capacity)

    def states(self, dimensions: int) -> dict[str, State]:
        return {
            "pairs": State(self._capacity, dtype="i32", default=0),
            "built": State(self._every.particles, dimensions, default=0.0),
            "near": State(dtype="i32", default=0),
        }

    def build(self, x: Any, test: Callable[..., Any] = lambda s, held, k: held) -> dict[str, Any]:
        """The list for particles at x, in the order of all pairs."""
        x = sgf.stop_gradient(x)
        _, q = self._every.separations(x)
        near = test("listed", q < (self._cutoff + self._skin) ** 2, "guard")
        count, number = np.cumsum(near.astype("i32")), np.arange(q.size, dtype=np.int32)
        place = sgf.where(near, count - np.int32(1), np.int32(self._capacity))
        empty = sgf.builder(x).value(np.full(self._capacity, q.size, np.int32))
        return {"pairs": empty.at[place].set(number), "built": x, "near": near.astype("i32").sum()}

    def follow(self, x: Any, states: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """The states after this step, with a new list where a particle moved more than skin/2, and its pairs."""
        moved = np.max(np.sum(sgf.stop_gradient(x - states["built"]) ** 2, axis=1))
        made = sgf.cond(
            sgf.test("rebuild", moved > (self._skin / 2) ** 2, "guard"),
            lambda x, *old: tuple(self.build(x, sgf.test).values()),
            lambda x, *old: old,
            *(x, *(states[name] for name in ("pairs", "built", "near"))),
        )
        listed = dict(zip(("pairs", "built", "near"), made))
        more = (listed["near"] - np.int32(self._capacity)).astype(float)
        sgf.test("overflow", more > 0.5, "guard")
        return listed, ListedPairs(listed["pairs"], self._every, 4 * self._cutoff**2)
