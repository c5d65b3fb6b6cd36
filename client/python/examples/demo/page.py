"""How the demo prints: headings, plain paragraphs, tables."""

import textwrap

WIDTH = 100


def heading(text: str) -> None:
    print(f"\n{text}\n{'=' * len(text)}")


def paragraph(text: str) -> None:
    print("\n" + textwrap.fill(" ".join(text.split()), WIDTH) + "\n")


def table(header: list[str], rows: list[list[object]]) -> None:
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [header] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for number, row in enumerate(cells):
        print("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * w for w in widths))
