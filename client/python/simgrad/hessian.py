"""Hessian-vector products by central differences of gradients along one path.

    H v = (g(x + h v) - g(x - h v)) / 2h + O(h^2)

A gradient is that of the program that ran. Where x + h v or x - h v takes another path than x, the
difference is no derivative of anything: the step is made smaller until all paths agree, and the
answer says for which instances they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Mapping

import numpy as np

from simgrad import summary
from simgrad.arrays import Bits, PerStep
from simgrad.request import Arrays
from simgrad.results import Gradient

if TYPE_CHECKING:
    from simgrad.client import Client
    from simgrad.world import World

GROUPS = ("initial", "params", "controls")
# Spacing of the numbers from 1 on, by the format of role dynamics.
_EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
_SMALLER = 8.0


@dataclass(repr=False)
class HessianVector:
    """A finished product.

    Attributes:
      initial, params, controls: H v by input name, each with the shape of the input that was sent.
      gradient: the answer at x itself.
      step: h, by which v was multiplied.
      same_path: [N] bool: whether x + h v and x - h v take the path of x. Rows of instances where they
        do not, and sums over instances among which there are some, are no derivatives.
      evaluations: gradients that were asked for.
    """

    initial: dict[str, np.ndarray]
    params: dict[str, np.ndarray]
    controls: dict[str, np.ndarray]
    gradient: Gradient
    step: float
    same_path: np.ndarray
    evaluations: int

    def __repr__(self) -> str:
        return summary.of_hessian_vector(self)


def _shifted(value: Any, direction: np.ndarray, by: float) -> Any:
    if isinstance(value, PerStep):
        return PerStep(_shifted(value.array, direction, by))
    return np.asarray(value, np.float64) + by * direction


def _directions(
    inputs: Mapping[str, Arrays | None], vector: Mapping[str, Arrays]
) -> dict[str, dict[str, np.ndarray]]:
    """The vector as f64, checked against what is sent."""
    unknown = sorted(set(vector) - set(GROUPS))
    if unknown:
        raise ValueError(f"vector[{unknown[0]!r}]: one of {', '.join(GROUPS)}")
    directions: dict[str, dict[str, np.ndarray]] = {}
    for group, arrays in vector.items():
        sent = inputs[group] or {}
        for name, direction in arrays.items():
            if name not in sent:
                raise ValueError(f"vector[{group!r}][{name!r}]: {group} has no such input")
            value = sent[name]
            if isinstance(value, Bits):
                raise TypeError(f"{group}[{name!r}]: bits cannot be moved; send numbers")
            shape = np.shape(value.array if isinstance(value, PerStep) else value)
            moved = np.asarray(direction, np.float64)
            if moved.shape != shape:
                raise ValueError(
                    f"vector[{group!r}][{name!r}] has shape {moved.shape}, the input {shape}"
                )
            directions.setdefault(group, {})[name] = moved
    largest = max((np.abs(d).max(initial=0.0) for g in directions.values() for d in g.values()), default=0.0)
    if not (np.isfinite(largest) and largest > 0):
        raise ValueError("vector must have a number that is not zero, and finite ones only")
    return directions


def _chosen_step(
    inputs: Mapping[str, Arrays | None],
    directions: Mapping[str, Mapping[str, np.ndarray]],
    epsilon: float,
) -> float:
    """Of the size at which rounding and the third derivative err alike: eps^(1/3), by |x| / |v|."""
    x = v = 0.0
    for group, arrays in directions.items():
        sent: Any = inputs[group]
        for name, direction in arrays.items():
            value = sent[name].array if isinstance(sent[name], PerStep) else sent[name]
            x = max(x, float(np.abs(np.asarray(value, np.float64)).max(initial=0.0)))
            v = max(v, float(np.abs(direction).max(initial=0.0)))
    step = np.cbrt(epsilon) * max(x, 1.0) / v
    return float(2.0 ** np.round(np.log2(step)))


def hessian_vector(
    client: Client,
    world: World,
    vector: Mapping[str, Arrays],
    inputs: Mapping[str, Arrays | None],
    step: float | None,
    tries: int,
    **options: Any,
) -> HessianVector:
    """What Client.hessian_vector returns."""
    if tries < 1:
        raise ValueError(f"tries {tries}: at least 1")
    if step is not None and not (np.isfinite(step) and step > 0):
        raise ValueError(f"step {step}: must be finite and above 0")
    directions = _directions(inputs, vector)
    ask: Callable[..., Gradient] = client.gradient
    centre = ask(world, **inputs, **options)
    if step is None:
        format = centre.program.policy.roles["dynamics"].format
        step = _chosen_step(inputs, directions, _EPSILON[format])

    def at(by: float) -> Gradient:
        moved: dict[str, dict[str, Any]] = {}
        for group, arrays in inputs.items():
            moved[group] = dict(arrays or {})
            for name, direction in directions.get(group, {}).items():
                moved[group][name] = _shifted(moved[group][name], direction, by)
        return ask(world, **moved, **options)

    for tried in range(1, tries + 1):
        above, below = at(step), at(-step)
        same = (above.path_signatures == centre.path_signatures) & (
            below.path_signatures == centre.path_signatures
        )
        if same.all() or tried == tries:
            break
        step /= _SMALLER
    products = {
        group: {
            name: (np.asarray(g, np.float64) - getattr(below, group)[name]) / (2 * step)
            for name, g in getattr(above, group).items()
        }
        for group in GROUPS
    }
    return HessianVector(
        **products, gradient=centre, step=step, same_path=same, evaluations=1 + 2 * tried
    )
