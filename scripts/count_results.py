"""Counts passed and failed tests in the JUnit reports of a folder; prints "PASSED FAILED".

A Python file whose tests were all skipped, and not for want of --long, counts as one failure and is
named on standard error: what nobody runs is not tested.

usage: count_results.py FOLDER
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def counts(suite: ElementTree.Element) -> tuple[int, int]:
    """Passed and failed of one report; skipped and disabled tests count as neither."""
    cases = list(suite.iter("testcase"))
    failed = sum(1 for c in cases if c.find("failure") is not None or c.find("error") is not None)
    idle = sum(
        1
        for c in cases
        if c.find("skipped") is not None or c.get("status") in ("notrun", "disabled")
    )
    return len(cases) - failed - idle, failed


def unrun_files(suite: ElementTree.Element) -> list[str]:
    """Modules of a pytest report of which nothing ran, though something should have."""
    skips: dict[str, list[str | None]] = {}
    for case in suite.iter("testcase"):
        skipped = case.find("skipped")
        reason = None if skipped is None else skipped.get("message", "")
        # Of a class inside a module, the module.
        module = ".".join(p for p in case.get("classname", "").split(".") if not p[:1].isupper())
        skips.setdefault(module, []).append(reason)
    return [
        module
        for module, reasons in skips.items()
        if None not in reasons and any(r != "--long" for r in reasons)
    ]


def main(folder: pathlib.Path) -> None:
    passed = failed = 0
    reported = set()
    for path in sorted(folder.glob("*.xml")):
        if path.name != "ctest.xml":
            suite = ElementTree.parse(path).getroot()
            p, f = counts(suite)
            passed, failed = passed + p, failed + f
            if path.name == "pytest.xml":
                for module in unrun_files(suite):
                    failed += 1
                    print(f"FAILED: {module}: every test of it was skipped", file=sys.stderr)
            reported.add(path.stem)
    if (folder / "ctest.xml").exists():
        for case in ElementTree.parse(folder / "ctest.xml").getroot().iter("testcase"):
            broke = case.find("failure") is not None
            if case.get("name") not in reported:
                passed, failed = passed + (not broke), failed + broke
    elif not reported:
        failed += 1  # the runner itself did not get as far as a report
    print(passed, failed)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
