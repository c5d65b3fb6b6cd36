"""What README and examples show runs, and does what it says."""

import importlib.machinery
import importlib.util
import re
import subprocess
import sys

import pytest

import simgrad as sg


def example(root, name):
    spec = importlib.util.spec_from_file_location(name, root / f"client/python/examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_restitution_is_recovered(root, server):
    # The step takes 0.4 of Newton's; 40 of them leave at most 0.6^40 = 1e-9 of the distance.
    assert example(root, "train_restitution").main(server.target) == pytest.approx(0.8, abs=1e-6)


def test_policies_part_as_shown(root, server, capsys):
    example(root, "compare_policies").main(server.target)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "[1, 0, 0, 0]" in lines["f32"] and "[1, 0, 0, 0]" in lines["bf16_safe"]
    assert "[0, 0, 0, 0]" in lines["bf16_unsafe"] and "gated by projection" in lines["bf16_unsafe"]


def test_a_world_of_ones_own_runs(root, server, capsys):
    example(root, "own_world").main(server.target)
    assert "first step past the vertical:" in capsys.readouterr().out


def test_the_vanished_gradient_is_explained(root, server, tmp_path):
    file = tmp_path / "why.html"
    result = example(root, "why_did_it_vanish").main(server.target, str(file))
    assert "the loop `push_out` (why_did_it_vanish.py:17) stops at step 0 by a margin of -1 ulp, where f32 goes on" in result.why
    assert "push_out" in file.read_text()


def test_the_cheapest_policy_of_a_fluid_is_found_and_confirmed(root, server):
    tuned = example(root, "cheapest_policy").main(server.target)
    assert tuned.confirmed and tuned.formats["site cutoff"] == "f32" and tuned.formats["objective"] == "bf16"


def test_examples_are_short(root):
    for path in (root / "client/python/examples").glob("*.py"):
        assert len(path.read_text().splitlines()) < 60, path.name


@pytest.mark.parametrize("page", ["README.md", "client/README.md", "docs/programs.md", "docs/python.md", "docs/why.md"])
def test_python_of_the_readme_runs(root, page, server):
    if not (root / page).exists():
        pytest.skip(f"no {page}")
    blocks = re.findall(r"```python\n(.*?)```", (root / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        code = block.replace("localhost:8001", server.target)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page, lines", [("README.md", 1), ("docs/python.md", 2)])
def test_the_output_that_a_page_shows_is_what_its_first_block_prints(root, server, tmp_path, page, lines):
    """A line that ends with "..." is cut there."""
    block = re.search(r"```python\n(.*?)```", (root / page).read_text(), re.DOTALL)[1]
    shown = re.findall(r"^ *# (.*)$", block, re.MULTILINE)
    assert len(shown) == lines
    file = tmp_path / "ring.py"
    file.write_text(block.replace("localhost:8001", server.target))
    printed = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True).stdout.splitlines()
    kept = [line[: len(said) - 3] + "..." if said.endswith("...") else line for line, said in zip(printed, shown)]
    assert kept == shown and len(printed) == lines


def test_the_sentences_that_why_shows_are_those_that_it_prints(root, server):
    (block,) = re.findall(r"```python\n(.*?)```", (root / "docs/why.md").read_text(), re.DOTALL)
    shown = re.findall(r"((?:^ *# .*\n)+)", block, re.MULTILINE)
    code = block.replace("localhost:8001", server.target)
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    sentences = [" ".join(line.strip()[2:] for line in text.splitlines()) for text in shown]
    assert len(sentences) == 2 and "knife edge" in sentences[1]
    for sentence in sentences:
        assert sentence in printed.splitlines()


def test_the_pool_that_scale_shows_runs(root, server):
    block = re.search(r"```python\n(.*?)```", (root / "docs/scale.md").read_text(), re.DOTALL)[1]
    targets = '["gpu-1:8001", "gpu-2:8001"]'
    assert targets in block
    code = block.replace(targets, repr([server.target])) + "print(g.ok.all(), g.params)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("True"), done.stderr


def test_the_docstring_of_the_package_runs(server):
    code = "\n".join(line[4:] for line in sg.__doc__.splitlines() if line.startswith("    "))
    done = subprocess.run(
        [sys.executable, "-c", code.replace("localhost:8001", server.target)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_pictures_of_why_are_what_the_script_draws(root, server, tmp_path):
    loader = importlib.machinery.SourceFileLoader("why_pictures", str(root / "scripts/why-pictures"))
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader("why_pictures", loader))
    loader.exec_module(script)
    script.main(tmp_path, server.target)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == ["why-causes.svg", "why-forks.svg"]
    for name in drawn:
        assert (tmp_path / name).read_text() == (root / "docs/pictures" / name).read_text(), f"{name}: scripts/why-pictures"
