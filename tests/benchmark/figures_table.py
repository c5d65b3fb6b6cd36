"""The table of the engine and of load: figures in a column for each maker of processors, each column of one run."""

from __future__ import annotations

import dataclasses

FIRST, LAST = "figure", "asked"


@dataclasses.dataclass
class Column:
    """One run.

    Attributes:
      values: by figure, as they are printed.
      said: the paragraph below the table.
    """

    values: dict[str, str]
    said: str


def parsed(text: str) -> dict[str, Column]:
    """The columns of a printed table, by maker."""
    if not text.startswith("|"):
        return {}
    lines = [_cells(line) for line in text.splitlines() if line.startswith("|")]
    makers = lines[0][1:-1]
    said = dict(line.split(": ", 1) for line in text.splitlines() if line and not line.startswith("|"))
    return {
        maker: Column({line[0]: line[1 + k] for line in lines[2:] if line[1 + k]}, said[maker])
        for k, maker in enumerate(makers)
    }


def printed(columns: dict[str, Column], asked: dict[str, str]) -> str:
    """The table of `asked`, which has every figure in its order; figures that are measured no more are left out."""
    makers = sorted(columns)
    lines = [[FIRST, *makers, LAST], ["---"] * (len(makers) + 2)]
    lines += [[name, *(columns[m].values.get(name, "") for m in makers), bound] for name, bound in asked.items()]
    table = "\n".join("|" + "|".join(_padded(line)) + "|" for line in lines)
    return "\n\n".join([table, *(f"{maker}: {columns[maker].said}" for maker in makers)])


def _padded(line: list[str]) -> list[str]:
    return line if line[0] == "---" else [f" {cell} " for cell in line]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
