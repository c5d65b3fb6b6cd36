"""Hessian-vector products by central differences of gradients along one path.

    H v = (g(x + h v) - g(x - h v)) / 2h + O(h^2)

A gradient is that of the program that ran. Along different paths the difference is no derivative of
anything, so x + h v and x - h v are made to follow the path of x. Where a path cannot be followed
(docs/python.md, "Paths"), they run freely, and the step is made smaller until all paths agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping

import numpy as np

from simgrad import errors, path, summary
from simgrad.arrays import Bits, PerStep
from simgrad.constants import element_name
from simgrad.request import Arrays, declarations_of
from simgrad.results import Gradient
from simgrad.v1 import program_pb2

if TYPE_CHECKING:
    from simgrad.client import Client
    from simgrad.world import World

_KINDS = {
    "initial": program_pb2.INPUT_KIND_STATE,
    "params": program_pb2.INPUT_KIND_PARAM,
    "controls": program_pb2.INPUT_KIND_CONTROL,
}
GROUPS = tuple(_KINDS)
# Spacing of the numbers from 1 on, by the format of role dynamics.
_EPSILON = {
    **{"f64": 2.0**-52, "f32": 2.0**-23, "tf32": 2.0**-10, "f16": 2.0**-10, "bf16": 2.0**-7},
    **{"e4m3": 2.0**-3, "e5m2": 2.0**-2},
}
_SMALLER = 8.0
# Options of `gradient` that a rollout does not take, or that do not bear on its path.
_OF_GRADIENTS = ("cotangents", "wrt", "reduction", "loops", "return_tree", "weights", "clip_norm")


@dataclass(repr=False)
class HessianVector:
    """A finished product.

    Attributes:
      initial, params, controls: H v by input name, each with the shape of the input that was sent.
      gradient: the answer at x itself.
      step: h, by which v was multiplied.
      same_path: [N] bool: whether x + h v and x - h v take the path of x by themselves.
      forced: whether they were made to follow it. False: rows of instances whose `same_path` is False, and
        sums over instances among which there are some, are no derivatives.
      evaluations: gradients that were asked for.
    """

    initial: dict[str, np.ndarray]
    params: dict[str, np.ndarray]
    controls: dict[str, np.ndarray]
    gradient: Gradient
    step: float
    same_path: np.ndarray
    forced: bool
    evaluations: int

    def __repr__(self) -> str:
        return summary.of_hessian_vector(self)


def _shifted(value: Any, direction: np.ndarray, by: float) -> Any:
    if isinstance(value, PerStep):
        return PerStep(_shifted(value.array, direction, by))
    return np.asarray(value, np.float64) + by * direction


def _with_defaults(
    world: World, group: str, given: Arrays | None, vector: Mapping[str, Arrays]
) -> Arrays | None:
    """The inputs of a group, and those that the world sends by itself and the vector moves."""
    defaults = world.array_defaults.get(_KINDS[group], {})
    moved = [name for name in vector.get(group, {}) if name in defaults and name not in (given or {})]
    return {**(given or {}), **{name: defaults[name] for name in moved}} if moved else given


def _check_groups(vector: Any) -> None:
    """Raises TypeError or ValueError for what is no vector by group and name."""
    if not isinstance(vector, Mapping):
        raise TypeError(f'vector: directions by group and name, as {{"params": {{"k": 1.0}}}}, not {vector!r}')
    for group, directions in vector.items():
        if group not in GROUPS:
            raise ValueError(f"vector[{group!r}]: one of {', '.join(GROUPS)}")
        if not isinstance(directions, Mapping):
            raise TypeError(f'vector[{group!r}]: directions by name, as {{"k": 1.0}}, not {directions!r}')


def _directions(
    inputs: Mapping[str, Arrays | None], vector: Mapping[str, Arrays]
) -> dict[str, dict[str, np.ndarray]]:
    """The vector as f64, checked against what is sent."""
    directions: dict[str, dict[str, np.ndarray]] = {}
    for group, arrays in vector.items():
        sent = inputs[group] or {}
        for name, direction in arrays.items():
            if name not in sent:
                raise ValueError(f"vector[{group!r}][{name!r}]: no such input is sent in {group}, whose numbers a vector moves")
            value = sent[name]
            if isinstance(value, Bits):
                raise TypeError(f"{group}[{name!r}]: bits cannot be moved; send numbers")
            shape = np.shape(value.array if isinstance(value, PerStep) else value)
            try:
                moved = np.asarray(direction, np.float64)
            except (TypeError, ValueError):
                raise TypeError(f"vector[{group!r}][{name!r}]: numbers, not {direction!r}") from None
            if moved.shape != shape:
                raise ValueError(
                    f"vector[{group!r}][{name!r}] has shape {moved.shape}, the input {shape}"
                )
            directions.setdefault(group, {})[name] = moved
    largest = max((np.abs(d).max(initial=0.0) for g in directions.values() for d in g.values()), default=0.0)
    if not (np.isfinite(largest) and largest > 0):
        raise ValueError("vector must have a number that is not zero, and finite ones only")
    return directions


def _check_reals(world: World, directions: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Raises ValueError for a direction of integers or bools, so far as the world says what its inputs are."""
    declared = declarations_of(world.to_proto().program) if world.has_program else {}
    for group, arrays in directions.items():
        for name in arrays:
            found = declared.get((_KINDS[group], name))
            if found is not None and found.element != program_pb2.ELEMENT_TYPE_REAL:
                raise ValueError(f"vector[{group!r}][{name!r}]: an input of {element_name(found.element)} cannot be moved")


