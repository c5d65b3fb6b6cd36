"""A module of PyTorch as a controller of a world: its parameters are the weights."""

from __future__ import annotations

from typing import Any, ClassVar, Mapping, Sequence

import numpy as np
import torch

from simgrad.controllers import Controller, Readable, Shapes
from simgrad.expression import Expression
from simgrad.numpy_shapes import concatenate
from simgrad.request import names_of
from simgrad.torch_layers import check, written
from simgrad.world_function import Param, Weights


class ModuleController(Controller):
    """The controller that `simgrad.torch.controller` returns.

    Attributes:
      module: the module itself.
    """

    gives_reals_alone: ClassVar[bool] = True

    def __init__(
        self,
        module: torch.nn.Module,
        observe: Sequence[str] | None,
        name: str,
        per_instance: Sequence[str] = (),
    ):
        check(module)
        self.module = module
        self.name = name
        self.observe = observe
        self._parameters = self._now()
        if unknown := [n for n in per_instance if n not in self._parameters]:
            raise ValueError(
                f"per_instance: no parameter {', '.join(unknown)}; there are {', '.join(self._parameters)}"
            )
        self.weights: dict[str, Param] = {
            n: (Param if n in per_instance else Weights)(tuple(p.shape))
            for n, p in self._parameters.items()
        }

    @property
    def parameters(self) -> dict[str, Any]:
        """The module's parameters themselves, by the names of the weights.

        Raises RuntimeError where the module has others than when the controller was made.
        """
        then, now = self._parameters, self._now()
        if changed := [n for n in {**then, **now} if then.get(n) is not now.get(n)]:
            raise RuntimeError(
                f"{', '.join(changed)}: the module of this controller has other parameters than when "
                "simgrad.torch.controller took it, and its world has the old ones. Give them numbers in place, as "
                "load_state_dict without assign=True does, or make the controller and its world "
                "(simgrad.compose) when the module has the parameters that it keeps"
            )
        return dict(then)

    def _now(self) -> dict[str, Any]:
        """By the name of a parameter; one that stands in several layers has one name."""
        prefix = f"{self.name}." if self.name else ""
        return {prefix + n: parameter for n, parameter in self.module.named_parameters()}

    def values(self) -> Mapping[str, Any]:
        return {n: as_numbers(parameter) for n, parameter in self.parameters.items()}

    def controls(
        self, readable: Readable, weights: Mapping[str, Expression], shapes: Shapes
    ) -> Mapping[str, Any]:
        names = readable.states if self.observe is None else self.observe
        of_parameter = {id(parameter): weights[n] for n, parameter in self.parameters.items()}
        parts = [readable[n].astype("real").reshape(-1) for n in names]
        if not parts:
            raise ValueError(f"{self.name or 'the module'} observes nothing")
        x = written(
            self.module, concatenate(parts), lambda parameter: of_parameter[id(parameter)]
        )
        counts = {n: int(np.prod(shape)) for n, shape in shapes.items()}
        if x.shape != (sum(counts.values()),):
            raise ValueError(
                f"{self.name or 'the module'} gives {x.size} numbers; {', '.join(shapes)} takes "
                f"{sum(counts.values())}"
            )
        made, at = {}, 0
        for n, count in counts.items():
            made[n] = x[at : at + count].reshape(shapes[n])
            at += count
        return made


def controller(
    module: torch.nn.Module,
    *,
    observe: str | Sequence[str] | None = None,
    name: str = "policy",
    per_instance: str | Sequence[str] = (),
) -> ModuleController:
    """A module of PyTorch as a controller, for `simgrad.compose`.

        policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
        closed = sg.compose(pendulum, simgrad.torch.controller(policy))
        out = simgrad.torch.rollout(client, closed, steps=100, initial=start, record=["angle"])
        out.trajectory["angle"].square().mean().backward()     # policy.parameters() have .grad

    The module reads one vector: what it observes, flat, one after the other. Its output is a vector of
    the controls' numbers, in the order in which `compose` names them. Parameters keep PyTorch's shapes,
    and one that several layers share is one weight. They are sg.Weights, which all instances share. Requests
    send the numbers that they have at that time; `simgrad.torch.rollout` sends the parameters themselves,
    which get the gradients.

    Args:
      module: nn.Sequential of Linear, LayerNorm, Identity, Dropout that does nothing and activations (an error lists
        them), nested or alone. Later changes of its layers change no world; calls of a world raise RuntimeError
        where parameters were replaced, added or taken away. Softplus with a threshold from 20 on, the default,
        has none.
      observe: states, observables and inputs by name; None: every real state, in their order.
      name: in front of the names of weights: "policy.0.weight".
      per_instance: names of parameters that requests may send for each instance; they are sg.Param.
    Errors: TypeError for a module that has no translation; ValueError for a name in `per_instance` that no
      parameter has, and, of compose, for sizes that do not fit and controls that are no reals.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module: a torch.nn.Module, not {module!r}")
    if not isinstance(name, str):
        raise TypeError(f"name: a string, not {name!r}")
    return ModuleController(
        module,
        None if observe is None else names_of("observe", "states, observables and inputs", observe),
        name,
        names_of("per_instance", "parameters", per_instance),
    )


def as_numbers(tensor: torch.Tensor) -> Any:
    """An array of the tensor's dtype; of bf16, which NumPy lacks, of f32."""
    value = tensor.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
