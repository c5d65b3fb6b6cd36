"""Misreadings of docs/semantics.md, "Arithmetic": each replaces one function of the interpreter.

A series of worlds that does not notice one of them says nothing about what it misreads.
"""

import arithmetic_operations
import arithmetic_oracle
import program_passes
from arithmetic_counts import Tally
from arithmetic_rounding import is_tiny, rounded


def shrunk_even_if_exact(tally, form, wide, result):
    if is_tiny(form, result):
        tally.counts.underflows += tally.counts_here


def shrunk_if_inexact_in_f64(tally, form, wide, result):
    if is_tiny(form, result) and result != wide:
        tally.counts.underflows += tally.counts_here


# By name: owner, attribute, and what stands there.
MISREADINGS = {
    "an fma underflows where its addend cancels": (arithmetic_operations, "may_shrink", lambda e, numbers: True),
    "a fused product underflows": (arithmetic_operations, "rounds_products", lambda accumulator: True),
    "operands of a chain never underflow": (
        arithmetic_operations,
        "brought",
        lambda accumulator, x, tally: rounded(accumulator, x),
    ),
    "additions of a sum never underflow": (
        Tally,
        "linked",
        lambda tally, form, a, b, total: tally.added(a, b, total),
    ),
    "infinite elements overflow": (arithmetic_operations, "has_finite_operands", lambda e: True),
    "corrections hold nothing": (
        Tally,
        "compensated",
        lambda tally, form, a, b, total, is_corrected: tally.added(a, b, total),
    ),
    "every prefix of a cumsum adds": (Tally, "silently", lambda tally: tally.at(0)),
    "exact results underflow": (Tally, "shrunk", shrunk_even_if_exact),
    "results of f64 are exact": (Tally, "shrunk", shrunk_if_inexact_in_f64),
    "totals never underflow": (Tally, "rounded", lambda tally, form, x, result: None),
    "masked elements count": (program_passes, "executed", lambda op, scope, size: [True] * size),
    "every step is sampled": (arithmetic_oracle.Instance, "is_sampled", lambda instance, t: True),
    "loops lend no site": (program_passes, "site_of", lambda op, scope: op.site),
}
