"""docs/adding-an-operation.md: its table has the fields of an entry, and its example is the one that the tests build."""

import re

PAGE = "docs/adding-an-operation.md"


def fields_of(text):
    """The members of OpInfo, in their order; functions are none."""
    [body] = re.findall(r"^struct OpInfo \{\n(.*?)^\};", text, re.DOTALL | re.MULTILINE)
    body = re.sub(r"//[^\n]*", "", body)
    found = []
    for member in body.split(";"):
        declared = re.sub(r"\s*=.*", "", member, flags=re.DOTALL).strip()
        if declared and not declared.startswith("constexpr") and declared != "}":
            [name] = re.findall(r"(\w+)(?:\[\d+\])?$", declared)
            found.append(name)
    return found


def told_by(page):
    """The fields of the page's table, by its first column."""
    [table] = re.findall(r"^\| field \|.*?\n\n", page, re.DOTALL | re.MULTILINE)
    return [name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_members_of_every_kind_are_read():
    text = (
        "struct OpInfo {\n"
        "  Operands operands;\n"
        "  Rule<bool(const Carriage& carriage)> carries = {};  // where it depends; else not\n"
        "  Rule<std::vector<double>(const Program& program, size_t element)>\n      made_of = {};\n"
        "  Domain domains[3] = {Domain::kAll, Domain::kAll, Domain::kAll};\n"
        "  constexpr bool can_create() const { return birth != Birth::kNever; }\n"
        "};\n"
    )
    assert fields_of(text) == ["operands", "carries", "made_of", "domains"]


def test_the_table_has_every_field_once_and_no_other(root):
    fields = fields_of((root / "sim/op/op_info.h").read_text())
    told = told_by((root / PAGE).read_text())
    assert {"name", "vjp", "lower"} <= set(fields)
    assert sorted(told) == sorted(fields)


def test_the_example_is_the_entry_that_the_tests_build(root):
    entry = r"^const OpInfo kGaussian = Complete\(\{\n.*?^\}\);$"
    [shown] = re.findall(entry, (root / PAGE).read_text(), re.DOTALL | re.MULTILINE)
    [built] = re.findall(entry, (root / "tests/sim/op/gaussian.cc").read_text(), re.DOTALL | re.MULTILINE)
    assert shown == built
    named = re.findall(r"\.\w+ = (\w+),$", shown, re.MULTILINE)
    page = (root / PAGE).read_text()
    assert named and all(f"`{rule}`" in page for rule in named), "rules that are left out are named"
