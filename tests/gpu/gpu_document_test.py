"""docs/gpu.md shows no figure that no run has given."""

import pathlib
import re

from write_table import with_table

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_document_says_not_run_yet_or_holds_the_table_of_a_run():
    document = (ROOT / "docs/gpu.md").read_text()
    table = document.split("gpu-check --write -->\n")[1].split("<!-- end")[0].strip()
    if table == "not run yet":
        assert "has not been run on a GPU yet" in " ".join(document.split())
        assert not re.search(r"\d\s*(ms|GB/s|ns)\b", document)
    else:
        assert re.search(r"driver for CUDA \d+\.\d+, NVRTC \d+\.\d+, \d{4}-\d\d-\d\d, revision \w+", table)


def test_a_table_takes_the_place_of_the_last_one_and_nothing_else():
    document = (ROOT / "docs/gpu.md").read_text()
    once = with_table(document, "| a | b |")
    assert "| a | b |" in once
    assert with_table(once, "not run yet\n") == with_table(document, "not run yet\n")
