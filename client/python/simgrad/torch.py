"""A rollout as a differentiable PyTorch function of its inputs.

    out = simgrad.torch.rollout(client, world, steps=100, initial={"y": y0, "v": v0},
                                params={"k": k}, record=["y"])
    loss = ((out.trajectory["y"] - observed) ** 2).mean()
    loss.backward()                      # k.grad, y0.grad

The backward pass sends the cotangents of final states and trajectories, and the server recomputes
the forward pass to the same bits: nothing is kept between the two calls. Second derivatives are not
available.
Works with torch 1.13 and later, with tensors on any device (they travel through the CPU).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

import numpy as np
import torch

from simgrad.arrays import Bits, PerStep
from simgrad.client import Client
from simgrad.policy import Policy
from simgrad.results import Gradient, Rollout
from simgrad.world import World

_GROUPS = ("initial", "params", "controls")
_PREFIX = {"initial": "state", "params": "param", "controls": "control"}


@dataclass
class TorchRollout:
    """Tensors that know their gradient.

    Attributes:
      state: final states, [N, field shape]. trajectory: recorded values, [N, time, field shape].
      info: the Rollout with everything else: sites, path signature, program, ok.
      calls: the Gradient answers of backward passes so far (connected, gated_by, loss scale, ...).
    """

    state: dict[str, torch.Tensor]
    trajectory: dict[str, torch.Tensor]
    info: Rollout
    calls: list[Gradient]


def rollout(
    client: Client,
    world: World,
    *,
    steps: int,
    initial: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    controls: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    policy: Policy | str | None = None,
    record: Sequence[str] = (),
    **options: Any,
) -> TorchRollout:
    """Unrolls a world; arguments as Client.rollout, where inputs may be tensors.

    Shapes: as Client.rollout; PerStep may hold a tensor. Tensors keep their dtype on the way to the server; results are f64 or
      f32 and gradients come back in the dtype and on the device of their input.
    Errors: those of Client.rollout, here and in the backward pass.
    """
    groups = {"initial": initial or {}, "params": params or {}, "controls": controls or {}}
    inputs = [(group, name, value) for group in _GROUPS for name, value in groups[group].items()]
    if options.get("raw"):
        raise ValueError("raw=True gives bits, and a tensor holds numbers: use Client.rollout")
    tensors = [t for t in (_tensor_in(value) for _, _, value in inputs) if t is not None]
    fixed = dict(
        steps=steps,
        data={k: _to_wire(v) for k, v in (data or {}).items()},
        policy=policy,
        record=list(record),
        **options,
    )
    work = _Work(client, world, inputs, fixed)
    outputs = _Function.apply(work, *tensors)
    states = dict(zip(work.result.state, outputs))
    trajectory = dict(zip(work.result.trajectory, outputs[len(states) :]))
    return TorchRollout(states, trajectory, work.result, work.calls)


class _Work:
    """One rollout: what was sent, so that the backward pass can send it again."""

    def __init__(
        self,
        client: Client,
        world: World,
        inputs: list[tuple[str, str, Any]],
        fixed: dict[str, Any],
    ):
        self.client = client
        self.world = world
        self.inputs = inputs
        self.fixed = fixed
        self._result: Rollout | None = None
        self.calls: list[Gradient] = []

    @property
    def result(self) -> Rollout:
        assert self._result is not None, "forward comes first"
        return self._result

    def tensor_inputs(self) -> list[tuple[str, str]]:
        return [
            (group, name) for group, name, value in self.inputs if _tensor_in(value) is not None
        ]

    def groups(self) -> dict[str, Any]:
        groups: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS}
        for group, name, value in self.inputs:
            groups[group][name] = _to_wire(value)
        return groups

    def forward(self) -> tuple[torch.Tensor, ...]:
        self._result = self.client.rollout(self.world, **self.groups(), **self.fixed)
        arrays = (*self.result.state.values(), *self.result.trajectory.values())
        return tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)

    def backward(
        self, cotangents: Sequence[torch.Tensor | None], wanted: Sequence[bool]
    ) -> dict[str, dict[str, np.ndarray]]:
        state_count = len(self.result.state)
        names = [*self.result.state, *self.result.trajectory]
        state = {n: _to_wire(c) for n, c in zip(names, cotangents[:state_count]) if c is not None}
        trajectory = {
            n: _to_wire(c)
            for n, c in zip(names[state_count:], cotangents[state_count:])
            if c is not None
        }
        wrt = [
            f"{_PREFIX[group]}.{name}"
            for (group, name), w in zip(self.tensor_inputs(), wanted)
            if w
        ]
        fixed = {**self.fixed, "record": (), "progress": False}
        gradient = self.client.gradient(
            self.world,
            **self.groups(),
            **fixed,
            wrt=wrt,
            cotangents={"state": state, "trajectory": trajectory},
        )
        self.calls.append(gradient)
        return {
            "initial": gradient.initial,
            "params": gradient.params,
            "controls": gradient.controls,
        }


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: _Work, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.work = work
        ctx.like = [(t.dtype, t.device) for t in tensors]
        ctx.set_materialize_grads(False)
        outputs = work.forward()
        ctx.mark_non_differentiable(*[o for o in outputs if not o.is_floating_point()])
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:]
        if not any(wanted) or all(c is None for c in cotangents):
            return (None,) * (1 + len(wanted))
        gradients = ctx.work.backward(cotangents, wanted)
        answers = []
        for (group, name), (dtype, device), want in zip(ctx.work.tensor_inputs(), ctx.like, wanted):
            value = torch.from_numpy(np.array(gradients[group][name])) if want else None
            answers.append(None if value is None else value.to(dtype=dtype, device=device))
        return (None, *answers)


def _tensor_in(value: Any) -> torch.Tensor | None:
    """The tensor that an input is, or that has a value per step; None for other arrays."""
    if isinstance(value, PerStep):
        value = value.array
    return value if isinstance(value, torch.Tensor) else None


def _to_wire(value: Any) -> Any:
    """Tensors as arrays of their own dtype; bf16, which NumPy lacks, as bits."""
    if isinstance(value, PerStep):
        return PerStep(_to_wire(value.array))
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        return Bits(value.view(torch.int16).numpy().view(np.uint16), "bf16")
    return value.numpy()
