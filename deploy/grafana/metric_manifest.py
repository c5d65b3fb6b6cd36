"""The metrics that a server exports, as docs/metrics.md lists them.

docs/metrics.md is printed from server/metrics/manifest.cc and held against it by a test, so this is
the manifest without a compiler.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROW = re.compile(r"\| `(?P<name>\w+)` \| (?P<type>\w+) \| (?P<labels>.*?) \| (?P<help>.*?) \|")
SAMPLE_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclasses.dataclass(frozen=True)
class Metric:
    """One family: its name, type (counter, gauge, histogram) and the names of its labels."""

    name: str
    type: str
    labels: tuple[str, ...]


def exported() -> dict[str, Metric]:
    """Every family that a server exports, by name."""
    text = (ROOT / "docs/metrics.md").read_text()
    rows = [ROW.match(line) for line in text.splitlines()]
    found = {
        row["name"]: Metric(row["name"], row["type"], tuple(re.findall(r"`(\w+)`", row["labels"])))
        for row in rows
        if row
    }
    if not found:
        raise ValueError("docs/metrics.md has no table of metrics")
    return found


def family_of(sample: str, families) -> str:
    """The family that a name in an expression belongs to: x for x_bucket, x_sum, x_count of a
    histogram."""
    for suffix in SAMPLE_SUFFIXES:
        stem = sample.removesuffix(suffix)
        if stem != sample and stem in families:
            return stem
    return sample


def names_in(expression: str) -> set[str]:
    """Names of series in a PromQL expression in which every selector has braces."""
    without_strings = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    return set(re.findall(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{", without_strings))
