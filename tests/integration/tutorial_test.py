"""The cells of docs/tutorial.ipynb run in their order, and show what the text between them says."""

import json

import pytest
from live_server import BINARY


def test_the_tutorial_runs(root, tmp_path, monkeypatch, capsys):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.setenv("SIMGRAD_SERVER", str(BINARY))
    cells = json.loads((root / "docs/tutorial.ipynb").read_text())["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in codes), "outputs are not kept"
    names, printed = {}, []
    try:
        for number, cell in enumerate(codes):
            source = tmp_path / f"cell_{number}.py"
            source.write_text("".join(cell["source"]))
            exec(compile(source.read_text(), str(source), "exec"), names)
            printed.append(capsys.readouterr().out)
    finally:
        if "client" in names:
            names["client"].close()
    text = "\n".join(printed)
    assert "backward (cell_1.py:" in text and "touch (cell_1.py:" in text
    assert "True\n" in printed[4], "a ball alone has the bits that it has among others"
    by_gradient, by_difference = map(float, printed[5].splitlines()[-1].split())
    assert by_gradient == pytest.approx(by_difference, rel=1e-6)
    assert names["damping"] == pytest.approx(40, abs=0.01)
    assert "f32 takes the path of f64 in 32 of 32" in text and "bf16_unsafe leaves the path of f64" in text
    assert names["tuned"].confirmed
    assert names["lost"].ok.tolist() == [True, False] and "(cell_9.py:3)" in printed[9]
