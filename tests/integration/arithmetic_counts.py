"""The five counts of an operation, by the definitions of docs/semantics.md, "Arithmetic"."""

import math
from dataclasses import astuple, dataclass

from arithmetic_rounding import is_tiny


@dataclass
class Counts:
    results: int = 0
    underflows: int = 0
    overflows: int = 0
    additions: int = 0
    absorbed: int = 0

    def merge(self, other):
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

    def __bool__(self):
        return any(astuple(self))


def is_usual(x):
    return math.isfinite(x) and x != 0


def are_finite(numbers):
    return all(map(math.isfinite, numbers))


class Tally:
    """Sees one execution of an operation from inside. Elements of the result that are not executed add nothing."""

    def __init__(self, counts, executed):
        self.counts = counts
        self.executed = executed
        self.counts_here = False

    def at(self, element):
        """The work that follows is for this element of the result."""
        self.counts_here = self.executed[element]

    def silently(self):
        """The work that follows is for no element."""
        self.counts_here = False

    def gave(self, results=1):
        self.counts.results += results * self.counts_here

    def overflowed(self):
        self.counts.overflows += self.counts_here

    def added(self, a, b, total):
        """The rounded `total` of two numbers."""
        if is_usual(a) and is_usual(b):
            self.counts.additions += self.counts_here
            self.counts.absorbed += self.counts_here and total in (a, b)

    def compensated(self, form, a, b, total, is_corrected):
        """An addition of a compensated sum, which loses nothing that its correction holds."""
        self.added(a, b, math.nan if is_corrected else total)
        self.rounded(form, a + b, total)

    def linked(self, form, a, b, total):
        """An addition of a sum, in an accumulator that may be too narrow for its terms."""
        self.added(a, b, total)
        self.rounded(form, a + b, total)

    def rounded(self, form, x, result):
        """A number becomes one of a format."""
        if is_usual(x) and is_tiny(form, result) and result != x:
            self.counts.underflows += self.counts_here

    def shrunk(self, form, wide, result):
        """A result of usual numbers; `wide` is it in f64, where nothing tells whether it is exact."""
        if is_tiny(form, result) and (form == "f64" or result != wide):
            self.counts.underflows += self.counts_here

    def multiplied(self, form, a, b, product):
        if is_usual(a) and is_usual(b):
            self.shrunk(form, a * b, product)
