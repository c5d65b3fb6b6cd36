"""A rollout as a function of JAX: inside jit, differentiated by grad, one call per batch under vmap.

    run = simgrad.jax.function(client, world, steps=100, policy="f64", record=["energy"])

    def loss(params, state):
        out = run(state, params=params)
        return jnp.sum(out.state["x"] ** 2) + out.trajectory["energy"].mean()

    jax.jit(jax.grad(loss))(params, state)
    jax.vmap(run)(states)                        # one request of len(states) instances

Of a call that is differentiated the server keeps the forward pass, and the backward pass reverses it
without simulating again. What the server does not keep any more it runs again, to the same bits. Second
derivatives are not available.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import threading
from typing import Any, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from simgrad.client import Client
from simgrad.kept import Keep
from simgrad.jax.node import Shape, size_of
from simgrad.jax.trees import GROUPS, Group, is_key
from simgrad.jax.world import JaxWorld
from simgrad.policy import Policy
from simgrad.request import Cotangents
from simgrad.results import Rollout

_ARGUMENTS = {"state": "initial", "control": "controls", "params": "params", "data": "data"}
_OF_VJP = ("on_nonfinite", "timeout", "retry")  # of the options of a rollout, those that a vjp takes
_WRT = {"state": "state", "control": "control", "params": "param"}


@dataclasses.dataclass
class FunctionResult:
    """Of one instance.

    Attributes:
      state: the final state, a pytree like the example; None for leaves that are neither state nor
        constant nor recorded. trajectory: of what is recorded, by name, [time, shape].
    """

    state: Any
    trajectory: dict[str, Any]


jax.tree_util.register_dataclass(FunctionResult, ["state", "trajectory"], [])


@dataclasses.dataclass(frozen=True)
class _Input:
    """One leaf as it goes to the server: its shape here, with a value per step or without."""

    kind: str
    name: str
    shape: Shape
    is_real: bool


@dataclasses.dataclass(frozen=True)
class _Output:
    """One array of the answer: a final state, or a trajectory."""

    name: str
    final: bool
    shape: Shape
    dtype: Any


class _KeptRollouts:
    """Rollouts that are kept, by a digest of what they were made from: a call is pure, so whichever
    call has the inputs of a backward pass, its forward pass is the one to reverse. Threads: safe."""

    def __init__(self, most: int):
        self._most = most
        self._rollouts: collections.OrderedDict[bytes, Rollout] = collections.OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def key(inputs: Sequence[_Input], arrays: Sequence[Any]) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for i, array in zip(inputs, arrays):
            whole = np.ascontiguousarray(array)
            digest.update(f"{i.kind} {i.name} {whole.dtype.str} {whole.shape};".encode())
            digest.update(whole.tobytes())
        return digest.digest()

    def put(self, key: bytes, rollout: Rollout) -> None:
        with self._lock:
            self._rollouts[key] = rollout
            self._rollouts.move_to_end(key)
            while len(self._rollouts) > self._most:
                self._rollouts.popitem(last=False)

    def find(self, key: bytes) -> Rollout | None:
        with self._lock:
            return self._rollouts.get(key)


_MOST_KEPT = 16  # of one function: backward passes follow soon, and a rollout here has its arrays


class RolloutFunction:
    """What `simgrad.jax.function` returns: run(state, control=, params=, data=) -> FunctionResult.

    A leaf of control and data has the example's shape, or [steps, shape] for a value per step; a group
    that is left out has the numbers of the example.
    """

    def __init__(
        self,
        client: Client,
        world: JaxWorld,
        steps: int,
        policy: Policy | str | None,
        record: Sequence[str],
        options: dict[str, Any],
    ):
        self.client = client
        self.world = world
        self.steps = steps
        self._fixed: dict[str, Any] = dict(steps=steps, policy=policy, **options)
        self._record = tuple(record)
        self._kept = _KeptRollouts(_MOST_KEPT)
        self._made: dict[tuple[_Input, ...], Any] = {}

    def __call__(
        self, state: Any, *, control: Any = None, params: Any = None, data: Any = None
    ) -> FunctionResult:
        given = {"state": state, "control": control, "params": params, "data": data}
        inputs, leaves = [], []
        for kind in GROUPS:
            if given[kind] is None:
                continue
            group = self._group(kind)
            for name, example, leaf in zip(group.names, group.examples, group.flat(given[kind])):
                array = jax.random.key_data(leaf) if is_key(leaf) else jnp.asarray(leaf)
                self._check_shape(kind, name, tuple(array.shape), example.shape)
                is_real = jnp.issubdtype(array.dtype, jnp.floating)
                inputs.append(_Input(kind, name, tuple(array.shape), bool(is_real)))
                leaves.append(array)
        outputs = self._outputs()
        made = self._differentiable(tuple(inputs), outputs)(*leaves)
        return self._result(state, made, outputs)

    # ---- Shapes ----

    def _group(self, kind: str) -> Group:
        if kind not in self.world.groups:
            raise TypeError(f"this world has no {kind}")
        return self.world.groups[kind]

    def _check_shape(self, kind: str, name: str, shape: Shape, declared: Shape) -> None:
        per_step = kind in ("control", "data") and shape == (self.steps, *declared)
        if shape != declared and not per_step:
            wanted = f"{declared}, or {(self.steps, *declared)}" if kind in ("control", "data") else declared
            raise TypeError(
                f"{kind} {name} has shape {shape}, not {wanted}; for many instances use jax.vmap"
            )

    def _outputs(self) -> tuple[_Output, ...]:
        group = self.world.groups["state"]
        examples = dict(zip(group.names, group.examples))
        real = jnp.zeros(()).dtype
        values = self.world.export_types()
        outputs = []
        for name in self.world.state:
            outputs.append(_Output(name, True, examples[name].shape, _dtype(examples[name].dtype, real)))
        for name in self._record:
            if name in self.world.state:
                shape = (self.steps + 1, *examples[name].shape)
                outputs.append(_Output(name, False, shape, _dtype(examples[name].dtype, real)))
            elif name in values:
                shape, dtype = values[name]
                outputs.append(_Output(name, False, (self.steps, *shape), _dtype(dtype, real)))
            else:
                raise ValueError(f"record {name!r}: one of {', '.join((*self.world.state, *values))}")
        return tuple(outputs)

    def _result(self, state: Any, made: Sequence[Any], outputs: Sequence[_Output]) -> FunctionResult:
        group = self.world.groups["state"]
        final = {o.name: x for o, x in zip(outputs, made) if o.final}
        trajectory = {o.name: x for o, x in zip(outputs, made) if not o.final}
        for name, leaf in zip(group.names, group.flat(state)):
            if name in self.world.constants:
                final[name] = leaf
            elif name in trajectory and name not in final and self.steps:
                final[name] = trajectory[name][-1]
        return FunctionResult(group.filled([final.get(n) for n in group.names]), trajectory)

    # ---- Calls ----

    def _differentiable(self, inputs: tuple[_Input, ...], outputs: tuple[_Output, ...]) -> Any:
        found = self._made.get(inputs)
        if found is not None:
            return found
        shapes = tuple(jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outputs)

        def forward(keep: bool, *leaves: Any) -> tuple[Any, ...]:
            run = lambda *arrays: self._forward(inputs, outputs, arrays, keep)
            return tuple(jax.pure_callback(run, shapes, *leaves, vmap_method="broadcast_all"))

        def backward(leaves: tuple[Any, ...], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
            wanted = [k for k, i in enumerate(inputs) if i.is_real]
            sent = [c for o, c in zip(outputs, cotangents) if jnp.issubdtype(o.dtype, jnp.floating)]
            like = tuple(jax.ShapeDtypeStruct(leaves[k].shape, leaves[k].dtype) for k in wanted)
            run = lambda *arrays: self._backward(inputs, outputs, arrays)
            made = jax.pure_callback(run, like, *leaves, *sent, vmap_method="broadcast_all")
            by_place = dict(zip(wanted, made))
            return tuple(by_place.get(k) for k in range(len(inputs)))

        function = jax.custom_vjp(lambda *leaves: forward(False, *leaves))
        function.defvjp(lambda *leaves: (forward(True, *leaves), leaves), backward)
        self._made[inputs] = function
        return function

    def _requested(
        self, inputs: Sequence[_Input], arrays: Sequence[Any]
    ) -> tuple[Shape, dict[str, Any]]:
        """The axes of vmap, and the arrays by group and name with one axis of instances."""
        first = np.asarray(arrays[0])
        batch = first.shape[: first.ndim - len(inputs[0].shape)]
        groups: dict[str, Any] = {}
        for i, array in zip(inputs, arrays):
            flat = np.asarray(array).reshape((size_of(batch), *i.shape))
            groups.setdefault(_ARGUMENTS[i.kind], {})[i.name] = flat
        return batch, groups

    def _forward(
        self,
        inputs: Sequence[_Input],
        outputs: Sequence[_Output],
        arrays: Sequence[Any],
        keep: bool,
    ) -> tuple[np.ndarray, ...]:
        batch, groups = self._requested(inputs, arrays)
        reals = [o for o in outputs if np.dtype(o.dtype).kind == "f"]
        how = Keep(
            wrt=self._wrt(inputs),
            state=[o.name for o in reals if o.final],
            trajectory=[o.name for o in reals if not o.final],
        )
        made = self.client.rollout(
            self.world, **groups, record=self._record, keep=how if keep else False, **self._fixed
        )
        if keep:
            self._kept.put(self._kept.key(inputs, arrays), made)
        final = self.world.by_name(made.state)
        found = [final[o.name] if o.final else made.trajectory[o.name] for o in outputs]
        return tuple(
            np.asarray(x, o.dtype).reshape((*batch, *o.shape)) for x, o in zip(found, outputs)
        )

    def _backward(
        self, inputs: Sequence[_Input], outputs: Sequence[_Output], arrays: Sequence[Any]
    ) -> tuple[np.ndarray, ...]:
        batch, groups = self._requested(inputs, arrays[: len(inputs)])
        reals = [o for o in outputs if np.dtype(o.dtype).kind == "f"]
        cotangents = Cotangents({}, {})
        for o, array in zip(reals, arrays[len(inputs) :]):
            target: Any = cotangents.state if o.final else cotangents.trajectory
            target[o.name] = np.asarray(array).reshape((size_of(batch), *o.shape))
        declared, wrt = self.world.differentiable(), self._wrt(inputs)
        kept = self._kept.find(self._kept.key(inputs, arrays))
        if kept is None:
            made = self.client.gradient(
                self.world, **groups, **self._fixed, wrt=wrt, cotangents=cotangents
            )
        else:
            how = {name: value for name, value in self._fixed.items() if name in _OF_VJP}
            made = kept.vjp(cotangents, wrt=wrt, **how)
        found = {
            "state": self.world.by_name(made.initial, "state"),
            "params": self.world.by_name(made.params, "params"),
            "control": self.world.by_name(made.controls, "control"),
        }
        return tuple(
            self._gradient(i, found, declared, batch, np.asarray(array))
            for i, array in zip(inputs, arrays)
            if i.is_real
        )

    def _wrt(self, inputs: Sequence[_Input]) -> list[str]:
        declared = self.world.differentiable()
        return [f"{_WRT[i.kind]}.{i.name}" for i in inputs if (i.kind, i.name) in declared]

    def _gradient(
        self,
        i: _Input,
        found: dict[str, dict[str, Any]],
        declared: frozenset[tuple[str, str]],
        batch: Shape,
        like: np.ndarray,
    ) -> np.ndarray:
        """Zero for what no step reads; NaN for a constant, by which the world has no derivative."""
        if (i.kind, i.name) in declared:
            return np.asarray(found[i.kind][i.name], like.dtype).reshape((*batch, *i.shape))
        is_constant = i.kind == "state" and i.name in self.world.constants
        return np.full(like.shape, np.nan if is_constant else 0.0, like.dtype)


def _dtype(dtype: Any, real: Any) -> Any:
    kept = np.dtype(dtype)
    return real if kept.kind == "f" else jax.dtypes.canonicalize_dtype(kept)


def function(
    client: Client,
    world: JaxWorld,
    *,
    steps: int,
    policy: Policy | str | None = None,
    record: Sequence[str] = (),
    **options: Any,
) -> RolloutFunction:
    """A rollout as a function of JAX; arguments as Client.rollout.

    Errors: TypeError for pytrees and shapes that are not the world's, while tracing; those of
      Client.rollout where it runs.
    """
    return RolloutFunction(client, world, steps, policy, record, {"diagnostics": "off", **options})