def _chosen_step(
    inputs: Mapping[str, Arrays | None],
    directions: Mapping[str, Mapping[str, np.ndarray]],
    epsilon: float,
) -> float:
    """The step at which rounding and the third derivative err alike: eps^(1/3) |x| / |v|, a power of two."""
    x = v = 0.0
    for group, arrays in directions.items():
        sent: Any = inputs[group]
        for name, direction in arrays.items():
            value = sent[name].array if isinstance(sent[name], PerStep) else sent[name]
            x = max(x, float(np.abs(np.asarray(value, np.float64)).max(initial=0.0)))
            v = max(v, float(np.abs(direction).max(initial=0.0)))
    step = np.cbrt(epsilon) * max(x, 1.0) / v
    return float(2.0 ** np.round(np.log2(step)))


def _is_too_large(error: errors.SimgradError) -> bool:
    """Whether a message was refused for its size, by the client, by the server (of a request, or of a part of its
    answer) or, without a reason, by gRPC. Where the path is not what makes it large, the request without one is
    refused too."""
    return error.reason == "LIMIT_EXCEEDED" or (isinstance(error, errors.ResourceExhausted) and not error.reason)


@dataclass
class _Differences:
    """Gradients around x, in the direction of the vector."""

    client: Client
    world: World
    inputs: Mapping[str, Any]
    directions: Mapping[str, Mapping[str, np.ndarray]]
    options: dict[str, Any]

    def at(self, by: float) -> dict[str, Any]:
        """The inputs x + by v."""
        moved: dict[str, dict[str, Any]] = {}
        for group, arrays in self.inputs.items():
            if arrays is None:
                continue
            moved[group] = dict(arrays)
            for name, direction in self.directions.get(group, {}).items():
                moved[group][name] = _shifted(moved[group][name], direction, by)
        return moved

    def _gradient(self, inputs: Mapping[str, Any], **more: Any) -> Gradient:
        gradient: Gradient = self.client.gradient(self.world, **inputs, **{**self.options, **more})
        return gradient

    def centre(self, along: bool | path.Path) -> Gradient:
        """The gradient at x, with its path where the server can tell it."""
        try:
            return self._gradient(self.inputs, path=along)
        except errors.SimgradError as error:
            if along is not True or not path.is_refused(error):
                raise
        return self._gradient(self.inputs)

    def along(self, taken: path.Path, step: float) -> tuple[Gradient, Gradient, np.ndarray]:
        """Gradients at x + h v and x - h v, both along a path, and which instances take it by themselves."""
        # Diagnostics tell where tests disagree.
        above, below = (
            self._gradient(self.at(by), path=taken, diagnostics="summary") for by in (step, -step)
        )
        same = np.ones(above.ok.shape, bool)
        for by, gradient in ((step, above), (-step, below)):
            if any(site.count.any() for site in gradient.forced.values()):
                same &= taken.first_difference(self._free(by)).step < 0
        return above, below, same

    def _free(self, by: float) -> path.Path:
        """The path that x + by v takes by itself."""
        own = {k: v for k, v in self.options.items() if k not in _OF_GRADIENTS}
        options = {**own, "diagnostics": "off", "record": ()}
        found = self.client.rollout(self.world, **self.at(by), path=True, **options).path
        assert found is not None  # the path of x was told
        return found

    def freely(
        self, centre: Gradient, step: float, tries: int
    ) -> tuple[Gradient, Gradient, np.ndarray, float, int]:
        """Gradients at x + h v and x - h v by an h at which all paths agree, or the last one tried; which
        instances agree; h; how many were tried."""
        for tried in range(1, tries + 1):
            above, below = (self._gradient(self.at(by)) for by in (step, -step))
            same = (above.path_signatures == centre.path_signatures) & (
                below.path_signatures == centre.path_signatures
            )
            if same.all() or tried == tries:
                break
            step /= _SMALLER
        return above, below, same, step, tried


def hessian_vector(
    client: Client,
    world: World,
    vector: Mapping[str, Arrays],
    inputs: Mapping[str, Arrays | None],
    step: float | None,
    tries: int,
    **options: Any,
) -> HessianVector:
    """Computes what Client.hessian_vector returns."""
    if tries < 1:
        raise ValueError(f"tries {tries}: at least 1")
    if step is not None and not (np.isfinite(step) and step > 0):
        raise ValueError(f"step {step}: must be finite and above 0")
    if not isinstance(options.get("objective") or "", str):
        raise TypeError("objective: hessian_vector is of one objective; call it for each")
    _check_groups(vector)
    inputs = {group: _with_defaults(world, group, arrays, vector) for group, arrays in inputs.items()}
    directions = _directions(inputs, vector)
    _check_reals(world, directions)
    asked = options.pop("path", False)
    given = asked if isinstance(asked, path.Path) else None
    around = _Differences(client, world, inputs, directions, options)
    centre = around.centre(True if given is None else given)
    if step is None:
        format = centre.program.policy.roles["dynamics"].format
        step = _chosen_step(inputs, directions, _EPSILON[format])
    taken, forced, tried = given or centre.path, False, 0
    if taken is not None:
        try:
            above, below, same = around.along(taken, step)
            forced, tried = True, 1
        except errors.SimgradError as error:
            if given is not None or not (path.is_refused(error) or _is_too_large(error)):
                raise
    if not forced:
        above, below, same, step, tried = around.freely(centre, step, tries)
    products = {
        group: {
            name: (np.asarray(g, np.float64) - getattr(below, group)[name]) / (2 * step)
            for name, g in getattr(above, group).items()
            if g is not None
        }
        for group in GROUPS
    }
    return HessianVector(
        **products,
        gradient=centre,
        step=step,
        same_path=same,
        forced=forced,
        evaluations=1 + 2 * tried,
    )
