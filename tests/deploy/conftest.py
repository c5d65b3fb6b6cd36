"""Servers, a Prometheus that watches one, and the sources of the deployment."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "deploy/grafana")]

import metric_manifest  # noqa: E402


@pytest.fixture(scope="session")
def exported():
    """Every family that a server exports, by name."""
    return metric_manifest.exported()


@pytest.fixture(scope="session")
def rules_text():
    return (ROOT / "deploy/prometheus/simgrad.rules.yml").read_text()
