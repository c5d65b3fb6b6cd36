"""The path of a run: every decision that it took, as data.

N is the number of instances, T the number of steps.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Iterable, Mapping

import numpy as np

from simgrad import errors
from simgrad.diagnostics import EventTrace
from simgrad.v1 import program_pb2, simgrad_pb2, tensor_pb2

# The parts of each column that a file has.
_PLAIN = ("site", "kind", "dtype", "first", "width")
_LISTS = ("shape", "loops")
# Names that the server adds to those of a world; no name of a world has a space.
TAKEN = "path taken"
_FORCED, MARGIN = "forced ", "margin "

_KINDS = {
    simgrad_pb2.PATH_KIND_TEST: "test",
    simgrad_pb2.PATH_KIND_COUNT: "count",
    simgrad_pb2.PATH_KIND_CHOICE: "choice",
}
_DTYPES = {
    program_pb2.ELEMENT_TYPE_BOOL: np.dtype(bool),
    program_pb2.ELEMENT_TYPE_I32: np.dtype(np.int32),
    program_pb2.ELEMENT_TYPE_I64: np.dtype(np.int64),
    program_pb2.ELEMENT_TYPE_U32: np.dtype(np.uint32),
    program_pb2.ELEMENT_TYPE_U8: np.dtype(np.uint8),
}


@dataclass(frozen=True)
class Column:
    """One decision of a step, and where it stands in the bytes of an instance and step.

    Attributes:
      site: the name of the test, loop or choice.
      kind: "test" (whether it holds), "count" (iterations of a loop) or "choice" (integers that
        were chosen by reals).
      shape: axes of the loops around it, outermost first: the elements of a loop per element, then
        its iterations, one more than the cap where the test of a loop decides; then its own. What
        was not decided is 0.
      loops: by axis, of the iterations of a loop the first column c that is the loop's, or -2 - c
        where the loop runs from its last element down; else -1.
    """

    site: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    first: int  # bit where width is 0, else byte
    width: int
    loops: tuple[int, ...]

    @classmethod
    def of(cls, message: simgrad_pb2.PathColumn) -> "Column":
        dtype = _DTYPES[message.element].name
        return cls(
            message.site,
            _KINDS[message.kind],
            dtype,
            tuple(message.shape),
            message.first,
            message.width,
            tuple(message.loops),
        )

    @property
    def count(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def decode(self, packed: np.ndarray) -> np.ndarray:
        """[N, T, shape] of packed bytes [N, T, bytes]."""
        shape = (*packed.shape[:2], *self.shape)
        if self.width == 0:
            first, last = self.first // 8, (self.first + self.count + 7) // 8
            bits = np.unpackbits(packed[..., first:last], axis=-1, bitorder="little")
            skip = self.first % 8
            return bits[..., skip : skip + self.count].astype(bool).reshape(shape)
        part = np.ascontiguousarray(packed[..., self.first : self.first + self.count * self.width])
        dtype = np.dtype(self.dtype)
        signed = "i" if dtype.kind == "i" and self.width == dtype.itemsize else "u"
        return part.view(f"<{signed}{self.width}").astype(dtype).reshape(shape)


@dataclass(frozen=True)
class FirstDifference:
    """The place where two paths part, by instance.

    Attributes:
      step: [N] int64, the first step that differs; -1 where none does.
      site: [N] the site of the first decision in it that differs, as the step takes them: by text, in
        a loop by turn, as `scan` runs with `reverse` too, where the elements of a loop per element
        count as taken at once; "" where none does. Two runs of which one leaves a loop earlier part at the loop, unless a decision
        inside parted before.
      index: [N] tuples, the element of that column: loop axes, then the decision's own.
    """

    step: np.ndarray
    site: list[str]
    index: list[tuple[int, ...]]

    @classmethod
    def of(cls, message: simgrad_pb2.Comparison, layout: simgrad_pb2.PathLayout) -> "FirstDifference":
        """That of a comparison by path; `layout`: of either run."""
        step, column, element = (
            np.frombuffer(data, dtype)
            for data, dtype in (
                (message.first_steps, "<i8"), (message.first_sites, "<i4"), (message.first_elements, "<i8")
            )
        )  # fmt: skip
        site = [layout.columns[c].site if c >= 0 else "" for c in column.tolist()]
        index: list[tuple[int, ...]] = [()] * len(site)
        for c in np.unique(column[column >= 0]).tolist():
            here = np.flatnonzero(column == c)
            for n, i in zip(here.tolist(), _places(element[here], tuple(layout.columns[c].shape))):
                index[n] = i
        return cls(step.astype(np.int64), site, index)


@dataclass(frozen=True)
class Forced:
    """The disagreements of one site's tests with the path that the run was given, by step.

    Attributes:
      count: [T] number of decisions that the run would have taken otherwise.
      margin: [T] the margin a - b closest to 0 among those tests; NaN where none disagreed, or where
        the site compares no reals.
      margin_ulps: [T] the margin closest to 0 in ulps of the comparison, likewise.
      margin_instance: [T] id of the instance that has `margin_ulps`.
      first_step: [N] the first step in which the instance disagreed at this site; -1: never.
    """

    count: np.ndarray
    margin: np.ndarray
    margin_ulps: np.ndarray
    margin_instance: np.ndarray
    first_step: np.ndarray | None = None


class Path:
    """All decisions of a rollout: outcomes of tests, iterations of loops, indices chosen by reals.

    A run with path=True gives one (`r.path`); a run with path=p follows it. It fits every run of the
    same operations, shapes, sites and caps with as many instances and steps, under any policy and
    any tolerance. Kinks (max, abs) are not in it.

    Attributes:
      structure: digest of what it fits.
      instances, steps: N, T.
      columns: by site, [N, T, ...] arrays of bools (tests) and integers (see Column.shape), unpacked
        when they are read.
      nbytes: bytes that it holds.
    """

    def __init__(self, structure: str, layout: Iterable[Column], packed: np.ndarray):
        self.structure = structure
        self.layout = tuple(layout)
        self._packed = packed

    @classmethod
    def of(cls, layout: simgrad_pb2.PathLayout, packed: np.ndarray) -> "Path":
        return cls(layout.structure, map(Column.of, layout.columns), packed)

    @property
    def instances(self) -> int:
        return int(self._packed.shape[0])

    @property
    def steps(self) -> int:
        return int(self._packed.shape[1])

    @property
    def nbytes(self) -> int:
        return int(self._packed.nbytes)

    @property
    def columns(self) -> Mapping[str, np.ndarray]:
        return {column.site: column.decode(self._packed) for column in self.layout}

    def __getitem__(self, site: str) -> np.ndarray:
        """One column."""
        for column in self.layout:
            if column.site == site:
                return column.decode(self._packed)
        raise KeyError(f"no site {site!r} in the path; it has {[c.site for c in self.layout]}")

    def __len__(self) -> int:
        """The number of sites."""
        return len(self.layout)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self.structure == other.structure and np.array_equal(self._packed, other._packed)

    def __repr__(self) -> str:
        sites = ", ".join(c.site for c in self.layout[:6]) + (", ..." if len(self) > 6 else "")
        return (
            f"Path({len(self)} sites ({sites}), {self.instances} instances, {self.steps} steps, "
            f"{self.nbytes} bytes, structure {self.structure[:12]})"
        )

    def take(self, instances: Iterable[int] | np.ndarray) -> "Path":
        """The path of some instances: their indices, or a mask [N] of bools.

        Errors: TypeError for numbers that are neither; IndexError for an index or a mask beyond the path.
        """
        chosen = np.asarray(instances if isinstance(instances, np.ndarray) else list(instances))
        if not chosen.size:
            chosen = chosen.astype(int)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iub":
            raise TypeError(f"instances: indices or a mask of bools, not {chosen.dtype} of shape {chosen.shape}")
        return Path(self.structure, self.layout, self._packed[chosen])

    def first_difference(self, other: "Path") -> FirstDifference:
        """Finds where each instance first decides otherwise in `other`.

        Errors: ValueError for a path of another structure, or of other sizes.
        """
        if self.structure != other.structure:
            raise ValueError("the paths are of different structures: they hold different decisions")
        if self._packed.shape != other._packed.shape:
            raise ValueError(
                f"a path of {self.instances} instances in {self.steps} steps and one of "
                f"{other.instances} in {other.steps} cannot be compared"
            )
        step = np.full(self.instances, -1)
        if self._packed.size:
            differs = (self._packed != other._packed).reshape(self.instances, -1)
            first = differs.argmax(axis=1)
            step = np.where(differs[np.arange(self.instances), first], first // self._packed.shape[-1], -1)
        site, index = [""] * self.instances, [()] * self.instances  # type: list[str], list[Any]
        parted = np.flatnonzero(step >= 0)
        packed = [p._packed[parted, step[parted]][:, None] for p in (self, other)]
        # Paths of earlier releases do not mark scans in reverse; of two, one that does knows the order.
        layout = other.layout if any(loop < -1 for column in other.layout for loop in column.loops) else self.layout
        mine, others = ([column.decode(p)[:, 0] for column in layout] for p in packed)
        if any(loop != -1 for column in layout for loop in column.loops):
            found = [_first(layout, [a[k] for a in mine], [b[k] for b in others]) for k in range(len(parted))]
        else:
            found = _first_in_order(layout, mine, others)
        names = [column.site for column in layout]
        for n, (place, element) in zip(parted.tolist(), found):
            site[n], index[n] = names[place], element
        return FirstDifference(step.astype(np.int64), site, index)

    def to_proto(self) -> simgrad_pb2.Path:
        return simgrad_pb2.Path(
            structure=self.structure,
            decisions=tensor_pb2.Tensor(
                dtype=tensor_pb2.DTYPE_U8,
                shape=self._packed.shape,
                inline=np.ascontiguousarray(self._packed).tobytes(),
            ),
        )

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes an .npz file of this very name, which NumPy reads without this package."""
        fields: dict[str, Any] = {
            name: np.array([getattr(c, name) for c in self.layout])
            for name in _PLAIN
        }
        for name in _LISTS:
            lists = [",".join(map(str, getattr(c, name))) for c in self.layout]
            fields[name] = np.array(lists, str)
        with open(file, "wb") as opened:
            np.savez_compressed(opened, structure=self.structure, packed=self._packed, **fields)

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> "Path":
        """Reads what `save` wrote.

        Errors: those of numpy.load; ValueError where the file holds no path.
        """
        with np.load(file) as saved:
            missing = {"structure", "packed", *_PLAIN, *_LISTS} - set(saved.files)
            if missing:
                raise ValueError(f"{file} is no path: it has no {', '.join(sorted(missing))}")
            columns = [
                Column(
                    site=str(site),
                    kind=str(kind),
                    dtype=str(dtype),
                    shape=_numbers(str(shape)),
                    first=int(first),
                    width=int(width),
                    loops=_numbers(str(loops)),
                )
                for site, kind, dtype, first, width, shape, loops in zip(
                    *(saved[name] for name in (*_PLAIN, *_LISTS))
                )
            ]
            return cls(str(saved["structure"]), columns, saved["packed"])


