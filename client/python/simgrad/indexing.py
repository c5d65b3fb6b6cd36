"""x[key] and x.at[key] by NumPy's rules, as slice, gather, take and scatter.

A key that is known when the program is written gives exactly what NumPy gives, and is refused where
it is outside. An index that the world computes counts from the front; one outside, along any axis,
means the nearest element (of `at`: drops the update).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simgrad.constants import element_name, widest
from simgrad.v1.program_pb2 import (
    ELEMENT_TYPE_BOOL,
    ELEMENT_TYPE_I32,
    ELEMENT_TYPE_REAL,
    ELEMENT_TYPE_U8,
)

if TYPE_CHECKING:
    from simgrad.expression import Expression

Key = tuple[Any, ...]


def item(x: "Expression", key: Any) -> "Expression":
    """x[key]. Raises IndexError where NumPy does, TypeError for what the world would have to know."""
    entries = _entries(x, key)
    if any(_is_value(e) for e in entries):
        return _computed(x, entries)
    if all(_is_basic(e) for e in entries):
        return _basic(x, entries)
    [axis, *more] = [i for i, e in enumerate(entries) if _is_array(e)] or [-1]
    others = [e for i, e in enumerate(entries) if i != axis]
    if axis >= 0 and not more and all(map(_is_whole, others)):
        places = np.arange(x.shape[axis])[_known(x, entries)[axis]]
        return x.builder.gather(x, places.astype(np.int32), axes=axis)
    numbers = _numbers(x, entries)
    return x.builder.take(x, numbers.shape, numbers.ravel().tolist())


class Places:
    """x.at[key], to be written to: gives a new value."""

    def __init__(self, x: "Expression", key: Any = None):
        self._x = x
        self._key = key

    def __getitem__(self, key: Any) -> "Places":
        if self._key is not None:
            raise TypeError(f"{self._x.builder.here()}x.at takes one key: write x.at[i, j], not x.at[i][j]")
        return Places(self._x, key if isinstance(key, tuple) else (key,))

    def set(self, y: Any) -> "Expression":
        """x[key] = y; where a place stands several times, the last wins."""
        return self._written("set", y)

    def add(self, y: Any) -> "Expression":
        """x[key] += y; places may stand several times, and are added to in their order."""
        return self._written("add", y)

    def mul(self, y: Any) -> "Expression":
        """x[key] *= y; places may stand several times, and are multiplied in their order.

        The gradient is right for known places, and for computed ones that are distinct: that of `scatter` takes each
        factor for the only one of its place.
        """
        return self._written("mul", y)

    def min(self, y: Any) -> "Expression":
        return self._written("min", y)

    def max(self, y: Any) -> "Expression":
        return self._written("max", y)

    def _written(self, combine: str, y: Any) -> "Expression":
        if self._key is None:
            raise TypeError(f"{self._x.builder.here()}x.at without a key: x.at[i].{combine}(y), or x.at[...] for all elements")
        x, entries = self._x, _entries(self._x, self._key)
        b = x.builder
        y = b.value(y, x.element)
        if widest([x.element, y.element]) != x.element:
            raise TypeError(
                f"{b.here()}x.at of {element_name(x.element)} takes no {element_name(y.element)}: "
                f'y.astype("{element_name(x.element)}") converts it'
            )
        if not any(_is_value(e) for e in entries):
            numbers = _numbers(x, entries)
            return self._flat(combine, y, numbers.ravel().astype(np.int32), numbers.shape, "clip")
        if entries and _is_i32(entries[0]) and all(_is_whole(e) for e in entries[1:]):
            return b.scatter(x, entries[0], y, axes=0, bounds="drop", combine=combine)
        number: Any = _number(x, entries, outside=x.size)
        return self._flat(combine, y, number.reshape(-1), number.shape, "drop")

    def _flat(
        self, combine: str, y: "Expression", numbers: Any, shape: tuple[int, ...], bounds: str
    ) -> "Expression":
        x, b = self._x, self._x.builder
        updates, flat = b.broadcast_to(y, shape).reshape(-1), x.reshape(-1)
        turns = _turns(numbers) if combine == "mul" and not _is_value(numbers) else []
        if len(turns) > 1:
            for turn in turns:
                part = b.gather(updates, turn, axes=0)
                flat = b.scatter(flat, numbers[turn], part, axes=0, bounds=bounds, combine=combine)
        else:
            flat = b.scatter(flat, numbers, updates, axes=0, bounds=bounds, combine=combine)
        return flat.reshape(x.shape)


def _turns(numbers: np.ndarray) -> list[np.ndarray]:
    """The positions of `numbers`, i32, in parts within which all numbers are distinct: the n-th part has the n-th
    occurrence of each."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    starts = np.searchsorted(ordered, ordered)
    occurrence = np.empty(numbers.size, np.int64)
    occurrence[order] = np.arange(numbers.size) - starts
    return [np.flatnonzero(occurrence == n).astype(np.int32) for n in range(occurrence.max(initial=-1) + 1)]


