"""The results of several servers, as of one: states, values, health, certificates, signatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from simgrad.pieces import Pieces
from simgrad.pool.aligned_sum import multiply, pairwise, round_to
from simgrad.pool.cut import Shard
from simgrad.pool.merge_arithmetic import merged_arithmetic
from simgrad.v1 import policy_pb2, simgrad_pb2

# Instances that are not ok of which a server writes certificates: the first of a request.
MAX_CERTIFICATES = 16


@dataclass
class Part:
    """The answer of one server for one shard."""

    shard: Shard
    result: Any  # RolloutResult or GradientResult
    pieces: Pieces

    @property
    def rollout(self) -> simgrad_pb2.RolloutResult:
        result = self.result
        return result.rollout if isinstance(result, simgrad_pb2.GradientResult) else result

    @property
    def health(self) -> simgrad_pb2.InstanceHealth:
        return self.pieces.health(self.rollout.health)


def in_rows(parts: Sequence[Part], contents: Sequence[bytes]) -> bytes:
    """Arrays over the instances of each part, as one over those of the request."""
    rows = np.concatenate([part.shard.rows for part in parts])
    if (np.diff(rows) == 1).all():
        return b"".join(contents)
    arrays = [
        np.frombuffer(data, "u1").reshape(part.shard.instances, -1) for part, data in zip(parts, contents)
    ]
    whole = np.empty((len(rows), arrays[0].shape[1]), "u1")
    for part, array in zip(parts, arrays):
        whole[part.shard.rows] = array
    return whole.tobytes()


def setting_of(policy: policy_pb2.ResolvedPolicy, role: str) -> policy_pb2.RoleSetting:
    return next(r.setting for r in policy.roles if r.role == role)


def merged_rollout(
    parts: Sequence[Part],
    policy: policy_pb2.ResolvedPolicy,
    weights: np.ndarray,
    finite_only: bool,
    seconds: dict[str, float],
) -> simgrad_pb2.RolloutResult:
    """The result of the request.

    Args:
      parts: of each shard, in the order of their ids.
      weights: [instances] f64; empty: ones.
      finite_only: whether instances that are not ok are left out of the value.
      seconds: by phase.
    """
    results = [part.rollout for part in parts]
    merged = simgrad_pb2.RolloutResult(batch_path_signature=sum(r.batch_path_signature for r in results) % 2**64)
    instances = sum(part.shard.instances for part in parts)
    for k, state in enumerate(results[0].final_state):
        target = merged.final_state.add(name=state.name)
        target.tensor.dtype = state.tensor.dtype
        target.tensor.shape.extend([instances, *state.tensor.shape[1:]])
        target.tensor.inline = in_rows(
            parts,
            [
                p.pieces.content(f"final_state.{state.name}", r.final_state[k].tensor.inline)
                for p, r in zip(parts, results)
            ],
        )
    for field in ("values", "path_signatures"):
        contents = [p.pieces.content(field, getattr(r, field)) for p, r in zip(parts, results)]
        setattr(merged, field, in_rows(parts, contents))
    for k, event in enumerate(results[0].first_events):
        contents = [
            p.pieces.content(f"first_events.{event.site}", r.first_events[k].steps)
            for p, r in zip(parts, results)
        ]
        merged.first_events.add(site=event.site, steps=in_rows(parts, contents))
    merged.health.CopyFrom(_merged_health(parts))
    if results[0].HasField("value"):
        merged.value = _value(parts, merged, policy, weights, finite_only)
    _add_certificates(parts, merged)
    merged.arithmetic.extend(merged_arithmetic((r.arithmetic for r in results), policy))
    for phase, spent in seconds.items():
        merged.phase_seconds[phase] = spent
    return merged


def _merged_health(parts: Sequence[Part]) -> simgrad_pb2.InstanceHealth:
    healths = [part.health for part in parts]
    merged = simgrad_pb2.InstanceHealth(
        ok=in_rows(parts, [h.ok for h in healths]), halts=healths[0].halts
    )
    bad = [
        (int(part.shard.rows[index]), *rest)
        for part, h in zip(parts, healths)
        for index, *rest in zip(h.index, h.phase, h.step, h.stopped)
    ]
    for fields in sorted(bad):
        for name, value in zip(("index", "phase", "step", "stopped"), fields):
            getattr(merged, name).append(value)
    halted = [
        (int(part.shard.rows[index]), *rest)
        for part, h in zip(parts, healths)
        for index, *rest in zip(h.halted_index, h.halted_by, h.halted_step, h.halted_error)
    ]
    for fields in sorted(halted):
        for name, value in zip(("index", "by", "step", "error"), fields):
            getattr(merged, f"halted_{name}").append(value)
    return merged


def _value(
    parts: Sequence[Part],
    merged: simgrad_pb2.RolloutResult,
    policy: policy_pb2.ResolvedPolicy,
    weights: np.ndarray,
    finite_only: bool,
) -> float:
    """The sum of weight * value, as sim/engine/instance_reduction.cc makes it."""
    setting = setting_of(policy, "objective")
    ids = np.empty(len(merged.health.ok), np.uint64)
    for part in parts:
        ids[part.shard.rows] = part.shard.ids
    values = np.frombuffer(merged.values, "<f8")
    ok = np.frombuffer(merged.health.ok, "u1") != 0
    counts = ok if finite_only else np.ones(len(ids), bool)
    leaves = multiply(setting.format, weights if len(weights) else np.ones(len(ids)), values)
    root = pairwise(ids[counts], leaves[counts, None], setting.accumulator)
    return float(round_to(setting.format, root)[0])


def _add_certificates(parts: Sequence[Part], merged: simgrad_pb2.RolloutResult) -> None:
    first = set(merged.health.index[:MAX_CERTIFICATES])
    found = []
    for part in parts:
        for certificate in part.rollout.certificates:
            place = np.flatnonzero(part.shard.ids == np.uint64(certificate.instance_id))
            found.append((int(part.shard.rows[place[0]]), certificate))
    for row, certificate in sorted(found, key=lambda entry: entry[0]):
        if row in first:
            merged.certificates.append(certificate)
