"""The time that a client waits by."""

from __future__ import annotations

import threading
import time
from typing import Callable


class Clock:
    """Seconds that never go back, and waits that can be left. Threads: safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def now(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Waits; `is_over` is asked at the start, and whenever `wake` is called."""
        with self._changed:
            self._changed.wait_for(is_over, seconds)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
