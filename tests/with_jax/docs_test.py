"""The example of docs/jax.md runs, and says what it says."""

import re

import pytest


@pytest.mark.parametrize("name", ["step", "pendulum"])
def test_the_example_runs_whatever_its_file_is_called(root, server, tmp_path, capsys, name):
    page = (root / "docs/jax.md").read_text()
    code = re.search(r"```python\n(import.*?)```", page, re.DOTALL)[1]
    source = tmp_path / f"{name}.py"
    source.write_text(code.replace("localhost:8001", server.target))
    exec(compile(source.read_text(), str(source), "exec"), {})
    printed = capsys.readouterr().out
    assert "state: v, x" in printed and "observables: energy" in printed
    assert re.search(rf"{name}\.step\.1 {name}\.py:\d+$", printed.strip())
    assert re.search(r"worst of 3 leaves: \w+: \d\S* at step", printed)
