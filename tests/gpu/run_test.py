"""The script that runs the check on the machine with the GPU leaves what it had, whatever fails or is missing there."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Stands in for gpu_check: a row per section; `speed` takes longer than there is time when HANG is set.
GPU_CHECK = """#!/usr/bin/env bash
for argument in "$@"; do
  case "$argument" in
    --section=*) section=${argument#*=} ;;
    --json=*) json=${argument#*=} ;;
    --markdown=*) markdown=${argument#*=} ;;
  esac
done
[ -n "${NO_GPU:-}" ] && exit 3
[ -n "${NO_NVRTC:-}" ] && exit 4
failures=
[ "$section" = speed ] && [ -n "${WRONG_AND_HANG:-}" ] && failures='"case 7 differs"'
[ -n "${json:-}" ] && echo "{\\"section\\": \\"$section\\", \\"rows\\": [], \\"failures\\": [$failures]}" >"$json"
[ -n "${markdown:-}" ] && echo "**$section**: a GPU" >"$markdown"
[ "$section" = speed ] && [ -n "${HANG:-}${WRONG_AND_HANG:-}" ] && sleep 60
[ "$section" = sizes ] && [ -n "${WRONG:-}" ] && exit 1
exit 0
"""


# Stands in for the client's part: says that it could be imported, and from where.
END_TO_END = "import grpc, numpy, simgrad\nprint('the client ran from', simgrad.__path__[0])\n"


def bundle(folder, client=False, side_by_side=None):
    """What scripts/gpu-check packs, with these stand-ins."""
    inside = folder / "inside"
    (inside / "bin").mkdir(parents=True)
    (inside / "python").mkdir()
    (inside / "python/end_to_end.py").write_text(END_TO_END)
    if client:
        shutil.copytree(ROOT / "client/python/simgrad", inside / "python/simgrad")
    (inside / "bin/gpu_check").write_text(GPU_CHECK)
    (inside / "bin/gpu_check").chmod(0o755)
    side_by_side = side_by_side or (ROOT / "tests/gpu/side_by_side.py").read_text()
    (inside / "python/side_by_side.py").write_text(side_by_side)
    (inside / "revision").write_text("abc")
    with tarfile.open(folder / "bundle.tar.xz", "w:xz") as archive:
        archive.add(inside, arcname=".")
    shutil.rmtree(inside)
    shutil.copy(ROOT / "tests/gpu/run", folder / "run")
    return folder


def run(folder, **environment):
    """With these variables; None: without that one."""
    given = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    done = subprocess.run(["bash", str(folder / "run")], env=given, capture_output=True, text=True, timeout=120)
    results = folder / "results"
    table = (results / "table.md").read_text() if (results / "table.md").exists() else ""
    return done, table


def test_what_is_missing_is_told_and_all_else_runs(tmp_path):
    done, table = run(bundle(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    for section in ("equality", "speed", "sizes", "side by side"):
        assert f"**{section}**" in table, table
    assert "not run: the server end to end: python3 cannot import the client: ModuleNotFoundError" in table
    assert "not run: compute-sanitizer memcheck" in table or shutil.which("compute-sanitizer")
    sections = json.loads((tmp_path / "results/gpu-check.json").read_text())["sections"]
    assert [s["section"] for s in sections] == ["equality", "speed", "sizes", "side by side", "equality"]


def test_the_client_runs_with_the_packages_of_python3(tmp_path):
    folder = bundle(tmp_path / "bundle", client=True)
    interpreter = tmp_path / "bin"
    interpreter.mkdir()
    # What an import says does not matter, only whether it fails.
    (interpreter / "python3").write_text(f'#!/bin/sh\necho a warning >&2\nexec {sys.executable} "$@"\n')
    (interpreter / "python3").chmod(0o755)
    done, table = run(folder, PATH=f"{interpreter}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"- the client ran from {folder}/python/simgrad" in table, table


def test_a_section_that_hangs_is_cut_off_and_the_others_have_their_figures(tmp_path):
    done, table = run(bundle(tmp_path), HANG="1", GPU_CHECK_SECONDS="12")
    assert "cut off after" in table and "speed" in table, table
    assert "**equality**" in table
    json.loads((tmp_path / "results/gpu-check.json").read_text())
    assert done.returncode == 0


def test_a_section_that_finds_something_wrong_fails_the_run_and_the_others_go_on(tmp_path):
    done, table = run(bundle(tmp_path), WRONG="1")
    assert done.returncode == 1
    assert "**Failed:** sizes, exit code 1" in table
    assert "**side by side**" in table


def test_a_section_that_is_cut_off_after_it_found_something_wrong_fails_the_run(tmp_path):
    done, table = run(bundle(tmp_path), WRONG_AND_HANG="1", GPU_CHECK_SECONDS="12")
    assert "cut off after" in table, table
    assert done.returncode == 1


def test_what_a_user_would_write_finds_its_libraries_as_the_caller_of_the_check_set_them(tmp_path):
    tells = "import os; print('path', os.environ.get('LD_LIBRARY_PATH'))"
    for path in ("/a/folder", None):
        folder = bundle(tmp_path / str(path is None), side_by_side=tells)
        done, _ = run(folder, LD_LIBRARY_PATH=path)
        assert f"path {path}\n" in done.stdout, done.stdout + done.stderr


def test_without_a_gpu_the_run_ends_at_once(tmp_path):
    done, _ = run(bundle(tmp_path), NO_GPU="1")
    assert done.returncode == 3


def test_without_nvrtc_what_needs_none_is_run_and_the_run_says_so(tmp_path):
    done, table = run(bundle(tmp_path), NO_NVRTC="1")
    assert done.returncode == 4, done.stdout + done.stderr
    for section in ("equality", "speed", "the server end to end", "sizes"):
        assert f"- not run: {section}: libnvrtc was not found" in table, table
    assert "**side by side**" in table
