"""Puts the table of a run into docs/gpu.md, between its two marks.

usage: write_table.py TABLE DOCUMENT
"""

import pathlib
import re
import sys


def with_table(document, table):
    """The document with what stands between the marks replaced."""
    marks = re.compile(r"(<!-- table: scripts/gpu-check --write -->\n).*?(<!-- end of table -->)", re.DOTALL)
    if not marks.search(document):
        raise SystemExit("the document has no marks for the table")
    return marks.sub(lambda found: found.group(1) + table.strip() + "\n" + found.group(2), document)


if __name__ == "__main__":
    table, document = (pathlib.Path(name) for name in sys.argv[1:3])
    document.write_text(with_table(document.read_text(), table.read_text()))
