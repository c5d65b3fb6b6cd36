"""A request, cut into requests over parts of its instances.

Parts are cut where instance ids are multiples of 256, in the order of the ids: so each server owns every
id of its range, and nodes of its sums are nodes of the whole tree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from simgrad.pool.aligned_sum import BLOCK_BITS
from simgrad.request import Declaration, Declared
from simgrad.v1 import program_pb2, simgrad_pb2, tensor_pb2

_KINDS = {
    "initial": program_pb2.INPUT_KIND_STATE,
    "params": program_pb2.INPUT_KIND_PARAM,
    "controls": program_pb2.INPUT_KIND_CONTROL,
    "data": program_pb2.INPUT_KIND_DATA,
}
_OF_INSTANCES = ("instances", "first_instance", "instance_ids")


@dataclass(frozen=True)
class Shard:
    """A part of a request.

    Attributes:
      rows: [n] places of its instances in the request, ascending.
      ids: [n] uint64, their instance ids.
      share: which of the shares it was made for.
    """

    rows: np.ndarray
    ids: np.ndarray
    share: int = 0

    @property
    def instances(self) -> int:
        return len(self.rows)

    def runs(self) -> list[tuple[int, int, int]]:
        """The rows as runs without gaps: (first place in the shard, first place in the request, length)."""
        starts = np.flatnonzero(np.diff(self.rows, prepend=-2) != 1)
        ends = np.append(starts[1:], len(self.rows))
        return [(int(a), int(self.rows[a]), int(b - a)) for a, b in zip(starts, ends)]


class Cutter:
    """Knows what of a request belongs to which instance.

    Attributes:
      instances: how many there are; 0: the request contradicts itself, and a server shall say how.
      ids: [instances] uint64.
      stated: the most instances that a part of the request has.
    """

    def __init__(self, message: Any, declared: Declared):
        self._message = message
        self._declared = declared
        counts = self._counts()
        self.stated = max(counts, default=1)
        self.instances = self.stated if len(set(counts)) < 2 else 0
        self.ids = self._ids()

    def is_per_instance(self, kind: int, name: str) -> bool:
        """Whether an input was sent with a row for each instance."""
        sent = (t for group, k in _KINDS.items() if k == kind for t in getattr(self._message.spec, group))
        return any(t.name == name and self._is_cut(kind, t) for t in sent)

    def is_weights(self, kind: int, name: str) -> bool:
        """Whether an input is declared weights."""
        return self._declared.get((kind, name), Declaration(0)).is_weights

    def row_bytes(self) -> int:
        """Bytes of the request that belong to one instance."""
        spec = self._message.spec
        tensors = [t for name, kind in _KINDS.items() for t in getattr(spec, name) if self._is_cut(kind, t)]
        for sent in getattr(self._message, "cotangents", ()):
            tensors += [*sent.final_state, *sent.trajectory]
        path = len(spec.path.forced.decisions.inline)
        lists = path // max(self.instances, 1) + 10 * bool(spec.instance_ids) + 8 * bool(self._message.weights)
        return sum(len(t.tensor.inline) for t in tensors) // max(self.instances, 1) + lists

    def cut(self, shares: Sequence[float], most: int) -> list[Shard]:
        """Parts in the order of the ids, of sizes as the shares where blocks allow it.

        Args:
          shares: of each server, in any unit; parts that would be empty are left out.
          most: instances of one part; a block of ids is never cut, however many it has.
        """
        order = np.argsort(self.ids, kind="stable")
        blocks = self.ids[order] >> np.uint64(BLOCK_BITS)
        # The places at which the sorted instances may be cut.
        edges = np.concatenate([[0], np.flatnonzero(blocks[1:] != blocks[:-1]) + 1, [self.instances]])
        goals = np.cumsum(shares)[:-1] / np.sum(shares) * self.instances
        after = np.clip(np.searchsorted(edges, goals), 1, len(edges) - 1)
        nearer = np.where(goals - edges[after - 1] < edges[after] - goals, after - 1, after)
        places = [0, *nearer, len(edges) - 1]
        shards = []
        for share, (begin, end) in enumerate(zip(places[:-1], places[1:])):
            while begin < end:
                furthest = np.searchsorted(edges, edges[begin] + most, side="right") - 1
                stop = int(np.clip(furthest, begin + 1, end))
                shards.append(self._shard(order[edges[begin] : edges[stop]], share))
                begin = stop
        return shards

    def cut_as(self, sizes: Sequence[int]) -> list[Shard]:
        """The parts of an earlier cut, given how many instances each had. Part k is of share k."""
        order = np.argsort(self.ids, kind="stable")
        parts = np.split(order, np.cumsum(sizes)[:-1])
        return [self._shard(part, share) for share, part in enumerate(parts)]

    def _shard(self, rows: np.ndarray, share: int) -> Shard:
        rows = np.sort(rows)
        return Shard(rows, self.ids[rows], share)

    def message(self, shard: Shard) -> Any:
        """The request for one part; that for a gradient asks for what merging needs."""
        whole = self._message
        part = type(whole)()
        _copy_fields(whole, part, without=("spec", "weights", "cotangents"))
        if isinstance(part, simgrad_pb2.GradientRequest):
            part.return_tree = True
            # The merged gradient is clipped, not its parts. A norm that servers refuse is left to them.
            if part.clip_norm > 0.0:
                part.clip_norm = math.inf
        spec = part.spec
        _copy_fields(whole.spec, spec, without=(*_KINDS, *_OF_INSTANCES))
        spec.instances = shard.instances
        if spec.diagnostics.arithmetic_instances > 0:
            spec.diagnostics.arithmetic_instances = int(
                np.count_nonzero(shard.rows < whole.spec.diagnostics.arithmetic_instances)
            )
        if whole.spec.instance_ids:
            spec.instance_ids.extend(shard.ids.tolist())
        else:
            spec.first_instance = int(shard.ids[0])
        if whole.spec.path.HasField("forced"):
            self._keep_rows(spec.path.forced.decisions, shard)
        for name, kind in _KINDS.items():
            for sent in getattr(whole.spec, name):
                target = getattr(spec, name).add()
                if self._is_cut(kind, sent):
                    self._copy_rows(sent, target, shard)
                else:
                    target.CopyFrom(sent)
        if whole.weights:
            part.weights.extend(np.asarray(whole.weights)[shard.rows].tolist())
        for sent in getattr(whole, "cotangents", ()):
            cotangent = part.cotangents.add()
            for tensor in sent.final_state:
                self._copy_rows(tensor, cotangent.final_state.add(), shard)
            for tensor in sent.trajectory:
                self._copy_rows(tensor, cotangent.trajectory.add(), shard)
        return part

    def _is_cut(self, kind: int, sent: simgrad_pb2.NamedTensor) -> bool:
        declared = self._declared.get((kind, sent.name), Declaration(len(sent.tensor.shape)))
        return len(sent.tensor.shape) == declared.rank + int(sent.per_step) + 1

    def _copy_rows(
        self, sent: simgrad_pb2.NamedTensor, target: simgrad_pb2.NamedTensor, shard: Shard
    ) -> None:
        target.name, target.per_step = sent.name, sent.per_step
        target.tensor.dtype = sent.tensor.dtype
        target.tensor.shape.extend([shard.instances, *sent.tensor.shape[1:]])
        rows = np.frombuffer(sent.tensor.inline, "u1").reshape(self.instances, -1)
        target.tensor.inline = rows[shard.rows].tobytes()

    def _keep_rows(self, tensor: tensor_pb2.Tensor, shard: Shard) -> None:
        rows = np.frombuffer(tensor.inline, "u1").reshape(self.instances, -1)
        tensor.inline = rows[shard.rows].tobytes()
        tensor.shape[0] = shard.instances

    def _counts(self) -> list[int]:
        """How many instances each part of the request has that tells it."""
        spec = self._message.spec
        counts = [len(spec.instance_ids)] if spec.instance_ids else []
        counts += [spec.instances] if spec.instances else []
        counts += [len(self._message.weights)] if self._message.weights else []
        for name, kind in _KINDS.items():
            counts += [self._rows_of(t.tensor) for t in getattr(spec, name) if self._is_cut(kind, t)]
        for sent in getattr(self._message, "cotangents", ()):
            counts += [self._rows_of(t.tensor) for t in (*sent.final_state, *sent.trajectory)]
        if spec.path.HasField("forced"):
            counts += [self._rows_of(spec.path.forced.decisions)]
        return counts

    @staticmethod
    def _rows_of(tensor: tensor_pb2.Tensor) -> int:
        """Rows of a tensor over instances; 0 where its bytes cannot be cut into them."""
        rows = int(tensor.shape[0]) if tensor.shape else 0
        return rows if rows > 0 and len(tensor.inline) % rows == 0 else 0

    def _ids(self) -> np.ndarray:
        spec = self._message.spec
        if not spec.instance_ids:
            if spec.first_instance + self.instances > 1 << 64:
                self.instances = 0  # beyond the ids that there are
            return np.arange(self.instances, dtype=np.uint64) + np.uint64(spec.first_instance)
        ids = np.array(spec.instance_ids, np.uint64)
        if spec.first_instance or len(np.unique(ids)) != self.instances:
            self.instances = 0
        return ids


def _copy_fields(source: Any, target: Any, without: Sequence[str]) -> None:
    for descriptor, value in source.ListFields():
        name = descriptor.name
        if name in without:
            continue
        if isinstance(value, (str, bytes, bool, int, float)):
            setattr(target, name, value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, name).CopyFrom(value)
        else:
            getattr(target, name).MergeFrom(value)
