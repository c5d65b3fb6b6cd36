"""What every Python test may use: the repository's root, reference values, and the --long
switch."""

import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also run tests marked long")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        for item in items:
            if "long" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="--long"))


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def published():
    cases = json.loads((ROOT / "tests/data/published.json").read_text())["cases"]
    return {case["name"]: case for case in cases}
