"""Links between pages lead somewhere: the file is there, and so is the heading."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("client", "deploy", "docs", "precision", "proto", "scripts", "server", "sim", "tests")
LEFT_OUT = {"build", "node_modules"}


def pages():
    found = [*ROOT.glob("*.md"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.md"))]
    return sorted(p for p in found if not any(x in LEFT_OUT or x.startswith(".") for x in p.relative_to(ROOT).parts))


def prose(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    found = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(text), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {a if not n else f"{a}-{n}" for a, count in found.items() for n in range(count + 1)}


def dead(page, text):
    """Links of a page to files or headings that are not there."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"\w+:", link):  # another site's
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        here = text if target == page else target.read_text() if target.suffix == ".md" and target.exists() else ""
        if (target != page and not target.exists()) or (anchor and anchor not in anchors(here)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_to_files_and_headings(page):
    assert dead(page, page.read_text()) == []


def test_a_dead_link_is_found_and_a_living_one_is_not():
    text = "# One `x`, two\n## A\n## A\n[1](#one-x-two) [2](#a-1) [3](README.md#docs) [4](https://a.b/#c)\n"
    assert dead(ROOT / "docs/page.md", text) == []
    gone = "[1](#a-2) [2](README.md#no) [3](no.md) [4](adr)\n```\n# no\n```\n"
    assert dead(ROOT / "docs/page.md", "## A\n" + gone) == ["#a-2", "README.md#no", "no.md"]
