"""Results in a few lines that fit a terminal, for `repr`. Nothing here is all there is."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence

import numpy as np

if TYPE_CHECKING:
    from simgrad.arithmetic import Arithmetic, OperationArithmetic
    from simgrad.diagnostics import Absorption, EventTrace, TerminationTrace
    from simgrad.hessian import HessianVector
    from simgrad.results import Gradient, Halted, Program, ResolvedPolicy, Rollout

SKIPPED = "the scaled gradient was not finite"
_COLUMNS = 79
_LABEL = 12  # columns of what stands before the names
_OPERATIONS = 5  # of a role that are named


def _row(label: str, items: Iterable[str]) -> list[str]:
    text = ", ".join(items)
    if not text:
        return []
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=f"  {label:<{_LABEL}}",
        subsequent_indent=" " * (2 + _LABEL),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _shapes(arrays: Any) -> list[str]:
    """The shapes of arrays by name; for another tree, as worlds in JAX may have, the name of its type."""
    if not isinstance(arrays, Mapping):
        return [type(arrays).__name__]
    return [f"{name} {list(np.shape(a))}" for name, a in arrays.items()]


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _closest(trace: "TerminationTrace | EventTrace") -> str:
    """The test that came closest to its threshold, over all steps; "" where none was evaluated."""
    margins = np.abs(trace.margin_ulps)
    if not np.isfinite(margins).any():
        return ""
    step = int(np.argmin(np.where(np.isnan(margins), np.inf, margins)))
    tests = getattr(trace, "margin_test", None)
    test = "" if tests is None or not tests[step] else f", test {tests[step]}"
    return (
        f"; closest by {trace.margin_ulps[step]:.4g} ulps at step {trace.begins + step}, "
        f"instance {trace.margin_ulps_instance[step]}{test}"
    )


def _line(trace: "TerminationTrace | EventTrace") -> str:
    return f" ({trace.line})" if trace.line else ""


def halts(halted: "Sequence[Halted]") -> list[str]:
    """For each halt that ended instances: how many, from which step on, where it stands, and what it says."""
    found: dict[tuple[str, bool, str, str], list[int]] = {}
    for one in halted:
        found.setdefault((one.halt, one.error, one.line, one.message), []).append(one.step)
    told = []
    for (halt, error, line, message), steps in found.items():
        where = f" ({line})" if line else ""
        kind = ", with an error" if error else ""
        said = f": {' '.join(message.split())}" if message else ""
        told.append(
            f"{_count(len(steps), 'instance')} by {halt}{where}, first at step {min(steps)}{kind}{said}"
        )
    return ["; ".join(told)] if told else []


def of_site(trace: "TerminationTrace") -> str:
    """How often a loop ran, how long, why it stopped, and how close it came to stopping elsewhere."""
    runs = int(trace.runs.sum())
    if runs == 0:
        return f"{trace.site}{_line(trace)}: never ran"
    mean = float(trace.runs @ trace.iterations_mean) / runs
    ran = np.asarray(trace.runs) > 0
    least, most = int(trace.iterations_min[ran].min()), int(trace.iterations_max[ran].max())
    counts = [*trace.reasons.sum(axis=0).tolist(), int(trace.counter.sum())]
    reasons = ", ".join(
        f"{name} {int(count)}"
        for name, count in zip(("converged", "max_iter", "nonfinite", "not_entered", "counter"), counts)
        if count
    )
    return (
        f"{trace.site}{_line(trace)}: {_count(runs, 'run')} of {least} to {most} iterations, "
        f"{mean:.4g} on average: {reasons}{_closest(trace)}"
    )


def of_event(trace: "EventTrace") -> str:
    """How often an event held, from when on, how often it changed, and how close it came."""
    count, checks = int(trace.count.sum()), int(trace.checks.sum())
    held = f"{count} of {_count(checks, 'check')} true"
    steps = np.flatnonzero(trace.count)
    if steps.size:
        held += f", first at step {trace.begins + steps[0]}"
    kind = f" [{trace.kind}]" if trace.kind not in ("", "event") else ""
    changes = f"; {_count(int(trace.changes.sum()), 'change')}"
    return f"{trace.site}{kind}{_line(trace)}: {held}{changes}{_closest(trace)}"


def of_absorption(absorption: "Absorption") -> str:
    """The share of the additions into a state that did nothing, at the steps that are looked at."""
    counted = _count(absorption.additions, "addition")
    return f"{absorption.state} in {absorption.share:.0%} of {counted} at sampled steps"


def _many(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def _share(part: int, of: int, what: str) -> str:
    """A part of a count, in per cent: 0 and 100 only where these are exact. Sums and products of matrices may
    underflow more often than they give numbers."""
    if part > of:
        return f"{_many(of, what)}, {part:,} times"
    percent = 100 * part / of
    text = f"{percent:.0f}" if part in (0, of) else f"{min(percent, 99.9):.1f}" if percent >= 0.1 else "less than 0.1"
    return f"{text}% of {_many(of, what)}"


def _losses(row: "OperationArithmetic") -> str:
    """The losses of an operation, or of a role: numbers that rounding took something from."""
    told = [
        f"underflow in {_share(row.underflows, row.results, 'result')}" if row.underflows else "",
        f"overflow in {_share(row.overflows, row.results, 'result')}" if row.overflows else "",
        f"absorption in {_share(row.absorbed, row.additions, 'addition')}" if row.absorbed else "",
    ]
    return ", ".join(filter(None, told)) or f"nothing lost in {_many(row.results, 'result')}, {_many(row.additions, 'addition')}"


def _operation(row: "OperationArithmetic") -> str:
    return row.operation + (f" ({row.line})" if row.line else "") + (f", site {row.site}" if row.site else "")


def of_operation(row: "OperationArithmetic") -> str:
    """One row: its pass and role, which operation, and what it lost."""
    return f"{row.phase}, role {row.role}: {_operation(row) + ': ' if row.operation else ''}{_losses(row)}"


def of_arithmetic(arithmetic: "Arithmetic") -> str:
    """A line for each pass and role, and below it the operations of which most was lost."""
    lines = []
    for role in arithmetic.roles:
        lines.append(of_operation(role))
        found = [o for o in arithmetic.operations if (o.phase, o.role) == (role.phase, role.role) and o.lost]
        lines += [f"  {_operation(o)}: {_losses(o)}" for o in found[:_OPERATIONS]]
        if len(found) > _OPERATIONS:
            lines.append(f"  and {_count(len(found) - _OPERATIONS, 'operation')} more")
    return "\n".join(lines) or "no arithmetic: a call with arithmetic=N tells that of its first N instances"


def of_policy(policy: "ResolvedPolicy") -> str:
    """Roles that run alike share a row."""
    alike: dict[Any, list[str]] = {}
    for role, setting in policy.roles.items():
        alike.setdefault(setting, []).append(role)
    lines = [f"ResolvedPolicy {policy.preset}, nonfinite {policy.nonfinite}"]
    if policy.loss_scale != 1:
        lines[0] += f", loss scale {policy.loss_scale:g}"
    for setting, roles in alike.items():
        sums = f"{setting.order} sums in {setting.accumulator}"
        if setting.products != "fma_chain":
            sums += f", {setting.products} products"
        if setting.rounding != "nearest_even":
            sums += f", rounded {setting.rounding}"
        if setting.overflow == "saturate" and setting.scale == "none":
            sums += ", saturating"
        sums += "" if setting.scale == "none" else f", scale {setting.scale}"
        lines += _row(setting.format, [f"{sums}: {', '.join(roles)}"])
    lines += _row("sites", [f"{site} {dict(given)}" for site, given in policy.sites.items()])
    return "\n".join(lines)


def of_program(program: "Program") -> str:
    lines = [f"Program {program.fingerprint[:16]} under {program.policy.preset}"]
    lines += _row("sites", program.termination_sites)
    lines += _row("events", program.event_sites)
    return "\n".join(lines)


def of_rollout(result: "Rollout", title: str = "Rollout") -> str:
    bad = int(result.ok.size - np.count_nonzero(result.ok))
    health = "all finite" if bad == 0 else f"{bad} not finite"
    lines = [
        f"{title} of {_count(result.instances, 'instance')} x {_count(result.steps, 'step')} "
        f"under {result.program.policy.preset}: {health}"
    ]
    if result.value is not None:
        lines += _row("value", [f"{result.value:.9g}"])
    lines += _row("state", _shapes(result.state))
    lines += _row("trajectory", _shapes(result.trajectory))
    lines += _row("sites", result.sites)
    lines += _row("events", result.events)
    lines += _row("halted", halts(result.halted))
    lines += _row("absorbed", [repr(a) for a in result.absorption.values() if a.absorbed])
    lines += _row("arithmetic", [of_operation(row) for row in result.arithmetic.roles if row.lost])
    if result.certificates:
        lines += _row("born", [str(result.certificates[0])])
    return "\n".join(lines)


def of_gradient(result: "Gradient") -> str:
    lines = [of_rollout(result, "Gradient")]
    for label in ("initial", "params", "controls"):
        lines += _row(label, _shapes(getattr(result, label)))
    # A site that gates an input keeps every instance from reaching it.
    lines += _row(
        "unconnected",
        [
            f"{name} (gated by {gate})" if (gate := result.gated_by.get(name)) else name
            for name, instances in result.connected.items()
            if instances == 0
        ],
    )
    lines += _row(
        "zero",
        [
            f"{name} in {share:.0%}"
            for name, share in result.zero_share.items()
            if share > 0.0 and result.connected[name] > 0
        ],
    )
    lines += _row("warnings", result.warnings)
    if result.left_out:
        lines += _row("left out", [_count(result.left_out, "instance")])
    if result.skipped:
        lines += _row("skipped", [SKIPPED])
    return "\n".join(lines)


def of_hessian_vector(result: "HessianVector") -> str:
    kept = int(np.count_nonzero(result.same_path))
    total = result.same_path.size
    others = ", the others made to follow it" if result.forced and kept < total else ""
    lines = [
        f"HessianVector by a step of {result.step:.3g}: {kept} of "
        f"{_count(total, 'instance')} on the same path{others}"
    ]
    for label in ("initial", "params", "controls"):
        lines += _row(label, _shapes(getattr(result, label)))
    return "\n".join(lines)
