"""The chart: valid Kubernetes with every file of values, and what an operator expects in it."""

import copy
import json
import re
import subprocess

import jsonschema
import kubernetes_validate
import pytest
import yaml
from chart import CASES, CHART, VALUES, RenderError, case, container, flags, objects, pod, render
from live_server import ROOT, LiveServer
from server_flags import server_flags
from simgrad import command_line

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
# Kinds of others, for which Kubernetes has no schema.
CUSTOM = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}
OLDEST = re.search(
    r">=(\d+\.\d+)", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]
)[1]
VERSIONS = (OLDEST, kubernetes_validate.latest_version())
by_case = pytest.mark.parametrize("name", CASES)


@by_case
@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(name, version):
    for kind, document in objects(name).items():
        if kind not in CUSTOM:
            kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_would_find_a_mistake():
    bent = copy.deepcopy(objects("default")["Deployment"])
    bent["spec"]["template"]["spec"]["containers"][0]["redinessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(bent, VERSIONS[-1], strict=True)


@by_case
def test_the_values_fit_their_schema(name):
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(case(name)[0], SCHEMA)


WRONG = {
    "a name that is none": {"replica": 2},
    "a nested name that is none": {"tls": {"enable": True}},
    "a device that is none": {"device": "tpu"},
    "two GPUs for one server": {"gpu": {"count": 2}},
    "TLS without a secret": {"tls": {"enabled": True}},
    "plaintext that nobody allowed": {"allowInsecure": False},
    "client certificates without TLS": {"tls": {"mutual": True}},
    "KEDA without Prometheus": {"autoscaling": {"kind": "keda"}},
    "a flag that is none": {"server": {"extraArgs": ["-threads 4"]}},
    "a digest that is none": {"image": {"digest": "latest"}},
    "a label that selects pods": {"podLabels": {"app.kubernetes.io/name": "other"}},
    "scrapes too far apart for the rules": {"serviceMonitor": {"interval": "5m"}},
}


@pytest.mark.parametrize("mistake", WRONG)
def test_the_schema_refuses(mistake):
    values = copy.deepcopy(case("default")[0])
    for key, value in WRONG[mistake].items():
        values[key] = {**values[key], **value} if isinstance(values.get(key), dict) else value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, SCHEMA)


def test_templates_refuse_too_where_helm_skips_the_schema(tmp_path):
    for values, message in (
        ({"allowInsecure": False}, "tls.enabled is false"),
        ({"tls": {"enabled": True}}, "tls.secretName"),
        ({"autoscaling": {"kind": "keda"}}, "autoscaling.prometheusUrl"),
        ({"autoscaling": {"minReplicas": 5}}, "autoscaling.maxReplicas"),
        ({"server": {"extraArgs": ["--device=cpu"]}}, "--device is given by the chart"),
    ):
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        with pytest.raises(RenderError, match=re.escape(message)):
            render(file)


def test_every_value_is_used_and_every_use_has_a_value():
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([\w.]+)", templates))

    def leaves(tree, path=()):
        for key, value in tree.items():
            nested = isinstance(value, dict) and value and ".".join((*path, key)) not in used
            yield from leaves(value, (*path, key)) if nested else [".".join((*path, key))]

    assert used == set(leaves(yaml.safe_load((CHART / "values.yaml").read_text())))


