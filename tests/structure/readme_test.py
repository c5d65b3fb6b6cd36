"""Every README begins with a title, and the files that its tables name are there."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("client", "deploy", "docs", "precision", "proto", "server", "sim", "tests")
NAMED = re.compile(r"`((?:\.\./|[\w-]+/)*[\w-]+(?:\.(?:h|cc|py|md|proto|inc|cuh)|/))`")


def readmes():
    found = [ROOT / "README.md"]
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("README.md")
    return sorted(path for path in found if "node_modules" not in path.parts and ".venv" not in path.parts)


def exists(readme, name):
    """Whether it stands beside the page, below it (a page speaks of its package), or in the tree."""
    if (readme.parent / name).exists() or (ROOT / name).exists():
        return True
    return readme.parent != ROOT and not name.startswith("..") and any(readme.parent.rglob(name))


def missing(readme, text):
    """Files that first cells of tables name and that do not exist."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return [name for cell in cells for name in NAMED.findall(cell) if not exists(readme, name)]


@pytest.mark.parametrize("readme", readmes(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_readme_has_a_title_and_names_files_that_exist(readme):
    text = readme.read_text()
    assert re.match(r"# \S.*\n\n", text), "it does not begin with `# TITLE` and an empty line"
    assert missing(readme, text) == []


def test_a_file_that_is_gone_is_found():
    readme = ROOT / "sim" / "backend" / "cuda" / "README.md"
    assert missing(readme, "| `cuda_run.h`, `gone.h`, `text/` | |\n") == ["gone.h"]


def test_the_front_page_installs_by_pip_first_and_then_by_the_two_commands():
    text = (ROOT / "README.md").read_text()
    places = [text.index(shown) for shown in ("pip install dist/*.whl", "simgrad serve", "scripts/demo", "scripts/test")]
    assert places == sorted(places)
