"""How many repeats a client may make, so that repeats never become the load."""

from __future__ import annotations

import threading

FLOOR = 10.0  # repeats that a client has at its start, and again after a while
FLOOR_RATE = 0.1  # repeats per second that come back while there are fewer than FLOOR
CAPACITY = 100.0  # repeats that are kept at most, however many calls went well
DEPARTURE_SECONDS = 1.0


class RetryBudget:
    """The budget of repeats that all calls of one client share.

    Every call adds `extra` (0.1) of a repeat, every repeat takes one. A client starts with 10; while
    it has fewer, one comes back every 10 s, so that a single call on an idle client can be repeated.
    It keeps at most 100. So n calls within t seconds of a client's life are repeated at most
    0.1 n + 10 + t / 10 times.

    Two things are outside of it. An attempt that reached no server costs no server anything. And a
    server that goes away (it drains, or the connection breaks) fails every call in flight at once:
    within a second, as many calls as are in flight may be repeated for that reason.

    Units: seconds, of any clock that does not go back.
    Threads: safe.
    """

    def __init__(self, extra: float, now: float):
        self._extra = extra
        self._repeats = FLOOR
        self._filled = now
        self._departures = 0
        self._departures_since = now
        self._lock = threading.Lock()

    def add_call(self, now: float) -> None:
        with self._lock:
            self._refill(now)
            self._repeats = min(self._repeats + self._extra, CAPACITY)

    def take(self, now: float) -> bool:
        """Whether a refused call may be repeated; takes the repeat."""
        with self._lock:
            return self._take(now)

    def take_for_departure(self, now: float, in_flight: int) -> bool:
        """Whether a call may be repeated whose server went away, of so many calls in flight."""
        with self._lock:
            if now - self._departures_since >= DEPARTURE_SECONDS:
                self._departures, self._departures_since = 0, now
            if self._departures < in_flight:
                self._departures += 1
                return True
            return self._take(now)

    def _take(self, now: float) -> bool:
        self._refill(now)
        if self._repeats < 1 - 1e-9:  # ten tenths are a little less than one
            return False
        self._repeats -= 1
        return True

    def _refill(self, now: float) -> None:
        if self._repeats < FLOOR:
            self._repeats = min(self._repeats + FLOOR_RATE * (now - self._filled), FLOOR)
        self._filled = now
