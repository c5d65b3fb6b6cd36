"""Runs a script of this folder under `.venv`, the client's Python, which scripts/setup makes where it is missing."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv"


def enter() -> None:
    """Goes on as the same command under that Python; returns where it is that already."""
    if pathlib.Path(sys.prefix) == FOLDER:
        return
    if not (FOLDER / "bin/python").exists():
        subprocess.run([ROOT / "scripts/setup"], check=True)
    os.execv(FOLDER / "bin/python", [FOLDER / "bin/python", *sys.argv])
