"""A server of this build, on free ports, for as long as the tests want it."""

import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = pathlib.Path(
    os.environ.get("SIMGRAD_SERVER", ROOT / "build/release/server/simgrad-server")
)
FREE_PORTS = ("--port=0", "--metrics_port=0")


def eventually(holds, seconds=60):
    """Waits until holds() is true and returns what it gave; fails after far longer than it can take."""
    end = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.02)
    return value


def _is_given(flag, flags):
    return any(other.startswith(flag.partition("=")[0] + "=") for other in flags)


class LiveServer:
    """Starts the server and reads its ports from the line that it prints when it listens.

    The log goes to a file: a pipe that nobody reads would fill and stop the server.
    """

    def __init__(
        self,
        *flags: str,
        binary: pathlib.Path = BINARY,
        environment: dict[str, str] | None = None,
    ):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(binary), *(f for f in FREE_PORTS if not _is_given(f, flags)), *flags],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        banner = self.process.stdout.readline()
        ports = re.findall(r":(\d+)\b", banner)
        if "listening" not in banner or len(ports) < 2:
            self.process.wait()
            self.log.seek(0)
            raise RuntimeError(f"{binary} did not listen: {banner}{self.log.read()}")
        self.port, self.metrics_port = map(int, ports[:2])

    @property
    def target(self) -> str:
        return f"localhost:{self.port}"

    def series(self, name: str) -> float:
        """The value of a series now; `name` has its labels, as the page of metrics writes them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as page:
            [value] = [line.split()[-1] for line in page.read().decode().splitlines() if line.startswith(name + " ")]
        return float(value)

    def has_dropped(self, kept: int) -> bool:
        """Whether so many rollouts that were kept have expired."""
        return self.series('simgrad_tape_evictions_total{reason="ttl"}') >= kept

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        self.log.close()
        return code


def on_one_port(*flags):
    """Two servers with one port, as pods have it, on two addresses of loopback."""
    while True:
        first = LiveServer("--address=127.0.0.1", *flags)
        try:
            return [first, LiveServer("--address=127.0.0.2", f"--port={first.port}", *flags)]
        except RuntimeError:  # another process has that port there
            first.stop()
