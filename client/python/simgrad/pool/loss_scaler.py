"""The state of a dynamic loss scale behind a gradient that several servers made together.

Each server says the state behind its own shard. Whether a gradient is skipped is decided over all, so
the step is taken once more here, by the rule of docs/numerics.md section 8.
"""

from __future__ import annotations

import math

import numpy as np

from simgrad.v1 import policy_pb2

_DEFAULT_SCALE = 65536.0
_LEAST = np.finfo(np.float32).smallest_subnormal


def next_state(
    sent: policy_pb2.DynamicLossScale, answered: policy_pb2.DynamicLossScale, is_clean: bool
) -> policy_pb2.DynamicLossScale:
    """The state behind a gradient.

    Args:
      sent: of the request.
      answered: of one server, for its rule, in which every number is filled in.
      is_clean: whether the gradient over all shards was finite.
    """
    scale = np.float32(sent.scale or _DEFAULT_SCALE)
    clean = 0
    if not is_clean:
        scale = _product(scale, answered.backoff)
    elif sent.clean + 1 < answered.interval:
        clean = sent.clean + 1
    else:
        grown = _product(scale, answered.growth)
        scale = grown if np.isfinite(grown) else scale
    if answered.mode == "guarded":
        power = np.float32(2.0 ** math.floor(math.log2(scale))) if scale > 0 else np.float32(0)
        scale = max(power, np.float32(1))
    scale = max(scale, _LEAST)  # a request reads 0 as the first scale
    state = policy_pb2.DynamicLossScale()
    state.CopyFrom(answered)
    state.scale, state.clean = float(scale), clean
    return state


def _product(scale: np.float32, factor: float) -> np.float32:
    with np.errstate(all="ignore"):
        return np.float32(np.float64(scale) * factor)
