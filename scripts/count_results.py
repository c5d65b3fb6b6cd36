"""Counts passed and failed tests in the JUnit reports of a folder; prints "PASSED FAILED".

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


def main(folder: pathlib.Path) -> None:
    passed = failed = 0
    reported = set()
    for path in sorted(folder.glob("*.xml")):
        if path.name != "ctest.xml":
            p, f = counts(ElementTree.parse(path).getroot())
            passed, failed = passed + p, failed + f
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
