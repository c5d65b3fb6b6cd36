"""The examples of docs/jax.md run, and say what they say."""

import re

import jax
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


def test_the_example_of_function_goes_on_from_step_py_in_f64(root, server, tmp_path, capsys):
    blocks = re.findall(r"```python\n(import.*?)```", (root / "docs/jax.md").read_text(), re.DOTALL)
    (function,) = [block for block in blocks if "simgrad.jax.function" in block]
    source = tmp_path / "step.py"
    source.write_text((blocks[0] + function).replace("localhost:8001", server.target))
    before = jax.config.jax_enable_x64
    try:
        exec(compile(source.read_text(), str(source), "exec"), {})
    finally:
        jax.config.update("jax_enable_x64", before)
    slope, dtype = capsys.readouterr().out.splitlines()[-1].split()
    assert dtype == "float64" and float(slope) != 0


def test_the_example_of_integers_prints_its_inputs_and_a_gradient(root, server, tmp_path, capsys):
    blocks = re.findall(r"```python\n(import.*?)```", (root / "docs/jax.md").read_text(), re.DOTALL)
    (integers,) = [block for block in blocks if "varying=" in block]
    source = tmp_path / "step.py"
    source.write_text(integers.replace("localhost:8001", server.target))
    exec(compile(source.read_text(), str(source), "exec"), {})
    inputs, gradient = capsys.readouterr().out.splitlines()
    assert inputs == "{'control.action': 'int32', 'params.k': 'real', 'data.bonds': 'int64'}"
    slope = gradient.removesuffix(" {'action': None}")
    assert float(slope) != 0
