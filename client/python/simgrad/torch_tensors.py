"""Tensors of PyTorch on their way to a request, and back."""

from __future__ import annotations

from typing import Any, Iterable, Sized

import numpy as np
import torch

from simgrad.arrays import Bits, PerStep

# Formats that NumPy lacks, by PyTorch's names, and the integers that hold their bits.
_BITS: dict[str, tuple[str, torch.dtype, type[np.generic]]] = {
    "bfloat16": ("bf16", torch.int16, np.uint16),
    "float8_e4m3fn": ("e4m3", torch.uint8, np.uint8),
    "float8_e5m2": ("e5m2", torch.uint8, np.uint8),
}


def needs_gradient(value: Any) -> bool:
    tensor = tensor_in(value)
    return tensor is not None and tensor.requires_grad and torch.is_grad_enabled()


def tensor_in(value: Any) -> torch.Tensor | None:
    """The tensor that an input is, or that has a value per step; None for other arrays."""
    if isinstance(value, PerStep):
        value = value.array
    return value if isinstance(value, torch.Tensor) else None


def stacked(name: str, value: Any) -> Any:
    """An input in which a list, or another collection, of tensors of one shape and dtype is one tensor.

    Raises TypeError where such a tensor needs a gradient: it would get none.
    """
    if isinstance(value, PerStep):
        return PerStep(stacked(name, value.array))
    is_array = isinstance(value, (str, bytes)) or hasattr(value, "__array__")
    if is_array or not (isinstance(value, Sized) and isinstance(value, Iterable)):  # as a ParameterList is
        return value
    parts = [stacked(name, part) for part in value]
    if any(needs_gradient(part) for part in parts):
        raise TypeError(f"{name}: a list of tensors has no gradient; send one tensor, as of torch.stack")
    kinds = {(part.shape, part.dtype, part.device) if isinstance(part, torch.Tensor) else None for part in parts}
    return value if len(kinds) != 1 or None in kinds else torch.stack([part.detach() for part in parts])


def to_wire(name: str, value: Any) -> Any:
    """A tensor as an array of its own dtype, or as its bits where NumPy has none of it; other values as they are.

    Raises TypeError, with the name, for a tensor that has no numbers to read.
    """
    if isinstance(value, PerStep):
        return PerStep(to_wire(name, value.array))
    if not isinstance(value, torch.Tensor):
        return value
    dtype = str(value.dtype).removeprefix("torch.")
    try:
        value = value.detach().cpu().contiguous()
        if dtype not in _BITS:
            return value.numpy()
        format, holder, unsigned = _BITS[dtype]
        return Bits(value.view(holder).numpy().view(unsigned), format)
    except (TypeError, RuntimeError, ValueError) as error:
        raise TypeError(
            f"{name}: the numbers of this tensor cannot be read ({_kind(value)}): {_first_line(error)}. "
            "A rollout takes dense tensors that hold numbers, and not those within a transform of torch.func"
        ) from error


def tensor_of(array: Any) -> torch.Tensor:
    """An array of a result. Numbers of u32 become i64, as older PyTorch has none of them."""
    array = np.asarray(array)
    if array.dtype == np.uint32:
        array = array.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def numbers(name: str, weights: Any) -> Any:
    """Weights, of whatever dtype, as f64."""
    return to_wire(name, weights.double()) if isinstance(weights, torch.Tensor) else weights


def _kind(tensor: torch.Tensor) -> str:
    known = [str(tensor.dtype).removeprefix("torch."), str(tensor.layout).removeprefix("torch."), str(tensor.device)]
    return ", ".join(known)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
