"""The processor of this machine, as the tables name it."""

from __future__ import annotations

import os
import platform
import re


def name() -> str:
    """Its model and how many cores there are, for example "Intel(R) Xeon(R) Processor, 2 cores"."""
    model = platform.processor()
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"{model}, {os.cpu_count()} cores"


def maker() -> str:
    """The first word of its name, for example "Intel"."""
    return re.split(r"\W", name())[0]