def _first(
    layout: tuple[Column, ...], mine: list[np.ndarray], others: list[np.ndarray]
) -> tuple[int, tuple[int, ...]]:
    """Column and element of the decision that differs first, of one instance in one step; `mine` and
    `others` hold an array for each column."""
    found: list[tuple[tuple[int, ...], int, tuple[int, ...]]] = []
    for place, (column, a, b) in enumerate(zip(layout, mine, others)):
        for element in map(tuple, np.argwhere(a != b)):
            when: list[int] = []
            for loop, i in zip(column.loops, element):
                if loop != -1:
                    when += [loop, int(i)] if loop >= 0 else [-2 - loop, -int(i)]
            if column.kind == "count":
                when += [place, int(min(a[element], b[element]))]
            found.append(((*when, place), place, tuple(int(i) for i in element)))
    _, place, element = min(found)
    return place, element


def _first_in_order(
    layout: tuple[Column, ...], mine: list[np.ndarray], others: list[np.ndarray]
) -> list[tuple[int, tuple[int, ...]]]:
    """As _first, of many instances at once: where no column is of the turns of a loop, the first column that differs."""
    instances = len(mine[0]) if mine else 0
    found: list[tuple[int, tuple[int, ...]]] = [(0, ())] * instances
    open_ = np.ones(instances, bool)
    for place, (column, a, b) in enumerate(zip(layout, mine, others)):
        a, b = (x.reshape(len(x), column.count) for x in (a, b))
        differs = a != b
        here = np.flatnonzero(open_ & differs.any(axis=1))
        if not here.size:
            continue
        element = differs[here].argmax(axis=1)
        if column.kind == "count":
            counts = np.minimum(a, b)[here].astype(np.int64)
            element = np.where(differs[here], counts, np.iinfo(np.int64).max).argmin(axis=1)
        for n, i in zip(here.tolist(), _places(element, column.shape)):
            found[n] = (place, i)
        open_[here] = False
    return found


