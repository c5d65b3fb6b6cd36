"""Comments that cite a subject of docs/semantics.md name a heading of it."""

import re


def test_every_cited_heading_exists(root):
    page = (root / "docs" / "semantics.md").read_text()
    headings = set(re.findall(r"^## (.+)$", page, re.MULTILINE))
    cited = set()
    for path in (root / "sim").rglob("*.h"):
        text = re.sub(r"\n//", "", path.read_text())
        for names in re.findall(r'docs/semantics\.md((?:,? (?:and )?"[^"]+")+)', text):
            cited |= set(re.findall(r'"([^"]+)"', names))
    assert {"Decisions", "Margins", "Counters"} <= cited
    assert cited <= headings, cited - headings
