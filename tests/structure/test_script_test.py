"""The last line of scripts/test says how many passed and failed, whatever happened before it."""

import os
import shutil
import subprocess
import sys

import pytest

ENDS_WELL = "#!/usr/bin/env bash\n"
FAILS = "#!/usr/bin/env bash\nexit 1\n"
# Counts as the real one does; as pytest it leaves a report of two tests that passed and one that failed.
PYTHON = f"""#!{sys.executable}
import runpy, sys
if sys.argv[1].endswith("count_results.py"):
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    case = '<testcase name="a"/><testcase name="b"/><testcase name="c"><failure/></testcase>'
    with open(sys.argv[sys.argv.index("--junitxml") + 1], "w") as report:
        report.write(f'<testsuites><testsuite name="pytest" tests="3" failures="1">{{case}}</testsuite></testsuites>')
"""


def run(root, tmp_path, programs):
    """scripts/test in a tree where only `programs` are there to run, by their paths."""
    for name in ("test", "count_results.py"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(root / "scripts" / name, tmp_path / "scripts" / name)
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    done = subprocess.run(
        [tmp_path / "scripts/test"], cwd=tmp_path, env={**os.environ, "PATH": path},
        capture_output=True, text=True)  # fmt: skip
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("code", [1, 7])
def test_a_build_that_fails_is_counted_and_named(root, tmp_path, code):
    build = f"#!/usr/bin/env bash\nexit {code}\n"
    status, lines = run(root, tmp_path, {"scripts/setup": ENDS_WELL, "scripts/build": build})
    assert status == 1
    assert lines[-1] == "0 passed, 1 failed"
    assert any(line.startswith("FAILED: set-up and build") for line in lines)


def a_tree(**others):
    programs = dict.fromkeys(["scripts/setup", "scripts/build", "bin/ctest"], ENDS_WELL)
    programs |= dict.fromkeys(["scripts/setup-jax", "scripts/setup-ray"], FAILS)
    programs |= {f"build/fuzz/tests/fuzz/{name}": ENDS_WELL for name in ("make_corpus", "program_fuzz")}
    return programs | {".venv/bin/python": PYTHON} | others


def test_suites_beside_each_other_are_summed(root, tmp_path):
    status, lines = run(root, tmp_path, a_tree())
    # Two suites of Python and the fuzzer, and two of CTest that leave no report and so have failed; those with
    # JAX and Ray are left out, which is said.
    assert status == 1
    assert lines[-1] == "5 passed, 4 failed"
    assert sum(line.startswith("skipped") for line in lines) == 2


def test_a_suite_that_ends_early_is_named(root, tmp_path):
    status, lines = run(root, tmp_path, a_tree(**{"build/fuzz/tests/fuzz/make_corpus": FAILS}))
    assert status == 1
    assert lines[-1] == "4 passed, 5 failed"
    assert any(line.startswith("FAILED: fuzzing") for line in lines)