# ---- Keys ----


def _is_value(entry: Any) -> bool:
    return hasattr(entry, "builder")


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, (list, np.ndarray)) and np.asarray(entry).dtype == bool


def _is_i32(entry: Any) -> bool:
    return _is_value(entry) and bool(entry.element == ELEMENT_TYPE_I32)


def _is_index(entry: Any) -> bool:
    """A number, a list or an array, or what the world computes."""
    return not (entry is None or entry is Ellipsis or isinstance(entry, slice))


def _is_whole(entry: Any) -> bool:
    return isinstance(entry, slice) and entry == slice(None)


def _is_array(entry: Any) -> bool:
    """A list or an array of indices, or a slice that runs backward."""
    if isinstance(entry, slice):
        return entry.step is not None and entry.step < 0
    return not (entry is None or _is_value(entry) or np.ndim(entry) == 0)


def _is_basic(entry: Any) -> bool:
    return not _is_array(entry) and not _is_value(entry)


def _entries(x: "Expression", key: Any) -> Key:
    """One entry per axis of x, None for new axes, and an ellipsis that stands for no axis but may part indices. Arrays
    of bools become indices."""
    # A tuple inside a key is a list of indices to NumPy.
    given: list[Any] = [list(e) if isinstance(e, tuple) else e for e in (key if isinstance(key, tuple) else (key,))]
    if any(_is_mask(entry) and np.ndim(entry) for entry in given):
        # NumPy looks at the shapes of masks; what is computed stands for a whole axis.
        _known(x, tuple(slice(None) if _is_value(entry) else entry for entry in given))
    entries: list[Any] = []
    for entry in given:
        if isinstance(entry, slice) and any(
            _is_value(e) for e in (entry.start, entry.stop, entry.step)
        ):
            raise TypeError(
                f"{x.builder.here()}the length of x[a:b] must be known: b.dynamic_slice(x, starts, shape) "
                "takes a computed start"
            )
        if _is_value(entry) and entry.element in (ELEMENT_TYPE_REAL, ELEMENT_TYPE_BOOL):
            raise TypeError(
                f"{x.builder.here()}x[...] takes computed indices, not computed reals or bools: the shape would depend on "
                "data; use sg.where(c, x, 0)"
            )
        if isinstance(entry, (bool, np.bool_)) or _is_mask(entry) and np.ndim(entry) == 0:
            raise TypeError(f"{x.builder.here()}x[...] takes no single bool: x[None] adds an axis")
        if _is_mask(entry):
            entries.extend(np.nonzero(np.asarray(entry)))
        else:
            entries.append(entry)
    if sum(e is Ellipsis for e in entries) > 1:
        raise IndexError(f"{x.builder.here()}an index has one ellipsis ('...') at most")
    used = sum(e is not None and e is not Ellipsis for e in entries)
    if used > x.ndim:
        raise IndexError(f"{x.builder.here()}{used} indices for an array of shape {x.shape}")
    at = next((i for i, e in enumerate(entries) if e is Ellipsis), len(entries))
    # An ellipsis for no axis parts the indices beside it, so that NumPy puts their axes first.
    parts = any(map(_is_index, entries[:at])) and any(map(_is_index, entries[at:])) and not _is_index(entries[0])
    missing = [Ellipsis] if parts and used == x.ndim else [slice(None)] * (x.ndim - used)
    return tuple([*entries[:at], *missing, *entries[at + 1 :]])


def _known(x: "Expression", entries: Key) -> Key:
    """The entries as NumPy takes them, looked at by NumPy itself."""
    try:
        np.broadcast_to(np.False_, x.shape)[entries]
    except IndexError as error:
        raise IndexError(f"{x.builder.here()}{error}") from None
    return entries


def _numbers(x: "Expression", entries: Key) -> np.ndarray:
    """The row-major number of each element of x[entries]."""
    known = _known(x, entries)
    return np.asarray(np.arange(x.size).reshape(x.shape)[known])


# ---- Ways to take ----


