"""Differences of two runs over the instances that have a value, or a gradient, in both."""

from __future__ import annotations

import math

import numpy as np

from simgrad.results import Gradient, Rollout
from simgrad.why.difference import GradientDifference, gradient_differences, named_rows, without_gradient
from simgrad.why.work import Variant, Work


def gradients_in_both(
    work: Work, variants: tuple[Variant, Variant], runs: tuple[Gradient, Gradient]
) -> dict[str, GradientDifference]:
    """The differences of gradients of two variants, of which the first is the reference.

    Cost: none where both runs have a gradient in the same instances, and where each gradient is one instance's alone.
    Else a gradient of each run that has others, of the instances that have one in both: the gradient of a shared input
    is a sum, and a clipped one hangs on the norm of all.
    """
    without = [without_gradient(run) for run in runs]
    left_out = without[0] | without[1]
    each_alone = all(named_rows(runs[0], work.own).values()) and work.options.get("clip_norm") is None
    if left_out.all() or each_alone:
        return gradient_differences(*runs, work.own)
    among = []
    for variant, run, its in zip(variants, runs, without):
        if (its != left_out).any():
            work.calls.expect(2 * variant.steps)
            run = work.take(np.flatnonzero(~left_out)).gradient(variant, diagnostics="off")
        among.append(run)
    return gradient_differences(*runs, work.own, (among[0], among[1]))


def value_of(work: Work, result: Rollout, left_out: np.ndarray) -> float | None:
    """The objective of a run, summed over the instances that are not `left_out` ([N] bool); None without an objective,
    and where all are."""
    if result.values is None or not left_out.any():
        return result.value
    if getattr(result, "left_out", 0):  # instances that are not finite are in no sum of the answer either
        left_out = left_out | ~result.ok
    if left_out.all():
        return None
    weights = np.ones(result.instances) if work.weights is None else work.weights
    return math.fsum((np.asarray(weights, np.float64) * result.values)[~left_out])
