"""What scripts/count_results.py takes for a failure."""

import subprocess
import sys

RAN = '<testcase classname="tests.client.a_test" name="runs"/>'


def skipped(module, reason):
    inside = f'<skipped type="pytest.skip" message="{reason}"/>'
    return f'<testcase classname="tests.client.{module}" name="skipped">{inside}</testcase>'


def count(root, folder, *cases):
    (folder / "pytest.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    script = root / "scripts/count_results.py"
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True)
    return done.stdout.strip(), done.stderr


def test_a_file_of_which_nothing_ran_is_a_failure_and_named(root, tmp_path):
    printed, errors = count(root, tmp_path, RAN, skipped("b_test", "no Python here has PyTorch"))
    assert printed == "1 1" and "tests.client.b_test" in errors


def test_a_file_that_waits_for_long_or_ran_in_part_is_none(root, tmp_path):
    cases = [RAN, skipped("a_test", "not here"), skipped("c_test", "--long")]
    assert count(root, tmp_path, *cases) == ("1 0", "")
