"""The dashboards against a real Prometheus that scrapes the real server under load."""

import contextlib
import math
import os
import pathlib
import subprocess
import time
import urllib.request

import build_dashboards
import dashboard_lint
import dashboard_preview
import event_load
import pytest
import simgrad as sg
import stand_in_gpu
from live_prometheus import LivePrometheus, wait_until
from live_server import LiveServer
from metric_manifest import family_of, names_in

pytestmark = pytest.mark.waits

LOAD_SECONDS = 8.0
# Panels that may be empty although their metrics exist, and why.
EMPTY_WHEN_WELL = {
    "Firing alerts": "nothing fires: the windows of the real rules are minutes long",
    "Certificate expires in": "the server of this run has no TLS",
}
# Families of a server on a GPU: of a second one here, on the stand-in. A build without CUDA has
# none, and panels on them are empty.
OF_GPUS = {
    "simgrad_gpu_busy_seconds_total",
    "simgrad_gpu_info",
    "simgrad_gpu_memory_total_bytes",
    "simgrad_gpu_memory_used_bytes",
}
WITHOUT_SERIES = set() if stand_in_gpu.BUILT else OF_GPUS
# Families that no panel shows, and why.
NOT_SHOWN: dict[str, str] = {}


def scrape(server):
    url = f"http://localhost:{server.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def series(page):
    """Values by series, as the page writes them."""
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    return {name: float(number) for name, _, number in (line.rpartition(" ") for line in lines)}


class Watched:
    """What one run of the load left behind."""

    def __init__(self, server, on_gpu, prometheus):
        self.prometheus = prometheus
        self.before = scrape(server)
        wait_until(
            lambda: prometheus.query("count_over_time(simgrad_ready[1m]) >= 2"), "two scrapes"
        )
        if on_gpu is not None:  # before the clock starts: its kernels take seconds to compile
            with sg.Client(on_gpu.target, timeout=600) as client:
                event_load.ordinary(client)
        self.start = time.time()
        with sg.Client(server.target, timeout=600) as client:
            for i, cause in enumerate(event_load.EVERYTHING):  # one after the other, to be seen
                share = (i + 1) / len(event_load.EVERYTHING)
                cause(client)
                while time.time() < self.start + LOAD_SECONDS * share:
                    event_load.ordinary(client)
                    cause(client)
        self.end = self._settled()
        self.after = scrape(server)
        self.of_gpus = "" if on_gpu is None else scrape(on_gpu)

    def _settled(self):
        wait_until(
            lambda: not self.prometheus.query("sum(simgrad_rpc_in_flight) > 0"), "requests to end"
        )
        settled = time.time()
        wait_until(
            lambda: self.prometheus.query(f"timestamp(simgrad_ready) > {settled}"),
            "one more scrape",
        )
        return time.time()

    def expression(self, template, window):
        text = template.replace("$__rate_interval", window)
        for name in ("job", "world", "site"):
            text = text.replace(f'=~"${name}"', '=~".+"')
        for name in ("namespace", "pod", "instance"):
            text = text.replace(f'=~"${name}"', '=~".*"')
        assert "$" not in text, text
        return text

    def now(self, template):
        """Values at the end of the load, of a rate over all of it."""
        return self.prometheus.query(self.expression(template, "5m"), self.end)

    def course(self, template):
        """Values during the load, of rates over two seconds."""
        text = self.expression(template, "2s")
        return self.prometheus.query_range(text, self.start, self.end, 0.5)


@pytest.fixture(scope="module")
def watched(tmp_path_factory, rules_text):
    with contextlib.ExitStack() as stack:

        def serve(*flags, **options):
            server = LiveServer(*flags, **options)
            stack.callback(server.stop)
            return server

        server, on_gpu = serve(), None
        if stand_in_gpu.BUILT:
            on_gpu = serve("--device=cuda", environment=stand_in_gpu.environment())
        ports = [each.metrics_port for each in (server, on_gpu) if each is not None]
        prometheus = LivePrometheus(tmp_path_factory.mktemp("prometheus"), ports, rules_text)
        stack.callback(prometheus.stop)
        yield Watched(server, on_gpu, prometheus)


DASHBOARDS = [build_dashboards.dashboard(source) for source in build_dashboards.SOURCES]
MARKS = [
    pytest.param(mark["expr"], id=f"{dashboard['uid']}: {mark['name']}")
    for dashboard in DASHBOARDS
    for mark in dashboard["annotations"]["list"]
]
TARGETS = [
    pytest.param(
        panel["title"], target["expr"], id=f"{dashboard['uid']}: {panel['title']} {target['refId']}"
    )
    for dashboard in DASHBOARDS
    for panel in dashboard_lint.graphs(dashboard)
    for target in panel["targets"]
]


