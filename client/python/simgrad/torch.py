"""A rollout as a differentiable PyTorch function of its inputs.

    out = simgrad.torch.rollout(client, world, steps=100, initial={"y": y0, "v": v0},
                                params={"k": k}, record=["y"])
    loss = ((out.trajectory["y"] - observed) ** 2).mean()
    loss.backward()                      # k.grad, y0.grad

Every real input is differentiable: states, params, controls, data, and the weights of an objective.
`controller` makes a module of PyTorch the controller of a world (`simgrad.compose`); its parameters
are sent by themselves, and get their gradients.

Where an input needs a gradient, the server keeps the rollout, and the backward pass reverses it, as a
rule without simulating again. What the server does not keep any more it runs again, to the same bits. Second
derivatives are not available, nor are the transforms of torch.func; torch.compile leaves a rollout out.
Works with torch 1.13 and later, with tensors on any device (they travel through the CPU).
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence, TypeVar, cast

import numpy as np

try:
    import torch
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ImportError("simgrad.torch makes functions of PyTorch, which is not installed: pip install torch") from _error

from simgrad.client import Client
from simgrad.composition import ComposedWorld
from simgrad.data_as_controls import data_as_controls
from simgrad.kept import Keep, KeptRun, Sent
from simgrad.loop_derivative import Implicit, Truncated
from simgrad.policy import Policy
from simgrad.request import declarations_of, names_of
from simgrad.results import Gradient, Rollout
from simgrad.torch_controller import ModuleController, controller
from simgrad.torch_tensors import needs_gradient, numbers, stacked, tensor_in, tensor_of, to_wire
from simgrad.v1 import program_pb2
from simgrad.world import World

__all__ = ["ModuleController", "TorchRollout", "controller", "rollout"]

F = TypeVar("F", bound=Callable[..., Any])

_KINDS = {
    "initial": program_pb2.INPUT_KIND_STATE,
    "params": program_pb2.INPUT_KIND_PARAM,
    "controls": program_pb2.INPUT_KIND_CONTROL,
}
_GROUPS = tuple(_KINDS)
_OF_VJP = ("on_nonfinite", "timeout", "retry", "loops", "reduction")  # of the options of a gradient, those of a vjp
_PREFIX = {"initial": "state", "params": "param", "controls": "control"}
_REFUSED = {
    "raw": "raw=True gives bits, and a tensor holds numbers: use Client.rollout",
    "keep": "a rollout is kept where a tensor needs a gradient; `loops` says how it goes through loops",
}


@dataclass
class TorchRollout:
    """Tensors that know their gradient.

    Attributes:
      state: final states, [N, field shape]. trajectory: recorded values, [N, time, field shape]. Numbers of u32 are
        in i64, as torch has none of them; other arrays share their memory with those of `info`.
      info: the Rollout with everything else: sites, path signature, program, ok.
      calls: the Gradient answers of backward passes so far (connected, gated_by, loss scale, reused, ...).
      values: of the objective, by instance, [N], f64; None without one. Where the loss's derivative by one is not
        finite, the gradients of that instance are NaN, and those that it shares with others, unless reduction leaves it out.
      value: the sum of weight times value, as the server adds it up, f64; None without an objective.
    """

    state: dict[str, torch.Tensor]
    trajectory: dict[str, torch.Tensor]
    info: Rollout
    calls: list[Gradient]
    values: torch.Tensor | None = None
    value: torch.Tensor | None = None


def _uncompiled(function: F) -> F:
    """The function as torch.compile leaves it alone. The compiler is asked for that once it is there: its import takes
    a second."""
    alone: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*arguments, **options)
        if not alone:
            alone.append(torch._dynamo.disable(function))
        return alone[0](*arguments, **options)

    return cast(F, called)


@_uncompiled
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
    objective: str = "",
    weights: Any = None,
    loops: Mapping[str, Truncated | Implicit] | None = None,
    reduction: str = "all",
    **options: Any,
) -> TorchRollout:
    """Unrolls a world; arguments as Client.rollout, where inputs may be tensors, and loops and reduction of
    gradients, as Client.gradient.

    Shapes: as Client.rollout; PerStep may hold a tensor.
    Formats: tensors keep their dtype on the way to the server. Results are f64 where the policy computes
      them in f64, else f32, whatever the tensors are; gradients come back in the dtype and on the
      device of their input. policy=None: f64 where an input is a tensor of f64, one number too; else f32.
    Scales: a factor of the loss (torch's GradScaler) does not reach the reverse pass through `value` and `values`,
      whose derivatives are weights that are applied at its end; policy.loss_scale and dynamic_loss_scale do.
    Data that needs a gradient is sent as a control, which it then is for the program and in `calls`; of a
      built-in world the program is asked for first.
    Cost: a backward pass is one call; two where the loss depends both on states or trajectories and on
      an objective with weights that are not 1. It simulates again, to the same bits, where the loss leaves out
      a recorded observable, of a rollout with an objective reads states or trajectories alone, or of one with
      margins.
    Errors: those of Client.rollout, here and in the backward pass; RuntimeError there where a tensor of states,
      params, controls or weights was changed in place in between, and, as PyTorch raises it, for a second backward
      pass behind one without retain_graph; TypeError for inputs that are no dicts, for a list of tensors that need
      gradients, and for tensors whose numbers cannot be read (sparse ones, or those in a transform of torch.func).
      Changes of which PyTorch tells nothing, through `.data` or memory shared with NumPy, reach no gradient: it is of
      the numbers that were sent.
    """
    for refused, why in _REFUSED.items():
        if options.pop(refused, None):
            raise ValueError(f"{refused}: {why}")
    for group, given in (("initial", initial), ("params", params), ("controls", controls), ("data", data)):
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"{group} are arrays by name, a dict, not {type(given).__name__}")
    given_by_name = (initial, {**_parameters(world), **(params or {})}, controls, data)
    initial, params, controls, data = [{n: stacked(n, x) for n, x in (g or {}).items()} for g in given_by_name]
    weights = stacked("weights", weights)
    moved = [n for n, x in data.items() if needs_gradient(x)]
    if moved:
        world = data_as_controls(client, world, moved, **_how(options))
        controls.update({n: data.pop(n) for n in moved})
    groups = {"initial": initial, "params": params, "controls": controls}
    inputs = [(group, name, value) for group in _GROUPS for name, value in groups[group].items()]
    found = [tensor_in(value) for _, _, value in inputs]
    tensors = [t for t in found if t is not None]
    if policy is None and any(
        t.dtype == torch.float64 for t in (*tensors, *map(tensor_in, data.values())) if t is not None
    ):
        policy = "f64"
    if isinstance(weights, torch.Tensor):
        tensors.append(weights)
    wanted = [t.requires_grad and torch.is_grad_enabled() for t in tensors]
    request = dict(
        steps=steps,
        **{group: {name: to_wire(name, v) for name, v in given.items()} for group, given in groups.items()},
        data={name: to_wire(name, v) for name, v in data.items()},
        policy=policy,
        record=list(names_of("record", "states and observables", record)),
        objective=objective,
        weights=numbers("weights", weights),
        **options,
    )
    of_tensors = [(group, name) for (group, name, _), t in zip(inputs, found) if t is not None]
    of_gradients = {**{n: options[n] for n in _OF_VJP if n in options}, "loops": loops, "reduction": reduction}
    work = _Work(client, world, request, of_tensors, of_gradients)
    work.keep_for(wanted)
    outputs = _Function.apply(work, *tensors)
    count = len(work.result.state)
    states = dict(zip(work.result.state, outputs))
    trajectory = dict(zip(work.result.trajectory, outputs[count:]))
    made = TorchRollout(states, trajectory, work.result, work.calls)
    if objective:
        made.values, made.value = outputs[-2:]
    return made


class _Work:
    """One rollout. What was sent is kept once, with the run: where the backward pass runs it again, it sends that."""

    def __init__(
        self,
        client: Client,
        world: World,
        request: dict[str, Any],
        of_tensors: list[tuple[str, str]],
        of_gradients: dict[str, Any],
    ):
        """Args: of_tensors: inputs that are tensors, by group and name. of_gradients: options of a gradient."""
        self.client = client
        self.world = world
        self.objective: str = request["objective"]
        self.of_tensors = of_tensors
        self.of_gradients = of_gradients
        self._request = request  # until it is sent
        self._keep: Keep | None = None
        self._sent: KeptRun | None = None
        self._result: Rollout | None = None
        self.calls: list[Gradient] = []

    @property
    def result(self) -> Rollout:
        assert self._result is not None, "forward comes first"
        return self._result

    @property
    def sent(self) -> KeptRun:
        assert self._sent is not None, "no tensor needs a gradient"
        return self._sent

    def keep_for(self, wanted: Sequence[bool]) -> None:
        """The rollout will be asked for gradients by the tensors that are wanted."""
        wrt = self._wrt(wanted)
        if wrt and self._request.get("margins"):  # a server keeps a run or gives margins
            self._keep = Sent()
        elif wrt:
            # A loss by an objective seldom reads trajectories too.
            record = () if self.objective else self._request["record"]
            whole = _names_of_whole_numbers(self.world)
            trajectory = [name for name in record if name not in whole]
            self._keep = Keep(wrt=wrt, trajectory=trajectory, loops=self.of_gradients["loops"])

    def _wrt(self, wanted: Sequence[bool]) -> list[str]:
        return [f"{_PREFIX[group]}.{name}" for (group, name), w in zip(self.of_tensors, wanted) if w]

    def forward(self) -> tuple[torch.Tensor, ...]:
        request, self._request = self._request, {}
        self._result = self.client.rollout(self.world, **request, keep=self._keep or False)
        self._sent = self._result.kept
        if self._keep is not None and not self._keep.is_of_server:
            self._result.kept = None
        arrays = [*self.result.state.values(), *self.result.trajectory.values()]
        if self.objective:
            # A copy: the gradient of the weights reads them, whatever the caller does with the tensor.
            arrays += [np.array(self.result.values), np.asarray(self.result.value, np.float64)]
        return tuple(tensor_of(a) for a in arrays)

    def backward(
        self, cotangents: Sequence[torch.Tensor | None], wanted: Sequence[bool]
    ) -> dict[str, dict[str, np.ndarray]]:
        """Gradients by group and name, of the inputs that are wanted."""
        wrt = self._wrt(wanted)
        total: dict[str, dict[str, np.ndarray]] = {group: {} for group in _GROUPS}
        bad = np.zeros(self.result.instances, bool)
        for asked in self._asked(cotangents) if wrt else ():
            if "weights" in asked:
                bad = ~np.isfinite(asked["weights"])
                asked["weights"] = np.where(bad, 0.0, asked["weights"])
            how = {**self.of_gradients, "wrt": wrt, **asked}
            objective = how.pop("objective", "")
            if self.result.kept is not None and objective == self.objective:
                gradient = self.result.vjp(**{"weights": None, **how})
            else:
                gradient = self.sent.gradient(objective=objective, **how)
            self.calls.append(gradient)
            for group, into in total.items():
                for name, value in getattr(gradient, group).items():
                    with np.errstate(invalid="ignore"):  # +inf and -inf make NaN, as in torch
                        into[name] = into[name] + value if name in into else value
        return self._spoiled(total, bad) if bad.any() else total

    def _spoiled(self, gradients: dict[str, dict[str, np.ndarray]], bad: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
        """Gradients by a loss that is not finite in some instances: no request takes such a weight."""
        program = self.world.program
        if program is None:  # of a built-in world
            program = self.client.program(self.world, **_how(self.of_gradients)).source
        declared = declarations_of(program)
        for group, arrays in gradients.items():
            sent = {given.name: given for given in getattr(self.sent.spec, group)}
            for name, value in arrays.items():
                arrays[name] = value = np.array(value)
                if len(sent[name].tensor.shape) > declared[_KINDS[group], name].rank + sent[name].per_step:
                    value[bad] = np.nan
                elif self.of_gradients["reduction"] != "finite_only":
                    value[...] = np.nan
        return gradients

    def _asked(self, cotangents: Sequence[torch.Tensor | None]) -> list[dict[str, Any]]:
        """The arguments of each call for a gradient. Weights multiply cotangents too, so an objective with
        weights has a call of its own."""
        state_count = len(self.result.state)
        names = [*self.result.state, *self.result.trajectory]
        state = {n: to_wire(n, c) for n, c in zip(names, cotangents[:state_count]) if c is not None}
        trajectory = {
            n: to_wire(n, c)
            for n, c in zip(names[state_count:], cotangents[state_count:])
            if c is not None
        }
        asked: list[dict[str, Any]] = []
        if state or trajectory:
            asked.append(dict(cotangents={"state": state, "trajectory": trajectory}))
        weights = self._weights_of(cotangents[len(names) :])
        if weights is not None and asked and bool((weights == 1).all()):
            asked[0].update(objective=self.objective)
        elif weights is not None:
            asked.append(dict(objective=self.objective, weights=weights))
        return asked

    def _weights_of(self, cotangents: Sequence[torch.Tensor | None]) -> np.ndarray | None:
        """The derivative of the loss by the value of each instance; None where it has none."""
        if all(c is None for c in cotangents):
            return None
        values, value = cotangents
        total = np.zeros(self.result.instances)
        if values is not None:
            total += values.detach().cpu().numpy()
        if value is not None:
            total += value.item() * (1.0 if self.sent.weights is None else self.sent.weights)
        return total

    def gradient_of_weights(self, cotangent: torch.Tensor | None) -> np.ndarray:
        """The gradient of `value` by the weights; `value` is the sum of weight times value. It is 0 where the loss
        does not depend on `value`, also of an instance whose value is not finite."""
        values, slope = np.asarray(self.result.values), 0.0 if cotangent is None else cotangent.item()
        return values * slope if slope else np.zeros_like(values)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: _Work, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.work = work
        ctx.like = [(t.dtype, t.device, t.shape) for t in tensors]
        # Those of inference mode cannot be saved, and need no gradient.
        ctx.save_for_backward(*[t for t in tensors if not t.is_inference()])
        ctx.set_materialize_grads(False)
        outputs = work.forward()
        ctx.mark_non_differentiable(*[o for o in outputs if not o.is_floating_point()])
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        given = [t for t in (*_Function.saved(ctx), *cotangents) if t is not None]
        with torch.no_grad():
            answers = _Function.gradients(ctx, cotangents)
        torch.autograd.Variable._execution_engine.queue_callback(lambda: _Function.let_go(ctx))
        if not torch.is_grad_enabled():
            return answers
        # They depend on inputs and cotangents, and torch must not take them for constants.
        return tuple(None if x is None else _Once.apply(x, *given) for x in answers)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        raise RuntimeError(
            "simgrad.torch.rollout has no forward mode (torch.func.jvp, torch.autograd.forward_ad): call backward()"
        )

    @staticmethod
    def saved(ctx: Any) -> Sequence[torch.Tensor]:
        """The inputs. Raises RuntimeError where a backward pass has let them go, or one was changed in place."""
        try:
            tensors: Sequence[torch.Tensor] = ctx.saved_tensors
        except RuntimeError as error:
            if "inplace" not in str(error):
                raise
            raise RuntimeError(
                "an input of simgrad.torch.rollout was changed in place before its backward pass"
            ) from error
        return tensors

    @staticmethod
    def let_go(ctx: Any) -> None:
        """Frees what was sent and received, where the backward pass that has ended let the inputs go."""
        try:
            ctx._raw_saved_tensors  # not saved_tensors: those that hooks hold may be read once
        except RuntimeError:
            ctx.work = None

    @staticmethod
    def gradients(ctx: Any, cotangents: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
        work, wanted = ctx.work, ctx.needs_input_grad[1:]
        if not any(wanted) or all(c is None for c in cotangents):
            return (None,) * (1 + len(wanted))
        gradients = work.backward(cotangents, wanted)
        found = [gradients[group].get(name) for group, name in work.of_tensors]
        if len(found) < len(wanted):
            found.append(work.gradient_of_weights(cotangents[-1]) if work.objective else None)
        answers = [
            torch.from_numpy(np.array(value)).to(dtype=dtype, device=device).reshape(shape)
            if want and value is not None
            else None
            for value, (dtype, device, shape), want in zip(found, ctx.like, wanted)
        ]
        return (None, *answers)


class _Once(torch.autograd.Function):
    """A gradient that cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        raise RuntimeError(
            "simgrad.torch.rollout has first derivatives only; Client.hessian_vector gives products with second ones"
        )


def _parameters(world: World) -> dict[str, Any]:
    """The parameters of the modules that control a world, themselves."""
    controllers = world.controllers if isinstance(world, ComposedWorld) else ()
    modules = [c for c in controllers if isinstance(c, ModuleController)]
    return {name: p for module in modules for name, p in module.parameters.items()}


def _names_of_whole_numbers(world: World) -> frozenset[str]:
    """The states and observables of a program that are no reals, and have no cotangents."""
    program = world.program
    if program is None:  # a built-in world has none
        return frozenset()
    states = [(i.name, i.value) for i in program.inputs if i.kind == program_pb2.INPUT_KIND_STATE]
    known = [*states, *((e.name, e.value) for e in program.exports)]
    return frozenset(n for n, value in known if program.values[value].element != program_pb2.ELEMENT_TYPE_REAL)


def _how(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("timeout", "retry") if name in options}
