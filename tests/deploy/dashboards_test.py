"""The dashboards as files: what the generator writes, clean of lint, and whole."""

import copy
import json
import re

import build_dashboards
import dashboard_lint
import dashboard_preview
import pytest
from live_server import ROOT
from metric_manifest import family_of, names_in

FOLDER = ROOT / "deploy/grafana/dashboards"
NAMES = sorted(build_dashboards.rendered())
# Prometheus itself makes the series of alerts.
BUILT_IN = {"ALERTS"}


def parsed(name):
    return json.loads(build_dashboards.rendered()[name])


def test_the_files_are_what_the_generator_writes():
    assert sorted(path.name for path in FOLDER.iterdir()) == NAMES
    for name, text in build_dashboards.rendered().items():
        assert (FOLDER / name).read_text() == text, "deploy/grafana/build_dashboards.py"


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_has_no_lint(name, exported):
    assert dashboard_lint.complaints(parsed(name), exported) == []


def test_panels_use_what_exists_and_show_all_of_it(exported):
    used = {
        family_of(series, exported)
        for name in NAMES
        for _, expression in dashboard_lint.expressions(parsed(name))
        for series in names_in(expression)
    }
    assert used - BUILT_IN <= exported.keys()
    assert exported.keys() <= used


@pytest.mark.parametrize("name", NAMES)
def test_namespace_and_pod_can_be_chosen_and_only_jobs_of_simgrad_are_shown(name):
    chosen = {v["name"]: v for v in parsed(name)["templating"]["list"]}
    for variable in ("namespace", "pod", "instance"):
        assert chosen[variable]["allValue"] == ".*", "series outside of Kubernetes have none"
    assert chosen["job"]["allValue"] is None, "other jobs export process_... too"
    assert 'namespace=~"$namespace"' in chosen["pod"]["definition"]


@pytest.mark.parametrize("name", NAMES)
def test_starts_and_alerts_are_marked_in_every_panel(name):
    marks = {a["name"]: a["expr"] for a in parsed(name)["annotations"]["list"]}
    assert "process_start_time_seconds" in marks["Starts"] and "ALERTS" in marks["Alerts"]


SHOWN = {
    "callers": "simgrad_caller_requests_total",
    "lanes": "simgrad_workers_busy",
    "caches": "simgrad_cache_bytes",
    "connections": "simgrad_connections",
    "compilations of kernels": "simgrad_kernel_compiles_total",
    "memory set aside": "simgrad_memory_limit_bytes",
}


@pytest.mark.parametrize("what", SHOWN)
def test_operations_show(what):
    expressions = dashboard_lint.expressions(parsed("simgrad-operations.json"))
    assert any(SHOWN[what] in names_in(expression) for _, expression in expressions)


def figure(name):
    """A preview in which every curve has many neighbours, with names as long as they come."""
    dashboard = parsed(name)
    labels = set(re.findall(r"\{\{(\w+)\}\}", str(dashboard["panels"])))
    lines = [
        {
            "metric": {label: f"{label}-with-a-long-name-{i}" for label in labels} | {"le": str(i)},
            "values": [[100.0 + t, str(t * i)] for t in range(9)],
        }
        for i in range(9)
    ]
    data = {
        (panel["title"], target["refId"]): lines
        for panel in dashboard_lint.graphs(dashboard)
        for target in panel["targets"]
    }
    drawn, titles = dashboard_preview.figure_of(dashboard, data, 100.0)
    assert len(titles) >= 20
    return drawn


@pytest.mark.parametrize("name", NAMES)
def test_no_legend_of_the_preview_covers_a_curve(name):
    drawn = figure(name)
    assert dashboard_preview.covered(drawn) == []
    first = next(axes for axes in drawn.axes if axes.get_legend())
    first.legend(loc="upper left")  # as it was
    assert dashboard_preview.covered(drawn) == [first.get_title(loc="left")]
    dashboard_preview.plt.close(drawn)


def change(panel=None, target=None, **fields):
    """A dashboard with fields of itself, of its first panel or of that panel's query replaced."""
    bent = copy.deepcopy(parsed(NAMES[0]))
    graph = dashboard_lint.graphs(bent)[0]
    bent.update(fields)
    graph.update(panel or {})
    graph["targets"][0].update(target or {})
    return bent


TARGET = '{job=~"$job", namespace=~"$namespace", pod=~"$pod", instance=~"$instance"}'
EXPRESSIONS = {
    "sum(simgrad_ready)": "not restricted|without braces",
    "sum(rate(simgrad_ready" + TARGET + "[$__rate_interval]))": "no counter",
    "sum(simgrad_steps_total" + TARGET + ")": "without rate",
    "sum(rate(simgrad_steps_total" + TARGET + "[5m]))": "instead of",
    'sum(simgrad_ready{job=~"$job"})': "not restricted to \\$instance",
    "sum by (colour) (simgrad_ready" + TARGET + ")": "label colour",
    'sum(simgrad_ready{job=~"$job", instance=~"$instance", shape=~"$shape"})': "no variable",
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_lint_finds_a_bad_query(expression, exported):
    found = dashboard_lint.complaints(change(target={"expr": expression}), exported)
    assert any(re.search(EXPRESSIONS[expression], text) for text in found), found


BENT = {
    "has __inputs": dict(__inputs=[]),
    "is editable": dict(editable=True),
    "has no uid": dict(uid=""),
    "has no variable job": dict(templating={"list": []}),
    "lacks title or description": dict(panel={"description": ""}),
    "has no unit": dict(panel={"fieldConfig": {"defaults": {}}}),
    "leaves the grid": dict(panel={"gridPos": {"x": 20, "y": 900, "w": 8, "h": 1}}),
    "overlap": dict(panel={"gridPos": {"x": 0, "y": 1, "w": 24, "h": 4}}),
    "has a legend over its curves": dict(panel={"options": {"legend": {"placement": "top"}}}),
    "does not take its data source": dict(target={"datasource": {"uid": "mine"}}),
    "two panels have one id": dict(panel={"id": 1}),
}


@pytest.mark.parametrize("complaint", BENT)
def test_lint_finds_a_bad_frame(complaint, exported):
    found = dashboard_lint.complaints(change(**BENT[complaint]), exported)
    assert any(complaint in text for text in found), found
