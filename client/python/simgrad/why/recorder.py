"""Runs that record their paths where the server can."""

from __future__ import annotations

from typing import Any, Sequence

from simgrad import errors, path
from simgrad.compared import Compared
from simgrad.path import FirstDifference
from simgrad.results import Rollout
from simgrad.why.work import Variant, Work


class Recorder:
    """Runs of one work: in one call where the server has one for that, else in calls of their own, to the same results.

    Where the path of a run is refused (too large, or of decisions that cannot be recorded), all go without, and tell
    at diagnostics "instances" what loops did.

    Args:
      keeps_paths: whether results have the paths.

    Attributes:
      refusal: why no path is recorded; "" while they are.
    """

    def __init__(self, work: Work, gradient: bool, keeps_paths: bool = False):
        self._work = work
        self._gradient = gradient
        self._keeps_paths = keeps_paths
        self.refusal = ""

    def run(self, variants: Sequence[Variant]) -> Compared:
        """The runs of variants, the first of which is the reference; their steps must have been expected."""
        calls = self._work.calls
        before = calls.begun
        try:
            return self._run(variants, diagnostics="summary", path=True)
        except (errors.InvalidArgument, errors.ResourceExhausted) as error:
            if not path.is_refused(error):
                raise
            self.refusal = str(error)
            calls.expect(calls.begun - before)
        return self._run(variants, diagnostics="instances", path=False)

    def _run(self, variants: Sequence[Variant], **how: Any) -> Compared:
        found = self._work.run_together(variants, gradient=self._gradient, sends_paths=self._keeps_paths, **how)
        return self._one_by_one(variants, **how) if found is None else found

    def _one_by_one(self, variants: Sequence[Variant], **how: Any) -> Compared:
        results = [self._work.run(variant, gradient=self._gradient, **how) for variant in variants]
        differs = [first_difference(results[0], result) for result in results[1:]]
        for result in results:
            if how["path"] and result.path is None:
                self.refusal = f"the server ({result.server_version}) records no paths"
            result.path = result.path if self._keeps_paths else None
        return Compared(results, differs)


def first_difference(reference: Rollout, other: Rollout) -> FirstDifference | None:
    """Finds where the path of another run leaves the reference's; None where the two have no paths that can be compared."""
    a, b = reference.path, other.path
    if a is None or b is None or a.structure != b.structure or a.steps != b.steps:
        return None
    return a.first_difference(b)