def _places(elements: np.ndarray, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The indices of flat ones."""
    if not shape:
        return [()] * len(elements)
    return list(zip(*(axis.tolist() for axis in np.unravel_index(elements, shape))))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


def options_of(path: "bool | Path") -> simgrad_pb2.PathOptions | None:
    """The message of a `path` argument."""
    if isinstance(path, Path):
        return simgrad_pb2.PathOptions(forced=path.to_proto())
    if not isinstance(path, bool):
        raise TypeError(f"path is True, to record it, or a simgrad.Path to follow, not {path!r}")
    return simgrad_pb2.PathOptions(record=True) if path else None


def is_refused(error: errors.SimgradError) -> bool:
    """Whether a server refuses a path (too large, decisions that cannot be recorded, random roundings), or is
    too old to know of paths."""
    unknown = error.field == "spec" and "has unknown field" in str(error)
    return unknown or error.field.startswith("spec.path")


def path_use(options: simgrad_pb2.PathOptions) -> int:
    """The use that a run with these options makes of its path, as DescribeProgram is told."""
    if options.record:
        return int(simgrad_pb2.PATH_USE_RECORDED)
    forced = options.HasField("forced")
    return int(simgrad_pb2.PATH_USE_FORCED if forced else simgrad_pb2.PATH_USE_UNSPECIFIED)


def take_forced(events: dict[str, EventTrace], layout: simgrad_pb2.PathLayout) -> dict[str, Forced]:
    """Takes out of `events` those that tell of a path, by site."""
    forced = {}
    for column in layout.columns:
        counted = events.pop(_FORCED + column.site, None)
        margins = events.pop(MARGIN + column.site, None)
        if counted is None:
            continue
        nowhere = np.full(len(counted.count), np.nan)
        undecided = nowhere if margins is None else np.where(margins.checks > 0, 0.0, np.nan)
        forced[column.site] = Forced(
            counted.count,
            nowhere if margins is None else margins.margin + undecided,
            nowhere if margins is None else margins.margin_ulps + undecided,
            np.zeros(len(counted.count), np.uint64) if margins is None else margins.margin_ulps_instance,
            counted.first_step,
        )
    return forced