@by_case
def test_names_labels_and_ports_lead_to_the_pods(name):
    found = objects(name)
    labels = pod(name)["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
    selectors = [found["Service"]["spec"]["selector"]]
    selectors += [found["Deployment"]["spec"]["selector"]["matchLabels"]]
    if "PodDisruptionBudget" in found:
        selectors.append(found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"])
    if "NetworkPolicy" in found:
        policy = found["NetworkPolicy"]["spec"]
        selectors.append(policy["podSelector"]["matchLabels"])
        assert {p["port"] for rule in policy["ingress"] for p in rule["ports"]} <= ports.keys()
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert {port["targetPort"] for port in found["Service"]["spec"]["ports"]} <= ports.keys()
    used = {int(flags(name)[flag]) for flag in flags(name) if flag.endswith("port")}
    assert used == set(ports.values())


@by_case
def test_the_pod_has_no_privileges_and_writes_only_to_the_kernel_cache(name):
    spec, inside = pod(name)["spec"], container(name)["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert inside["readOnlyRootFilesystem"] and not inside["allowPrivilegeEscalation"]
    assert inside["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    writable = [m["mountPath"] for m in container(name)["volumeMounts"] if not m.get("readOnly")]
    assert writable == [flags(name)["kernel_cache"]]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert {m["name"] for m in container(name)["volumeMounts"]} == volumes.keys()
    assert "sizeLimit" in volumes["kernels"]["emptyDir"]


@by_case
def test_a_replacement_waits_for_the_gpu_and_a_drain_is_never_cut_off(name):
    assert objects(name)["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    drain = int(flags(name)["drain_timeout"].rstrip("s"))
    assert pod(name)["spec"]["terminationGracePeriodSeconds"] > drain


@pytest.mark.parametrize("name", [n for n in CASES if n != "plain_cpu"])
def test_a_gpu_is_asked_for_where_one_is_used(name):
    assert flags(name)["device"] == "cuda"
    assert container(name)["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod(name)["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert container(name)["image"].endswith("-cuda")


def test_without_a_gpu_none_is_asked_for():
    assert flags("plain_cpu")["device"] == "cpu"
    assert "limits" not in container("plain_cpu")["resources"]
    assert "tolerations" not in pod("plain_cpu")["spec"]
    assert "@sha256:" in container("plain_cpu")["image"]


@by_case
def test_probes_speak_to_a_plaintext_port(name):
    port = 8003 if "tls_certificate" in flags(name) else 8001
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container(name)[probe]["grpc"]["port"] == port
    assert "health_port" in flags(name) or port == 8001


@by_case
def test_plaintext_is_served_only_where_it_was_allowed(name):
    given = flags(name)
    assert ("tls_certificate" in given) != ("allow_insecure" in given)
    assert ("tls_certificate" in given) == ("allow_insecure_metrics" in given)


def test_mutual_tls_and_tokens_come_from_secrets():
    given, mounts = flags("secured_and_watched"), {}
    for mount in container("secured_and_watched")["volumeMounts"]:
        mounts[mount["name"]] = mount["mountPath"]
    for flag in ("tls_certificate", "tls_key", "tls_client_ca"):
        assert given[flag].startswith(mounts["tls"] + "/")
    assert given["token_file"].startswith(mounts["tokens"] + "/")


@by_case
def test_flags_are_ones_that_the_server_knows(name):
    assert flags(name).keys() <= server_flags()


@by_case
def test_the_server_starts_with_the_flags_of_the_chart(name):
    """Those that this build knows, on loopback and the CPU."""
    here = {"address": "127.0.0.1", "device": "cpu", "port": "0", "metrics_port": "0"}
    elsewhere = (
        "tls",
        "token",
        "health",
        "allow",
        "kernel",
        "warm",
    )  # need files, or have no use here
    given = {n: v for n, v in flags(name).items() if not n.startswith(elsewhere)}
    known = {n: v for n, v in {**given, **here}.items() if n in server_flags()}
    server = LiveServer(*(f"--{n}={v}" for n, v in known.items()))
    assert server.stop() == 0


def test_the_service_is_headless():
    assert objects("default")["Service"]["spec"]["clusterIP"] == "None"


def test_only_namesakes_and_prometheus_come_in_and_nothing_goes_out():
    policy = objects("default")["NetworkPolicy"]["spec"]
    assert policy["egress"] == [] and "Egress" in policy["policyTypes"]
    by_port = {rule["ports"][0]["port"]: rule["from"] for rule in policy["ingress"]}
    assert by_port["grpc"] == [{"podSelector": {}}]
    assert "namespaceSelector" in by_port["metrics"][0]


@pytest.mark.parametrize("nobody", ["clients", "monitoring"])
def test_an_empty_list_of_peers_admits_nobody(tmp_path, nobody):
    """Kubernetes reads a rule without peers as one for everybody."""
    file = tmp_path / "values.yaml"
    for empty, ports in ({nobody}, {"grpc", "metrics"}), ({"clients", "monitoring"}, set()):
        file.write_text(yaml.safe_dump({"networkPolicy": {peers: [] for peers in empty}}))
        policy = yaml.safe_load(render(file)[1]["templates/networkpolicy.yaml"])
        kubernetes_validate.validate(policy, VERSIONS[-1], strict=True)
        ports -= {"grpc" if nobody == "clients" else "metrics"}
        assert "Ingress" in policy["spec"]["policyTypes"]
        assert all(rule["from"] for rule in policy["spec"]["ingress"])
        assert {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]} == ports


def test_replicas_are_scaled_by_the_queue_of_their_own_release():
    (trigger,) = objects("scaled")["ScaledObject"]["spec"]["triggers"]
    service = objects("scaled")["Service"]["metadata"]["name"]
    assert f'service="{service}"' in trigger["metadata"]["query"]


def test_toggles_are_off_by_default_and_work():
    extras = {
        "ServiceMonitor",
        "PrometheusRule",
        "ConfigMap",
        "ScaledObject",
        "HorizontalPodAutoscaler",
    }
    assert not extras & objects("default").keys()
    assert {"ServiceMonitor", "PrometheusRule", "ConfigMap"} <= objects(
        "secured_and_watched"
    ).keys()
    assert "ScaledObject" in objects("scaled")
    assert "replicas" not in objects("scaled")["Deployment"]["spec"]
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert objects("secured_and_watched")[kind]["metadata"]["labels"]["release"] == "prometheus"


def test_an_hpa_scales_on_the_queue(tmp_path):
    file = tmp_path / "values.yaml"
    file.write_text("autoscaling: {kind: hpa}")
    (hpa,) = (yaml.safe_load(t) for n, t in render(file)[1].items() if "autoscaling" in n)
    kubernetes_validate.validate(hpa, VERSIONS[-1], strict=True)
    assert hpa["spec"]["metrics"][0]["pods"]["metric"]["name"] == "simgrad_queue_requests"


def test_dashboards_arrive_unchanged():
    data = objects("secured_and_watched")["ConfigMap"]["data"]
    files = {p.name: p.read_text() for p in (ROOT / "deploy/grafana/dashboards").iterdir()}
    assert data == files


def test_the_job_is_the_one_that_the_rules_speak_of():
    monitor = objects("secured_and_watched")["ServiceMonitor"]["spec"]
    service = objects("secured_and_watched")["Service"]
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "simgrad"
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {p["name"] for p in service["spec"]["ports"]}


def test_the_rules_in_the_chart_pass_their_unit_tests(tmp_path):
    """As an operator's Prometheus gets them: one alert disabled, the runbook elsewhere."""
    spec = objects("secured_and_watched")["PrometheusRule"]["spec"]
    values = case("secured_and_watched")[0]["prometheusRule"]
    (tmp_path / "simgrad.rules.yml").write_text(yaml.safe_dump(spec))
    text = (ROOT / "deploy/prometheus/simgrad_test.yml").read_text()
    tests = yaml.safe_load(text.replace("docs/operations.md", values["runbookUrl"]))
    alert_of = lambda test: test["alert_rule_test"][0]["alertname"]
    kept = [test for test in tests["tests"] if alert_of(test) not in values["disabled"]]
    assert 0 < len(tests["tests"]) - len(kept) <= 2
    (tmp_path / "rules_test.yml").write_text(yaml.safe_dump({**tests, "tests": kept}))
    ran = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "rules_test.yml")],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    names = {rule.get("alert") for group in spec["groups"] for rule in group["rules"]}
    assert not names & set(values["disabled"])


def test_a_release_called_simgrad_is_not_called_twice():
    _, files = render(release="simgrad")
    assert yaml.safe_load(files["templates/service.yaml"])["metadata"]["name"] == "simgrad"
    assert objects("default")["Service"]["metadata"]["name"] == "demo-simgrad"


def test_the_notes_say_where_it_serves_and_how_to_call_it():
    def notes(name):
        text = case(name)[1]["templates/NOTES.txt"]
        (command,) = re.findall(r"(?m)^  simgrad (.*)$", text)
        return text, command_line.parser().parse_args(command.split())

    text, call = notes("default")
    assert "demo-simgrad.lab:8001 (plaintext)" in text
    assert call.target == "demo-simgrad.lab:8001" and not (call.tls_ca or call.token_file)
    text, call = notes("secured_and_watched")
    assert "(TLS)" in text
    assert call.tls_ca and call.tls_certificate and call.tls_key and call.token_file


def test_there_are_three_files_of_values_beside_the_default():
    assert len(VALUES) >= 3
