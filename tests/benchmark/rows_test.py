"""Every row beside JAX runs in its least size, and both sides agree; what differs is an error."""

import pathlib
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "rows")]

import measure  # noqa: E402
import processor  # noqa: E402
import rows  # noqa: E402
import run  # noqa: E402
import table  # noqa: E402
from server_process import BINARY, Server  # noqa: E402

import simgrad as sg  # noqa: E402

ROW = rows.chosen(["ball, gradient"])[0]


@pytest.fixture(scope="module")
def yardstick():
    if not table.JAX_PYTHON.exists():
        pytest.skip("no .venv-jax: scripts/setup-jax makes it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiles sooner
        with measure.Yardstick() as process:
            yield process


@pytest.fixture(scope="module")
def server():
    assert BINARY.exists(), f"{BINARY} is missing: scripts/build release simgrad-server"
    with Server("--device=cpu", "--threads=1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with sg.Client(server.target, timeout=120) as connected:
        yield connected


FOREIGN = [r for r in rows.ROWS if r.subject == "foreign"]


def agree_and_can_be_timed(row, yardstick, server, client):
    ours = measure.Ours(row, "least", server, client)
    theirs, _ = yardstick.prepare(row, "least")
    measure.compare(row, ours.results(), theirs)
    for side in (ours, yardstick):
        seconds = side.timed(1)
        assert seconds["wall"] > 0 and seconds["processor"] > 0


@pytest.mark.parametrize("row", [r for r in rows.ROWS if r not in FOREIGN], ids=lambda row: row.name)
def test_both_sides_of_a_row_agree_and_can_be_timed(row, yardstick, server, client):
    agree_and_can_be_timed(row, yardstick, server, client)


@pytest.mark.long  # JAX compiles the steps of libraries for up to a minute, and longer without its optimizations
@pytest.mark.parametrize("row", FOREIGN, ids=lambda row: row.name)
def test_both_sides_of_a_row_of_a_library_agree_and_can_be_timed(row, server, client):
    if not table.JAX_PYTHON.exists():
        pytest.skip("no .venv-jax: scripts/setup-jax makes it")
    with measure.Yardstick() as yardstick:
        agree_and_can_be_timed(row, yardstick, server, client)


def test_a_yardstick_of_other_numbers_is_an_error(yardstick, server, client):
    theirs, _ = yardstick.prepare(ROW, "least")
    ours = measure.Ours(ROW, "least", server, client)
    ours._request["params"]["k"] = np.float32(1.01)
    with pytest.raises(measure.ResultsDiffer, match="ball, gradient: results differ by"):
        measure.compare(ROW, ours.results(), theirs)


@pytest.mark.parametrize(
    "ours",
    [{}, {"x": np.ones(3)}, {"x": np.array([1, np.nan])}, {"x": np.array([1, 2.01])}],
    ids=["missing", "another shape", "not finite", "beyond the tolerance"],
)
def test_results_that_differ_are_not_compared_in_speed(ours):
    row = rows.chosen(["grid of masses, rollout"])[0]
    measure.compare(row, {"x": np.array([1, 2.001])}, {"x": np.array([1.0, 2.0])})
    with pytest.raises(measure.ResultsDiffer):
        measure.compare(row, ours, {"x": np.array([1.0, 2.0])})


def test_numbers_near_the_smallest_normal_one_do_not_count():
    measure.compare(ROW, {"y": np.array([1e-45])}, {"y": np.array([1.2e-38])})


def test_rows_are_chosen_by_name_in_any_case():
    assert [r.name for r in rows.chosen(["LOTKA*", "exp"])] == [
        "Lotka-Volterra RK4, gradient",
        "Lotka-Volterra RK4, one instance, gradient",
        "exp",
    ]
    assert rows.chosen([]) == rows.ROWS and len({r.name for r in rows.ROWS}) == len(rows.ROWS)
    with pytest.raises(ValueError, match="no row is named nothing"):
        rows.chosen(["nothing"])


def test_a_line_has_a_cell_for_each_column_also_where_the_row_failed():
    side = {"wall": 0.2, "processor": 0.1, "compile": 1.0, "first": 1.0}
    made = {"difference": 1e-6, "ours": side, "jax": side}
    lines = [
        table.line(table.Measured(ROW, made, made), "full"),
        table.line(table.Measured(ROW, made, None), "full"),
        table.line(table.Measured(ROW, error="results differ by 1"), "full"),
    ]
    assert {line.count("|") for line in lines} == {table.HEAD[0].count("|")}
    assert "error: results differ by 1" in lines[2]


def test_each_line_names_the_processor_it_was_measured_on(monkeypatch):
    side = {"wall": 0.2, "processor": 0.1, "compile": 1.0, "first": 1.0}
    monkeypatch.setattr(table, "_on", lambda *_: {"difference": 1e-6, "ours": side, "jax": side})
    first, second = rows.ROWS[:2]
    page = "Before.\n<!-- rows: scripts/bench --write -->\nRemarks stay.\n<!-- end of rows -->\nAfter.\n"
    for row, machine in ((first, "Here, 2 cores"), (second, "There, 64 cores")):
        monkeypatch.setattr(processor, "name", lambda machine=machine: machine)
        page = run.with_rows(page, [table.measure(row, "full", 1, False)], "full")
    lines = page.splitlines()
    assert lines[4].startswith(f"| {first.name}") and lines[4].endswith(", Here, 2 cores |")
    assert lines[5].startswith(f"| {second.name}") and lines[5].endswith(", There, 64 cores |")
    assert lines[6:] == ["", "Remarks stay.", "<!-- end of rows -->", "After."]
    assert page.count("Here") == page.count("There") == 1


def test_the_page_says_of_every_row_where_it_was_measured():
    page = (HERE.parents[1] / "docs/performance.md").read_text(encoding="utf-8")
    block = run.between(page, "rows").splitlines()
    assert block[:2] == table.HEAD
    assert all(" cores |" in line for line in block[2:] if line.startswith("|"))


def test_rows_that_are_measured_again_replace_their_lines_and_no_others():
    side = {"wall": 0.2, "processor": 0.1, "compile": 1.0, "first": 1.0}
    made = {"difference": 1e-6, "ours": side, "jax": side}
    first, second, third = rows.ROWS[:3]
    measured = [table.Measured(row, made, when="then, 7.0") for row in (third, first)]
    page = table.merged("", measured, "full")
    assert [line.split(":")[0] for line in page.splitlines()[2:]] == [f"| {first.name}", f"| {third.name}"]
    again = [table.Measured(second, made, when="now, 0.1"), table.Measured(third, error="results differ by 1")]
    lines = table.merged(page, again, "full").splitlines()
    assert lines[:2] == table.HEAD and len(lines) == 5
    assert [line.split(" | ")[-1] for line in lines[2:]] == ["then, 7.0 |", "now, 0.1 |", "then, 7.0 |"]
    assert not {row.name for row in rows.ROWS if ":" in row.name}
