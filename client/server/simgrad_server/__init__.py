"""The server of simgrad as a file, and as a command."""

from __future__ import annotations

import os
import pathlib
import sys

__version__ = "0.1.0"


def path() -> pathlib.Path:
    """The binary. It finds NVRTC where the wheel of NVIDIA (`simgrad-server[cuda]`) lies beside this package."""
    return pathlib.Path(__file__).with_name("bin") / "simgrad-server"


def main() -> None:
    """Becomes the server, with the flags of this process."""
    os.execv(path(), ["simgrad-server", *sys.argv[1:]])
