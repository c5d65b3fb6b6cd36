"""Steps written in JAX as worlds (docs/jax.md).

    world = simgrad.jax.world(step, state=example, params={"k": 1.0})
    client.rollout(world, steps=100, initial=states)
    simgrad.jax.check(world, step)

JAX is needed where this is imported; the server needs none, and nothing else of `simgrad` imports it.
"""

from __future__ import annotations

import warnings as _warnings

try:
    import jax as _jax
except ImportError as _error:
    raise ImportError(
        "simgrad.jax lowers steps that are written in JAX, which is not installed: pip install jax"
    ) from _error

# The range of JAX's releases that is known: primitives change between releases. As in pyproject.toml.
_FIRST, _PAST = (0, 10), (0, 11)
if not _FIRST <= _jax.__version_info__[:2] < _PAST:
    _warnings.warn(
        f"simgrad.jax knows JAX {_FIRST[0]}.{_FIRST[1]} up to, and not including, {_PAST[0]}.{_PAST[1]}; this is "
        f"{_jax.__version__}, of which steps may not lower: pip install 'jax~={_FIRST[0]}.{_FIRST[1]}.0'",
        stacklevel=2,
    )

from simgrad.jax import (  # noqa: F401  rules register themselves
    rules_call,
    rules_control,
    rules_elementwise,
    rules_indexing,
    rules_linear,
    rules_order,
    rules_random,
    rules_shape,
    rules_wide,
    rules_window,
)
from simgrad.jax.check import Check, check
from simgrad.jax.errors import JaxWorldError, Problem
from simgrad.jax.function import FunctionResult, RolloutFunction, function
from simgrad.jax.jax_world import JaxWorld
from simgrad.jax.report import Report
from simgrad.jax.sites import Site
from simgrad.jax.world import world

__all__ = [
    "Check",
    "FunctionResult",
    "JaxWorld",
    "JaxWorldError",
    "Problem",
    "Report",
    "RolloutFunction",
    "Site",
    "check",
    "function",
    "world",
]
