"""The flags that the server of this build knows."""

import re
import subprocess

from live_server import BINARY


def server_flags():
    """Names of the flags that --help lists."""
    done = subprocess.run([str(BINARY), "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"(?m)^\s+--(\w+)", done.stdout))
