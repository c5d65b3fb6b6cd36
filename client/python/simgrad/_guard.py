"""Runs a command for as long as the other end of standard input is held; run as a script, alone.

The holder may end in any way, killed too: then the pipe closes, and the command is ended. If this
process is killed itself, the kernel ends the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1
_PATIENCE = 10.0  # seconds from SIGTERM to SIGKILL


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


def main(command: list[str]) -> int:
    guard = os.getpid()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=lambda: _die_with(guard)
    )
    threading.Thread(target=_end_when_let_go, args=(process,), daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
