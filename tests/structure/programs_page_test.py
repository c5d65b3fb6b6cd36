"""docs/programs.md tells of every operation that a world may use, and of no other."""

import re


def test_the_table_of_operations_is_that_of_the_source(root):
    rows = re.findall(
        r'^    \{k(\w+), "(\w+)", k(\w+),', (root / "sim/program/opcode.cc").read_text(), re.MULTILINE
    )
    assert len(rows) > 50
    # verify_operations.cc refuses these by name; the class of adjoint operations is refused whole.
    only_adjoint = {"pad", "any", "while_vjp", "for_vjp"}
    usable = {name for _, name, kind in rows if kind != "Adjoint"} - only_adjoint
    page = (root / "docs/programs.md").read_text()
    first_cells = re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)
    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == usable
