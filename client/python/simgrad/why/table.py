"""Tables of text."""

from __future__ import annotations

from typing import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first of them the heads, in columns as wide as they need."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join(lines)
