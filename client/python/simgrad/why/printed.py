"""Tables of text of what differs in the answers of two runs. Each number of a table is one of the two answers, or a
difference of them, written short."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, NamedTuple, Sequence

import numpy as np

from simgrad.diagnostics import REASONS, TerminationTrace
from simgrad.why.difference import Difference, difference
from simgrad.why.sentence import among
from simgrad.why.table import aligned

if TYPE_CHECKING:
    from simgrad.why.compare import Pair

_MOST = 8  # rows of arrays, and of sites, that a table has


class Row(NamedTuple):
    """One row of a table, as text; "" where there is no such number.

    Attributes:
      what: names the array, or what is counted of a site.
      reference, other: the number of each run.
      largest: the largest difference, of any element, or of any step.
      relative: the Euclidean size of all differences by that of the reference; nan where the largest is not finite.
      at: the place of the largest difference.
    """

    what: str
    reference: str = ""
    other: str = ""
    largest: str = ""
    relative: str = ""
    at: str = ""


class Differing(NamedTuple):
    """The rows of what differs, what differs most first, and of how many both runs have."""

    rows: list[Row]
    number: int  # of what differs: a site may have several rows
    of: int

    def told(self, what: str) -> str:
        """ "2 of 5 arrays"."""
        return f"{self.number} of {self.of} {what}"


def arrays_of(pair: Pair) -> Differing:
    """The value, the arrays of states, trajectories and values, and the gradients that both runs have in one shape."""
    found: list[tuple[float, Row]] = []
    named = {"values of instances": pair.values} if pair.values is not None else {}
    named |= {f"gradient of {name}": off for name, off in pair.gradients.items()}
    named |= {f"state {name}": off for name, off in pair.states.items()}
    named |= {f"trajectory {name}": off for name, off in pair.trajectories.items()}
    if pair.value is not None:
        mine, theirs = pair.value
        off = difference(np.asarray(mine), np.asarray(theirs))
        if off.largest != 0:
            what = "value" + among(pair.left_out, pair.other_result.instances)
            found.append((float("inf"), _row(what, off, "", f"{mine:.9g}", f"{theirs:.9g}")))
    for name, array in named.items():
        if array.largest != 0:
            found.append((array.rank, _row(name, array, f"{list(array.at)}" if array.at else "")))
    found.sort(key=lambda entry: -entry[0])
    return Differing([row for _, row in found], len(found), len(named) + (pair.value is not None))


def sites_of(pair: Pair) -> Differing:
    """The sites that both runs have: turns of loops and why they ended, and how often tests held. Of runs with another
    number of steps the sums count alone."""
    runs = (pair.reference_result, pair.other_result)
    found = [_of_loop(name, *(run.sites[name] for run in runs)) for name in pair.iterations]
    for name, held in pair.events.items():
        found.append([_counted(f"{name}: held", *held)])
    differing = [[entry for entry in entries if entry is not None] for entries in found]
    differing = sorted((entries for entries in differing if entries), key=lambda entries: -max(e[0] for e in entries))
    return Differing([row for entries in differing for _, row in entries], len(differing), len(found))


def of_pair(pair: Pair) -> str:
    """A line that counts what differs, and a table of it."""
    arrays, sites = arrays_of(pair), sites_of(pair)
    told = [found.told(what) for found, what in ((arrays, "arrays"), (sites, "sites")) if found.of]
    if not told:
        return ""
    rows = [*_most(arrays.rows), *_most(sites.rows)]
    heads = Row("", pair.reference, pair.other, "off by", "relative", "at")
    return "\n".join([f"{' and '.join(told)} differ", *([aligned([heads, *rows])] if rows else [])])


def of_sites(pairs: Sequence[Pair]) -> str:
    """A table of what differs at sites, for each of several variants; "" where nothing does."""
    found = [(pair, _most(sites_of(pair).rows)) for pair in pairs]
    rows = [[pair.other, *row] for pair, rows in found for row in rows]
    heads = ["variant", "site", "reference", "variant's", "off by", "relative", "at"]
    return aligned([heads, *rows]) if rows else ""


def worst_of(found: Mapping[str, Difference]) -> str:
    """The three arrays that are off by most, by their relative differences, as "y 0.01, v 0.002"; "" where all are equal."""
    worst = sorted((name for name in found if found[name].largest != 0), key=lambda name: -found[name].rank)
    return ", ".join(f"{name} {found[name].relative:.2g}" for name in worst[:3]) + (" ..." if len(worst) > 3 else "")


def _most(rows: list[Row]) -> list[Row]:
    more = len(rows) - _MOST
    return [*rows[:_MOST], Row(f"and {more} more")] if more > 0 else rows


def _row(what: str, off: Difference, at: str, reference: str = "", other: str = "") -> Row:
    return Row(what, reference, other, f"{off.largest:.3g}", f"{off.relative:.3g}", at)


_Ranked = tuple[float, Row]


def _counted(what: str, mine: np.ndarray, theirs: np.ndarray) -> _Ranked | None:
    """A row of counts in each step, [T]: their sums, and the step in which they differ most; None where they are equal."""
    totals = (f"{int(np.sum(mine))}", f"{int(np.sum(theirs))}")
    if np.shape(mine) != np.shape(theirs):
        return None if np.sum(mine) == np.sum(theirs) else (float("inf"), Row(what, *totals))
    off = difference(mine, theirs)
    return (off.rank, _row(what, off, f"step {off.at[0]}", *totals)) if off.largest != 0 else None


def _of_loop(name: str, mine: TerminationTrace, theirs: TerminationTrace) -> list[_Ranked | None]:
    """Rows of a loop: its mean turns, and for each reason how often it ended so."""
    means = (_mean_turns(mine), _mean_turns(theirs))
    turns = (mine.iterations_mean, theirs.iterations_mean)
    rows: list[_Ranked | None] = []
    if np.shape(turns[0]) != np.shape(turns[1]):
        rows.append((float("inf"), Row(f"{name}: mean turns", *means)) if means[0] != means[1] else None)
    elif (off := difference(*turns)).largest != 0:
        rows.append((off.rank, _row(f"{name}: mean turns", off, f"step {off.at[0]}", *means)))
    for k, reason in enumerate(REASONS):
        ended = [x.reasons[:, k] if k < x.reasons.shape[1] else x.counter for x in (mine, theirs)]
        rows.append(_counted(f"{name}: ended as {reason}", *ended))
    return rows


def _mean_turns(trace: TerminationTrace) -> str:
    runs = int(trace.runs.sum())
    return f"{float(trace.runs @ trace.iterations_mean) / runs:.4g}" if runs else "never ran"
