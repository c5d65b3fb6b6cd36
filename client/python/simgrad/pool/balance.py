"""The balance of a pool: how much of a kind of work each server gets."""

from __future__ import annotations

import threading
from typing import NamedTuple, Sequence

from simgrad.pool.servers import Server

_LEAST_GAIN = 0.2  # of the predicted time of the best cut, for which another cut is given up
_MAX_KEPT = 256  # kinds of work, numbers of instances and sets of servers


class Share(NamedTuple):
    server: Server
    part: float  # of the instances, in any unit


def shares(servers: Sequence[Server], kind: bytes) -> list[float]:
    """How much of a kind of work each server should get, in any unit.

    By the speed that was measured; that of a server without a measurement is estimated from its device, in the
    ratio of those that have one.
    """
    rates = [server.rate(kind) for server in servers]
    known = [rate / server.expected for server, rate in zip(servers, rates) if rate is not None]
    unit = sum(known) / len(known) if known else 1.0
    return [
        server.expected * unit if rate is None else rate for server, rate in zip(servers, rates)
    ]


class Balance:
    """Gives each server the same part of the same work, until another one is faster by far.

    A part that stays is found again among what its server keeps (simgrad.uploads); one that moves with each
    measurement would travel with each call. Bits never depend on it.
    Threads: safe.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, int, frozenset[str]], dict[str, float]] = {}
        self._lock = threading.Lock()

    def of(self, servers: Sequence[Server], kind: bytes, instances: int) -> list[Share]:
        """The shares of the servers in a kind of work, in the order in which instances are dealt out."""
        best = {s.target: part for s, part in zip(servers, shares(servers, kind))}
        key = kind, instances, frozenset(best)
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or _gain(kept, best) > _LEAST_GAIN:
                if len(self._kept) >= _MAX_KEPT:
                    self._kept.clear()
                # The order stays, so that little moves.
                order = best if kept is None else kept
                kept = self._kept[key] = {target: best[target] for target in order}
        by_target = {server.target: server for server in servers}
        return [Share(by_target[target], part) for target, part in kept.items()]


def _gain(kept: dict[str, float], best: dict[str, float]) -> float:
    """By how much the kept parts take longer than the best ones, which are as the speeds.

    All servers end together with the best parts, and the slowest one is waited for with others.
    """
    slowest = max(kept[target] / speed for target, speed in best.items())
    return slowest * sum(best.values()) / sum(kept.values()) - 1.0
