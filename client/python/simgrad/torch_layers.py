"""Layers of PyTorch as operations of a world: vectors in, vectors out, one instance at a time."""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping

from torch import nn

from simgrad.expression import Expression
from simgrad.functions import custom_vjp
from simgrad.numpy_arithmetic import clip

Weight = Callable[[Any], Expression]  # of a parameter of the module


def written(module: Any, x: Expression, weight: Weight, path: str = "") -> Expression:
    """Writes what a module computes of the vector x. The modules inside are written in their order.

    Errors: ValueError for a layer of another size; those of `check`.
    """
    check(module, path)
    if type(module) is nn.Sequential:
        for name, layer in module._modules.items():
            x = written(layer, x, weight, f"{path}.{name}" if path else name)
        return x
    return _LAYERS[type(module)](module, x, weight, _called(module, path))


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def check(module: Any, path: str = "") -> None:
    """Raises TypeError for a module that has no translation, and names it."""
    called = _called(module, path)
    if type(module) is nn.Sequential:
        for name, layer in module._modules.items():
            check(layer, f"{path}.{name}" if path else name)
    elif type(module) not in _LAYERS:
        supported = ", ".join(sorted(layer.__name__ for layer in (nn.Sequential, *_LAYERS)))
        raise TypeError(f"{called} has no translation into a world; there is one of {supported}")
    if any(getattr(module, hooks, None) for hooks in _HOOKS):
        raise TypeError(f"{called} has hooks, which would not run in a world")
    if "forward" in vars(module):
        raise TypeError(f"{called} has a forward of its own, which would not run in a world")
    if type(module) is nn.GELU and module.approximate not in ("none", "tanh"):
        raise TypeError(f"{called}: approximate is none or tanh")
    if type(module) is nn.Softmax and module.dim != -1:
        raise TypeError(f"{called} is along dim=-1 of what a world has for one instance, a vector")
    if type(module) is nn.Dropout and module.training and module.p > 0:
        raise TypeError(f"{called} drops what it draws; a world has it after module.eval() alone, or with p = 0")
    for name in ("weight", "bias"):
        given = getattr(module, name, None)
        if given is not None and not isinstance(given, nn.Parameter):
            raise TypeError(
                f"{called}: its {name} is no nn.Parameter, as the weights of a world are; "
                "requires_grad_(False) is how one stays as it is"
            )


def _called(module: Any, path: str) -> str:
    return f"module {path} ({module})" if path else f"the module ({module})"


# ---- Layers with weights ----


def _linear(layer: Any, x: Expression, weight: Weight, called: str) -> Expression:
    if x.shape != (layer.in_features,):
        raise ValueError(f"{called} takes {layer.in_features} numbers, and gets {x.size}")
    product = weight(layer.weight) @ x
    return product if layer.bias is None else product + weight(layer.bias)


def _layer_norm(layer: Any, x: Expression, weight: Weight, called: str) -> Expression:
    if tuple(layer.normalized_shape) != x.shape:
        raise ValueError(f"{called} takes {tuple(layer.normalized_shape)} numbers, and gets {x.size}")
    centred = x - x.mean()
    x = centred / x.builder.sqrt((centred * centred).mean() + layer.eps)
    x = x if layer.weight is None else weight(layer.weight) * x
    return x if getattr(layer, "bias", None) is None else x + weight(layer.bias)


# ---- Activations: at ties of max and min the second operand gets the cotangent, as in PyTorch ----


def _relu(x: Expression) -> Expression:
    return x.builder.max(x, 0.0)


def _negative_part(x: Expression) -> Expression:
    return x.builder.min(0.0, x)


@custom_vjp
def _expm1(x: Expression) -> Any:
    return x.builder.expm1(x)


@_expm1.defvjp
def _expm1_vjp(args: Any, result: Expression, cotangent: Expression) -> Expression:
    """By exp(x), as in PyTorch: 1 + result cancels far below 0, the more the narrower the format of the result is."""
    x: Expression = args[0]
    return cotangent * x.builder.exp(x)


def _elu(x: Expression, alpha: float) -> Expression:
    below: Expression = alpha * _expm1(_negative_part(x))
    return _relu(x) + below


# Constants of the fixed point at mean 0 and variance 1: Klambauer et al., "Self-Normalizing Neural Networks", NIPS 2017.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848, 1.0507009873554804934


def _gelu(x: Expression, approximate: str) -> Expression:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + x.builder.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1.0 + x.builder.erf(x * math.sqrt(0.5)))


_NEVER_REACHED = 20  # of a threshold, PyTorch's own: beyond it e^-x is below every error of f32


def _softplus(x: Expression, beta: float, threshold: float) -> Expression:
    """PyTorch's is x above a threshold. From 20 on that is left out, and changes at most e^-threshold / beta."""
    made = x.builder.softplus(x) if beta == 1 else x.builder.softplus(beta * x) / beta
    return made if threshold >= _NEVER_REACHED else x.builder.where(beta * x > threshold, x, made)


def _softmax(layer: Any, x: Expression, weight: Weight, called: str) -> Expression:
    raised = x.builder.exp(x - x.max())
    return raised / raised.sum()


def _prelu(layer: Any, x: Expression, weight: Weight, called: str) -> Expression:
    if layer.num_parameters not in (1, x.size):
        raise ValueError(f"{called} takes {layer.num_parameters} numbers, and gets {x.size}")
    return _relu(x) + weight(layer.weight) * _negative_part(x)


def _activation(write: Callable[[Expression, Any], Expression]) -> Callable[..., Expression]:
    return lambda layer, x, weight, called: write(x, layer)


_LAYERS: Mapping[type, Callable[..., Expression]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.Identity: _activation(lambda x, layer: x),
    nn.ReLU: _activation(lambda x, layer: _relu(x)),
    nn.ReLU6: _activation(lambda x, layer: clip(x, 0.0, 6.0)),
    nn.Hardtanh: _activation(lambda x, layer: clip(x, layer.min_val, layer.max_val)),
    nn.LeakyReLU: _activation(
        lambda x, layer: _relu(x) + layer.negative_slope * _negative_part(x)
    ),
    nn.ELU: _activation(lambda x, layer: _elu(x, layer.alpha)),
    nn.CELU: _activation(lambda x, layer: _relu(x) + layer.alpha * _expm1(_negative_part(x) / layer.alpha)),
    nn.SELU: _activation(lambda x, layer: _SELU_SCALE * _elu(x, _SELU_ALPHA)),
    nn.PReLU: _prelu,
    nn.Softmax: _softmax,
    nn.Dropout: _activation(lambda x, layer: x),
    nn.Tanh: _activation(lambda x, layer: x.builder.tanh(x)),
    nn.Sigmoid: _activation(lambda x, layer: x.builder.sigmoid(x)),
    nn.SiLU: _activation(lambda x, layer: x * x.builder.sigmoid(x)),
    nn.GELU: _activation(lambda x, layer: _gelu(x, layer.approximate)),
    nn.Mish: _activation(lambda x, layer: x * x.builder.tanh(x.builder.softplus(x))),
    nn.LogSigmoid: _activation(lambda x, layer: -x.builder.softplus(-x)),
    nn.Hardsigmoid: _activation(lambda x, layer: clip(x + 3.0, 0.0, 6.0) / 6.0),
    nn.Softplus: _activation(lambda x, layer: _softplus(x, layer.beta, layer.threshold)),
    nn.Softsign: _activation(lambda x, layer: x / (1.0 + abs(x))),
}
