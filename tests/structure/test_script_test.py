"""The last line of scripts/test says how many passed and failed, whatever happened before it."""

import os
import shutil
import signal
import subprocess
import sys
import time

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


def make_tree(root, tmp_path, programs):
    """A tree in which only `programs` are there to run, by their paths."""
    for name in ("test", "count_results.py"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(root / "scripts" / name, tmp_path / "scripts" / name)
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def take_signals():
    """Suites of scripts/test are started in the background, where a shell has SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(tmp_path):
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    return subprocess.Popen(
        [tmp_path / "scripts/test"], cwd=tmp_path, env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=take_signals)  # fmt: skip


def run(root, tmp_path, programs):
    make_tree(root, tmp_path, programs)
    done = start(tmp_path)
    out, _ = done.communicate()
    return done.returncode, out.splitlines()


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
    # Three suites of Python and the fuzzer, and three of CTest that leave no report and so have failed; those with
    # JAX and Ray are left out, which is said.
    assert status == 1
    assert lines[-1] == "7 passed, 6 failed"
    assert sum(line.startswith("skipped") for line in lines) == 2


def test_a_suite_that_ends_early_is_named_and_the_others_count(root, tmp_path):
    broken = FAILS.replace("exit 1", 'case "$*" in *asan*) kill -9 $PPID ;; esac')
    status, lines = run(root, tmp_path, a_tree(**{"bin/ctest": broken}))
    assert status == 1
    assert lines[-1] == "7 passed, 6 failed"
    assert "FAILED: with_sanitizers ended early" in lines


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGINT"])
def test_a_run_that_is_ended_says_so_and_leaves_nothing_running(root, tmp_path, signal_name):
    sleep = f"sleep 600.{os.getpid()}"  # no other's
    waits = f'#!/usr/bin/env bash\necho "this suite waits"\ntouch waits; exec {sleep}\n'
    make_tree(root, tmp_path, a_tree(**{"build/fuzz/tests/fuzz/program_fuzz": waits}))
    started = start(tmp_path)
    while not (tmp_path / "waits").exists():
        assert started.poll() is None
        time.sleep(0.01)
    started.send_signal(getattr(signal, signal_name))
    out, _ = started.communicate(timeout=60)
    lines = out.splitlines()
    assert started.returncode == 1
    assert any(line.startswith("FAILED: suites beside each other") for line in lines)
    assert "this suite waits" in lines
    gone = time.monotonic() + 60
    while subprocess.run(["pgrep", "-fx", sleep], capture_output=True).returncode == 0:
        assert time.monotonic() < gone, "it runs on"
        time.sleep(0.05)
