"""The flags that the server of this build knows, and those that the deployment speaks of already."""

import re
import subprocess

from live_server import BINARY

# A test fails where the server has learnt one and it still stands here.
EXPECTED = {
    "kernel_cache": "comes with the CUDA executor",
    "warm": "comes with the CUDA executor",
}


def server_flags():
    """Names of the flags that --help lists."""
    done = subprocess.run([str(BINARY), "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"(?m)^\s+--(\w+)", done.stdout))


def known_flags():
    return server_flags() | EXPECTED.keys()
