"""simgrad-server on free ports, and what its process has used."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
BINARY = pathlib.Path(os.environ.get("SIMGRAD_SERVER", BUILD / "server" / "simgrad-server"))


class Server:
    """A server for as long as a `with` block; entering it gives the server itself."""

    def __init__(self, *flags: str):
        self._flags = flags

    def __enter__(self) -> Server:
        self.process = subprocess.Popen(
            [BINARY, "--port=0", "--metrics_port=0", *self._flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
        assert self.process.stdout
        self._ports = re.findall(r":(\d+)\b", self.process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    @property
    def target(self) -> str:
        return f"localhost:{self._ports[0]}"

    def processor_seconds(self) -> float:
        """Of all threads, ended ones too."""
        # clock_getcpuclockid(3): the clock of a process is ~pid << 3 | 2.
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def has_running_threads(self) -> bool:
        """Whether a thread runs, or would if it had a core."""
        for stat in pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                if stat.read_text().rpartition(")")[2].split()[0] == "R":
                    return True
        return False

    def metric(self, name: str) -> float:
        """The sum over the series of this name."""
        page = urllib.request.urlopen(f"http://localhost:{self._ports[1]}/metrics").read().decode()
        return sum(float(n) for n in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE))
