"""Runs that record their paths where the server can."""

from __future__ import annotations

from simgrad import errors, path
from simgrad.results import Rollout
from simgrad.why.work import Variant, Work


class Recorder:
    """Runs of one work. Where a path is refused (too large, or of decisions that cannot be recorded), this
    run and the later ones go without, and tell at diagnostics "instances" what loops did.

    Attributes:
      refusal: why no path is recorded; "" while they are.
    """

    def __init__(self, work: Work, gradient: bool):
        self._work = work
        self._gradient = gradient
        self.refusal = ""

    def run(self, variant: Variant) -> Rollout:
        if not self.refusal:
            try:
                result = self._work.run(
                    variant, gradient=self._gradient, diagnostics="summary", path=True
                )
            except (errors.InvalidArgument, errors.ResourceExhausted) as error:
                if not path.is_refused(error):
                    raise
                self.refusal = str(error)
                self._work.calls.expect(variant.steps * (2 if self._gradient else 1))
            else:
                if result.path is None:
                    self.refusal = f"the server ({result.server_version}) records no paths"
                return result
        return self._work.run(variant, gradient=self._gradient, diagnostics="instances", path=False)
