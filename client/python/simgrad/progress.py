"""Shows how far a request is."""

from __future__ import annotations

import sys
from typing import Callable

ProgressCallback = Callable[
    [str, int, int], None
]  # phase ("forward", "adjoint", "arithmetic"), steps done, steps total


class ProgressBar:
    """A bar per phase on standard error: tqdm's where it is installed, a plain line else."""

    def __init__(self) -> None:
        try:
            from tqdm import tqdm
        except ImportError:
            tqdm = None
        self._tqdm = tqdm
        self._phase: str | None = None
        self._bar = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase != self._phase:
            self.close()
            self._phase = phase
            if self._tqdm:
                self._bar = self._tqdm(
                    total=total, desc=phase, unit="step", leave=False, file=sys.stderr
                )
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif not self._tqdm:
            filled = 30 * done // max(total, 1)
            sys.stderr.write(f"\r{phase:>8} [{'#' * filled:<30}] {done}/{total}")
            sys.stderr.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._phase is not None and not self._tqdm:
            sys.stderr.write("\n")
        self._bar = self._phase = None


def observer_of(progress: "bool | ProgressCallback") -> ProgressCallback:
    """The observer of progress messages: none, a bar, or the caller's own function."""
    if progress is False or progress is None:
        return lambda phase, done, total: None
    return ProgressBar() if progress is True else progress