def _basic(x: "Expression", entries: Key) -> "Expression":
    """Integers, slices that run forward, and new axes: a slice and a reshape."""
    shape = np.broadcast_to(np.False_, x.shape)[_known(x, entries)].shape
    start, lengths, stride = [], [], []
    for n, entry in zip(x.shape, [e for e in entries if e is not None and e is not Ellipsis]):
        if isinstance(entry, slice):
            places = range(*entry.indices(n))
            start.append(places.start if len(places) else 0)
            lengths.append(len(places))
            stride.append(places.step if len(places) > 1 else 1)
        else:
            start.append(int(entry) % n)
            lengths.append(1)
            stride.append(1)
    if tuple(lengths) != x.shape:
        steps = stride if any(s != 1 for s in stride) else ()
        x = x.builder.slice(x, start, lengths, steps)
    return x if shape == x.shape else x.builder.reshape(x, shape)


def _computed(x: "Expression", entries: Key) -> "Expression":
    """Some indices are values: what is known is taken first, then one gather along their joint axis."""
    b = x.builder
    chosen = [i for i, e in enumerate(entries) if _is_value(e) or not isinstance(e, slice)]
    if any(e is None or e is Ellipsis for e in entries) or chosen != list(range(chosen[0], chosen[-1] + 1)):
        return b.gather(x.reshape(-1), _number(x, entries), axes=0)
    first = chosen[0]
    slices = tuple(e if isinstance(e, slice) else slice(None) for e in entries)
    x = item(x, slices)
    if len(chosen) == 1:
        return b.gather(x, _nearest(x, entries[first], x.shape[first]), axes=first)
    lengths = x.shape[first : first + len(chosen)]
    number: Any = np.int32(0)
    for length, axis in zip(lengths, chosen):
        place = entries[axis]
        if _is_value(place):
            place = _clipped(place, length)
        else:
            place = _place(x, place, length)
        number = number * np.int32(length) + place
    joined = x.shape[:first] + (int(np.prod(lengths)),) + x.shape[first + len(chosen) :]
    return b.gather(x.reshape(joined), number, axes=first)


def _nearest(x: "Expression", place: "Expression", length: int) -> "Expression":
    """An index as an i32; that of another type is clipped before it becomes one."""
    if place.element == ELEMENT_TYPE_I32:
        return place
    return _clipped(place, length)


def _clipped(place: "Expression", length: int) -> "Expression":
    """The nearest index within the length, as an i32."""
    b = place.builder
    place = _comparable(place)
    return b.min(b.max(place, np.int32(0)), np.int32(length - 1)).astype("i32")


def _comparable(place: "Expression") -> "Expression":
    """An index in a type that holds every length of an axis: those of u8 as i32."""
    return place.astype("i32") if place.element == ELEMENT_TYPE_U8 else place


def _place(x: "Expression", entry: Any, length: int) -> np.ndarray:
    try:
        return np.asarray(np.arange(length, dtype=np.int32)[entry])
    except IndexError as error:
        raise IndexError(f"{x.builder.here()}{error}") from None


def _number(x: "Expression", entries: Key, outside: int | None = None) -> "Expression":
    """The row-major number of each element of x[entries], in the shape that NumPy gives it.

    Args:
      outside: the number where a computed index is outside; None: that of the nearest element.
    """
    b = x.builder
    chosen = [i for i, e in enumerate(entries) if _is_index(e)]
    try:
        joint = np.broadcast_shapes(*(np.shape(entries[i]) for i in chosen))
    except ValueError:
        raise b.unmet(*(np.shape(entries[i]) for i in chosen)) from None
    together = chosen == list(range(chosen[0], chosen[-1] + 1))
    kept = [i for i, e in enumerate(entries) if e is None or isinstance(e, slice)]
    before = sum(i < chosen[0] for i in kept) if together else 0
    behind = len(kept) - before

    lengths = iter(x.shape)
    number: Any = np.int32(0)
    inside: Any = None
    for i, entry in enumerate(entries):
        if entry is Ellipsis:
            continue
        if entry is None:
            # A new axis: one more, of length 1, among those that are kept.
            place: Any = np.zeros(1, np.int32)
        else:
            length = next(lengths)
            place = entry if _is_value(entry) else _place_of(x, entry, length)
        if i in chosen:
            place = place.reshape(place.shape + (1,) * behind)
        else:
            at = kept.index(i)
            trailing = len(kept) - 1 - at + (len(joint) if at < before else 0)
            place = place.reshape((-1,) + (1,) * trailing)
        if entry is None:
            number = number + place
            continue
        if _is_value(entry):
            if outside is not None:
                place = _comparable(place)
                held = (place >= np.int32(0)) & (place < np.int32(length))
                inside = held if inside is None else inside & held
            place = _clipped(place, length)
        number = number * np.int32(length) + place
    if outside is not None and inside is not None:
        return b.where(inside, number, np.int32(outside))
    return b.value(number)


def _place_of(x: "Expression", entry: Any, length: int) -> np.ndarray:
    if isinstance(entry, slice):
        return np.arange(length, dtype=np.int32)[entry]
    return _place(x, entry, length)
