"""The table of figures keeps the columns of other makers' processors."""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import figures_table  # noqa: E402
import run  # noqa: E402

ASKED = {"a / b": ">= 1", "log of f32 [ns]": "<= 3", "told": ""}
AMD = figures_table.Column({"a / b": "0.9", "told": "4"}, "a rollout: 8 ms. On AMD EPYC, 2 cores.")
INTEL = figures_table.Column({"a / b": "1.1", "log of f32 [ns]": "2.5", "told": "7"}, "a rollout: 9 ms.")


def test_a_printed_table_is_parsed_to_what_it_was():
    text = figures_table.printed({"Intel": INTEL, "AMD": AMD}, ASKED)
    assert text.splitlines()[0] == "| figure | AMD | Intel | asked |"
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {5}
    assert figures_table.parsed(text) == {"AMD": AMD, "Intel": INTEL}
    assert figures_table.printed(figures_table.parsed(text), ASKED) == text


def test_a_figure_that_is_measured_no_more_is_left_out():
    text = figures_table.printed({"AMD": AMD}, {"told": ""})
    assert "a / b" not in text and "| told | 4 |  |" in text


def test_the_page_has_such_a_table():
    text = run.between((run.ROOT / "docs" / "performance.md").read_text(encoding="utf-8"), "table")
    columns = figures_table.parsed(text)
    assert columns and all(column.values and column.said for column in columns.values())
    assert figures_table.parsed("") == {}
