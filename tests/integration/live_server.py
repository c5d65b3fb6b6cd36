"""A server of this build, on free ports, for as long as the tests want it."""

import os
import pathlib
import re
import signal
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = pathlib.Path(
    os.environ.get("SIMGRAD_SERVER", ROOT / "build/release/server/simgrad-server")
)


class LiveServer:
    """Starts the server and reads its ports from the line that it prints when it listens."""

    def __init__(self, *flags: str):
        self.process = subprocess.Popen(
            [str(BINARY), "--port=0", "--metrics_port=0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            ports = re.findall(r":(\d+)\b", line)
            if "listening" in line and len(ports) >= 2:
                self.port, self.metrics_port = map(int, ports[:2])
                return
        raise RuntimeError(f"{BINARY} ended before it listened: {''.join(self.lines)}")

    @property
    def target(self) -> str:
        return f"localhost:{self.port}"

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.stdout.read()
        return self.process.wait(timeout=60)