def numbers(result):
    return [float(sample["value"][1]) for sample in result]


@pytest.mark.parametrize(("title", "expression"), TARGETS)
def test_a_panel_shows_data_or_stands_in_a_list(watched, title, expression):
    values = numbers(watched.now(expression))
    absent = names_in(expression) & WITHOUT_SERIES
    if absent or title in EMPTY_WHEN_WELL:
        assert values == [], f"{title} shows data: take it off the list"
    else:
        assert values != []
    assert not any(math.isnan(number) for number in values)


@pytest.mark.parametrize(("title", "expression"), TARGETS)
def test_a_panel_never_shows_nan_in_the_course_of_the_load(watched, title, expression):
    for line in watched.course(expression):
        assert not any(math.isnan(float(number)) for _, number in line["values"]), line["metric"]


@pytest.mark.parametrize("expression", MARKS)
def test_a_mark_can_be_asked_for_and_starts_are_seen(watched, expression):
    marked = watched.course(expression)
    assert "process_start_time_seconds" not in expression or marked


def test_the_load_makes_every_kind_of_event_happen(watched):
    before, after = series(watched.before), series(watched.after)
    moved = {name for name in after if after[name] > before.get(name, 0)}
    for part in (
        'near_boundary_total{side="stopped"',
        'near_boundary_total{side="continued"',
        'terminations_total{reason="converged"',
        'terminations_total{reason="max_iter"',
        'terminations_total{reason="nonfinite"',
        'terminations_total{reason="not_entered"',
        'nonfinite_instances_total{action="reported",phase="input"',
        'nonfinite_instances_total{action="reported",phase="forward"',
        'nonfinite_instances_total{action="stopped",phase="forward"',
        'nonfinite_instances_total{action="reported",phase="adjoint"',
        'kind="nan"',
        'kind="inf"',
        "gradient_disconnected_total",
        "gradient_zero_total",
        "event_changes_total",
        "underflows_total",
        "overflows_total",
        "additions_total",
        "rpc_cancelled_total",
        "rpc_deadline_exceeded_total",
        'grpc_code="InvalidArgument"',
        'steps_total{direction="recompute"',
        'program_cache_total{result="failed"',
        'world="custom"',
    ):
        assert any(part in name for name in moved), f"nothing moved {part}"


def test_the_series_before_and_after_load_are_the_same(watched):
    assert series(watched.before).keys() == series(watched.after).keys()


def test_no_scrape_holds_nan(watched):
    named = 'label_replace({job="simgrad"}, "metric", "$1", "__name__", "(.+)")'
    poisoned = f"0 * sum by (metric) ({named}) != 0"
    assert watched.prometheus.query_range(poisoned, watched.start, watched.end, 0.5) == []
    for page in (watched.before, watched.after):
        assert all(math.isfinite(number) for number in series(page).values())


def test_every_exported_family_is_shown_or_stands_in_a_list(watched, exported):
    shown = {
        family_of(name, exported)
        for dashboard in DASHBOARDS
        for _, expression in dashboard_lint.expressions(dashboard)
        for name in names_in(expression)
    }
    page_families = {
        line.split()[2]
        for page in (watched.after, watched.of_gpus)
        for line in page.splitlines()
        if line.startswith("# TYPE")
    }
    assert page_families == exported.keys() - WITHOUT_SERIES
    assert page_families - shown == NOT_SHOWN.keys()


def test_promtool_finds_nothing_wrong_with_the_metrics(watched):
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=watched.after, text=True, capture_output=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_rule_evaluates(watched):
    groups = watched.prometheus.rule_groups()
    assert sum(len(group["rules"]) for group in groups) > 20
    for rule in (rule for group in groups for rule in group["rules"]):
        assert rule["health"] == "ok", f"{rule['name']}: {rule.get('lastError')}"


def test_the_preview_draws_every_panel_that_has_data(watched, tmp_path):
    """With SIMGRAD_PREVIEW_FOLDER set, the pictures of docs/ are drawn there."""
    folder = pathlib.Path(os.environ.get("SIMGRAD_PREVIEW_FOLDER", tmp_path))
    for dashboard in DASHBOARDS:
        data = {
            (panel["title"], target["refId"]): watched.course(target["expr"])
            for panel in dashboard_lint.graphs(dashboard)
            for target in panel["targets"]
        }
        picture = folder / f"{dashboard['uid']}.png"
        drawn = dashboard_preview.draw(dashboard, data, watched.start, picture)
        with_data = {title for (title, _), lines in data.items() if lines}
        assert drawn == with_data and len(drawn) >= 20
        assert picture.stat().st_size > 50_000
