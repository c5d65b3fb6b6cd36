"""The shards of one rollout under the handles of the servers that keep them."""

from __future__ import annotations

import json
from typing import Iterable, NamedTuple


class KeptShard(NamedTuple):
    """One shard.

    Attributes:
      target: the server that simulated it.
      instances: how many it has. Shards are runs of the instances in the order of their ids.
      handle: what the server keeps it under; empty: it does not keep it.
    """

    target: str
    instances: int
    handle: str


class KeptShards:
    """The content of a pool's own handle: which server keeps which shard of a rollout.

    The handle is a text that needs nothing of the pool that made it.
    Threads: safe.
    """

    def __init__(self, shards: Iterable[KeptShard]):
        self._shards = list(shards)

    @classmethod
    def of(cls, handle: str) -> KeptShards:
        """Reads a handle, which must not be empty."""
        return cls(KeptShard(*entry) for entry in json.loads(handle))

    @property
    def handle(self) -> str:
        """Empty where no server keeps a shard."""
        return json.dumps(self._shards) if any(shard.handle for shard in self._shards) else ""

    @property
    def sizes(self) -> list[int]:
        return [shard.instances for shard in self._shards]

    @property
    def targets(self) -> list[str]:
        return [shard.target for shard in self._shards]

    @property
    def keepers(self) -> list[str]:
        """The targets of the shards that are kept."""
        return [shard.target for shard in self._shards if shard.handle]

    def at(self, shard: int, target: str) -> str:
        """The handle of a shard at a server; empty where that server does not keep it."""
        kept = self._shards[shard]
        return kept.handle if kept.target == target else ""

    def forget(self, shard: int) -> None:
        """Its server has lost it."""
        self._shards[shard] = self._shards[shard]._replace(handle="")
