"""The answer to a Compare: the runs, and how each variant's decisions differ from the reference's."""

from __future__ import annotations

from typing import Callable, NamedTuple, Sequence

from simgrad import results
from simgrad.assembly import Ask, Assembly, Part
from simgrad.path import FirstDifference
from simgrad.pieces import Pieces
from simgrad.v1 import simgrad_pb2

_FIRST = ("first_steps", "first_sites", "first_elements")


class Compared(NamedTuple):
    """Runs of one piece of work.

    Attributes:
      results: of the reference, then of each variant.
      differs: by variant, where its path leaves the reference's; None where their paths were not compared.
    """

    results: list[results.Rollout]
    differs: list[FirstDifference | None]


class CompareAssembly(Assembly):
    """Takes the parts of a Compare stream in order. `result` is set once all results and comparisons are there.

    Args:
      asks: by run, as for Assembly.
      has_paths: whether the answer has the paths that the runs recorded.
      begun: told the number of each run that begins, from 0, which a repeated call begins with again.
    """

    def __init__(self, asks: Sequence[Ask], has_paths: bool, begun: Callable[[int], None]):
        super().__init__()
        self._asks = asks
        self._has_paths = has_paths
        self._begun = begun
        self.comparisons: list[simgrad_pb2.Comparison] = []  # with what came in pieces
        self.differs: list[FirstDifference | None] = []
        begun(0)  # of this try, before anything of it comes

    def add(self, part: Part) -> None:
        kind = part.WhichOneof("part")
        if kind == "header":
            self._ask = self._asks[len(self.results)]
            self._begun(len(self.results))
        if isinstance(part, simgrad_pb2.ComparePart) and kind == "comparison":
            self._take_comparison(part.comparison)
        else:
            super().add(part)
        if self.result is not None and not self._has_paths:
            self.result.path = None  # one without bytes needs no record to be known
        runs = len(self._asks)
        whole = len(self.results) == runs and len(self.comparisons) == runs - 1
        self.result = self.results[-1] if whole else None

    def _take_comparison(self, comparison: simgrad_pb2.Comparison) -> None:
        self._pieces.check_complete()
        for field in _FIRST:
            content = self._pieces.content(f"comparison.{field}", getattr(comparison, field))
            setattr(comparison, field, content)
        self._pieces = Pieces()
        self.comparisons.append(comparison)
        layout = self._header.path
        self.differs.append(FirstDifference.of(comparison, layout) if comparison.by_path else None)
