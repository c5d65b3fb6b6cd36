"""Results in a few lines that fit a terminal, for `repr`. Nothing here is all there is."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Iterable, Mapping

import numpy as np

if TYPE_CHECKING:
    from simgrad.results import Gradient, Program, ResolvedPolicy, Rollout

_COLUMNS = 79
_LABEL = 12  # columns of what stands before the names


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


def _shapes(arrays: Mapping[str, np.ndarray]) -> list[str]:
    return [f"{name} {list(np.shape(a))}" for name, a in arrays.items()]


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


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
    if result.skipped:
        lines += _row("skipped", ["the scaled gradient was not finite"])
    return "\n".join(lines)
