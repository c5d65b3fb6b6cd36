"""What promtool does not look at: names, annotations, runbook, and a unit test for every alert."""

import re
import subprocess

import pytest
import yaml
from live_server import ROOT
from metric_manifest import family_of, names_in

RULES = yaml.safe_load((ROOT / "deploy/prometheus/simgrad.rules.yml").read_text())
UNIT_TESTS = yaml.safe_load((ROOT / "deploy/prometheus/simgrad_test.yml").read_text())
ALL = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in ALL if "alert" in rule}
RECORDED = {rule["record"] for rule in ALL if "record" in rule}
# Prometheus makes the first itself; kube-state-metrics exports the others, for every pod of a cluster.
OF_OTHERS = {
    "kube_pod_container_status_last_terminated_exitcode",
    "kube_pod_container_status_restarts_total",
}
BUILT_IN = {"up"} | OF_OTHERS
# One process, and one service (a release in a namespace): what sums must keep.
OF_A_PROCESS = {"job", "namespace", "pod", "instance"}
OF_A_SERVICE = {"job", "namespace", "service"}


def anchors(markdown):
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", markdown)
    return {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}


def test_there_are_enough_alerts():
    assert len(ALERTS) >= 12


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_why_and_where_to_read_on(name):
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    summary, description = (alert["annotations"][key] for key in ("summary", "description"))
    assert summary and "{{" not in summary, "a summary is the same for every instance"
    assert "$labels" in description and description.endswith(".")
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert anchor == name.lower()
    assert anchor in anchors((ROOT / page).read_text())


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_unit_tested_both_ways(name):
    expected = [
        case.get("exp_alerts")
        for test in UNIT_TESTS["tests"]
        for case in test.get("alert_rule_test", ())
        if case["alertname"] == name
    ]
    assert any(expected), "no unit test in which it fires"
    assert not all(expected), "no unit test in which it stays silent"


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_uses_only_metrics_that_exist(rule, exported):
    names = {family_of(name, exported) for name in names_in(rule["expr"])}
    assert names <= exported.keys() | RECORDED | BUILT_IN
    assert names or "__name__" in rule["expr"]


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_selector_names_the_job(rule):
    for name, braces in re.findall(r"([\w:]*)(\{[^}]*\})", rule["expr"]):
        assert 'job="simgrad"' in braces or name in OF_OTHERS


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.get("alert") or rule["record"])
def test_sums_keep_namespace_and_pod_or_are_of_a_service(rule):
    """Alerts are routed by namespace, and at night the pod is what one looks for."""
    for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]):
        kept = {label.strip() for label in labels.split(",")}
        of_a_pod = not names_in(rule["expr"]).isdisjoint(OF_OTHERS) and kept == {"namespace", "pod"}
        assert kept >= OF_A_PROCESS or kept == OF_A_SERVICE or of_a_pod
    assert "without" not in rule["expr"]


def test_every_alert_that_fires_has_the_job_by_which_dashboards_choose_it():
    fired = [
        (case["alertname"], alert["exp_labels"])
        for test in UNIT_TESTS["tests"]
        for case in test.get("alert_rule_test", [])
        for alert in case["exp_alerts"]
    ]
    assert {name for name, _ in fired} == ALERTS.keys()
    assert [name for name, labels in fired if labels.get("job") != "simgrad"] == []


def in_kubernetes(test):
    """A unit test in which the instance a:8002 is the pod sim-0 of the namespace lab."""
    text = yaml.safe_dump(test, width=10_000)
    text = text.replace('instance="a:8002"', 'instance="a:8002",namespace="lab",pod="sim-0"')
    moved = yaml.safe_load(text)
    for case in moved.get("alert_rule_test", []):
        for alert in case["exp_alerts"]:
            if alert["exp_labels"].get("instance") == "a:8002":
                alert["exp_labels"] |= {"namespace": "lab", "pod": "sim-0"}
                texts = alert["exp_annotations"]
                texts["description"] = texts["description"].replace("a:8002", "sim-0")
    return moved


def test_alerts_name_the_pod_and_carry_its_namespace(tmp_path):
    tests = [
        in_kubernetes(test)
        for test in UNIT_TESTS["tests"]
        if "namespace=" not in str(test) and "pod=" not in str(test)
    ]
    names = {c["alertname"] for t in tests for c in t.get("alert_rule_test", []) if c["exp_alerts"]}
    assert len(names) > 20 and "sim-0" in str(tests)
    (tmp_path / "simgrad.rules.yml").write_text(yaml.safe_dump(RULES))
    (tmp_path / "rules_test.yml").write_text(yaml.safe_dump({**UNIT_TESTS, "tests": tests}))
    ran = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "rules_test.yml")],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


# Events that an operator hears of within a minute: two scrapes of 15 s and two evaluations.
AT_ONCE = ("SimgradRestarted", "SimgradGpuLost", "SimgradConnectionsRefused", "SimgradCallerLimited")


@pytest.mark.parametrize("name", AT_ONCE)
def test_an_alert_on_an_event_does_not_wait(name):
    assert "for" not in ALERTS[name]


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_a_recorded_series_is_named_level_metric_operation(name):
    assert re.fullmatch(r"(instance\w*|service):simgrad_\w+:\w+", name)


def test_every_recorded_series_is_used_by_an_alert():
    used = set().union(*(names_in(alert["expr"]) for alert in ALERTS.values()))
    assert RECORDED <= used


def test_promtool_accepts_the_rules():
    path = ROOT / "deploy/prometheus/simgrad.rules.yml"
    checked = subprocess.run(
        ["promtool", "check", "rules", "--lint-fatal", str(path)], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
