"""simgrad-server on free ports, and what its process has used."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable

COMPILES = "simgrad_kernel_compiles_total"
WARM_SECONDS = 300.0  # longer than it takes to compile the largest row's best code
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
BINARY = pathlib.Path(os.environ.get("SIMGRAD_SERVER", BUILD / "server" / "simgrad-server"))


class NeverWarm(RuntimeError):
    """A measurement would be of code that is not the best."""


class Server:
    """A server for as long as a `with` block; entering it gives the server itself."""

    def __init__(self, *flags: str):
        self._flags = flags

    def __enter__(self) -> Server:
        self._log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [BINARY, "--port=0", "--metrics_port=0", *self._flags],
            stdout=subprocess.PIPE, stderr=self._log, text=True)  # fmt: skip
        assert self.process.stdout
        self._ports = re.findall(r":(\d+)\b", self.process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        ended = self.process.poll()
        self.process.terminate()
        self.process.wait()
        if ended is not None:  # what failed for it says less
            self._log.seek(0)
            print(f"the server had ended by itself, exit code {ended}; its last words:", file=sys.stderr)
            print("".join(self._log.readlines()[-20:]), file=sys.stderr)
        self._log.close()

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

    def metric(self, name: str, label: str = "") -> float:
        """The sum over the series of this name, or over those of them with a label such as `quality="best"`."""
        page = urllib.request.urlopen(f"http://localhost:{self._ports[1]}/metrics").read().decode()
        found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", page, re.MULTILINE)
        return sum(float(number) for labels, number in found if label in labels)

    def warm(self, *calls: Callable[[], object]) -> None:
        """Calls until the best code of whatever they compile is made, and nothing runs.

        The best code of what takes long to compile is made only once quick code has run for some time.
        Raises: NeverWarm after WARM_SECONDS.
        """
        begin, quiet = time.perf_counter(), 0
        while quiet < 2:
            if time.perf_counter() - begin > WARM_SECONDS:
                raise NeverWarm(f"{self._waits_for()} kernels still wait for best code after {WARM_SECONDS:.0f} s")
            before = self.metric(COMPILES)
            for call in calls:
                call()
            while self.has_running_threads():  # best code is made beside requests
                time.sleep(0.02)
            is_quiet = self.metric(COMPILES) == before and self._waits_for() <= 0
            quiet = quiet + 1 if is_quiet else 0

    def _waits_for(self) -> float:
        return self.metric(COMPILES, 'quality="quick"') - self.metric(COMPILES, 'quality="best"')
