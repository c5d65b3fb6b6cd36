"""The example of docs/jax.md runs, and says what it says."""

import re


def test_the_example_runs(root, server, tmp_path, capsys):
    page = (root / "docs/jax.md").read_text()
    code = re.search(r"```python\n(import.*?)```", page, re.DOTALL)[1]
    source = tmp_path / "step.py"
    source.write_text(code.replace("localhost:8001", server.target))
    exec(compile(source.read_text(), str(source), "exec"), {})
    printed = capsys.readouterr().out
    assert "state: v, x" in printed and "observables: energy" in printed
    assert "step.py:" in printed
    assert re.search(r"worst of 3 leaves: \w+: \d\S* at step", printed)
