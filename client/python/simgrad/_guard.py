"""Runs a command for as long as the other end of standard input is held; run as a script, alone.

The holder may end in any way, killed too: then the pipe closes, and the command is ended. If this
process is killed itself, the kernel ends the command. A log that grows without bound is emptied: that of
standard error, where it is a file that is written at its end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import subprocess
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_PATIENCE = 10.0  # seconds from SIGTERM to SIGKILL
_LOG_BYTES = 1 << 20  # of a log; a failed start tells far less
_LOG_SECONDS = 5.0  # between looks at it


def _die_with(guard: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != guard:  # it was gone before
        os._exit(1)


def _end_when_let_go(process: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 4096):  # of no object that Python closes at its end, which may come while this waits
        pass
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()


def _keep_small(log: int, most: int) -> None:
    """Empties a file that has more than `most` bytes."""
    status = os.fstat(log)
    if stat.S_ISREG(status.st_mode) and status.st_size > most:
        os.ftruncate(log, 0)


def _look_at_log() -> None:
    while True:
        time.sleep(_LOG_SECONDS)
        _keep_small(2, _LOG_BYTES)


def main(command: list[str]) -> int:
    guard = os.getpid()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=lambda: _die_with(guard)
    )
    threading.Thread(target=_end_when_let_go, args=(process,), daemon=True).start()
    threading.Thread(target=_look_at_log, daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
