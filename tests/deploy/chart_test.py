"""The chart: valid Kubernetes with every file of values, and what an operator expects in it."""

import copy
import json
import re
import runpy
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import pytest
import yaml
from chart import CASES, CHART, VALUES, RenderError, case, container, flags, objects, pod, render
from live_server import BINARY, ROOT, LiveServer
from server_flags import server_flags
from simgrad import command_line

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
# Kinds of others, for which Kubernetes has no schema.
CUSTOM = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "Certificate", "GRPCRoute"}
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
    "a GPU server without a GPU": {"gpu": {"count": 0}},
    "a strategy that is none": {"strategy": {"type": "Recreated"}},
    "an age that is no duration": {"server": {"maxConnectionAge": "300"}},
    "a CA of clients that need no certificate": {"tls": {"clientCaSecretName": "callers-ca"}},
    "a variable without a name": {"extraEnv": [{"value": "x"}]},
    "a certificate without TLS": {"tls": {"certManager": {"enabled": True, "issuerRef": {"name": "x"}}}},
    "a certificate without an issuer": {
        "tls": {"enabled": True, "secretName": "x", "certManager": {"enabled": True, "issuerRef": {}}}
    },
    "a route from nowhere": {"route": {"enabled": True}},
    "a field that no probe of ours has": {"probes": {"startup": {"httpGet": {}}}},
    "TLS without a secret": {"tls": {"enabled": True}},
    "plaintext that nobody allowed": {"allowInsecure": False},
    "client certificates without TLS": {"tls": {"mutual": True}},
    "a secret without TLS": {"tls": {"secretName": "simgrad-tls"}},
    "memory that the server refuses": {"server": {"memoryBudget": 16777215}},
    "an alert that is none": {"prometheusRule": {"disabled": ["SimgradQueueWait"]}},
    "KEDA without Prometheus": {"autoscaling": {"kind": "keda"}},
    "a collector without a port": {"tracing": {"endpoint": "collector.observability"}},
    "a collector with a scheme": {"tracing": {"endpoint": "http://collector.observability:4317"}},
    "a collector with a port that is none": {"tracing": {"endpoint": "collector.observability:65536"}},
    "a CA of no collector": {"tracing": {"caSecretName": "collector-ca"}},
    "a flag that is none": {"server": {"extraArgs": ["-threads 4"]}},
    "a digest that is none": {"image": {"digest": "latest"}},
    "a label that selects pods": {"podLabels": {"app.kubernetes.io/name": "other"}},
    "a label of the chart on a ServiceMonitor": {"serviceMonitor": {"labels": {"app.kubernetes.io/name": "other"}}},
    "a label of the chart on rules": {"prometheusRule": {"labels": {"helm.sh/chart": "other"}}},
    "a label of the chart on dashboards": {"dashboards": {"labels": {"app.kubernetes.io/version": "other"}}},
    "the metrics' port for calls": {"service": {"port": 8002}},
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
        ({"tls": {"secretName": "simgrad-tls"}}, "tls.secretName: has no use while tls.enabled is false"),
        ({"server": {"memoryBudget": 16777215}}, "server.memoryBudget: at least 16777216"),
        (
            {"prometheusRule": {"enabled": True, "disabled": ["SimgradQueueWait"]}},
            "prometheusRule.disabled: there is no alert SimgradQueueWait",
        ),
        ({"tracing": {"caSecretName": "collector-ca"}}, "tracing.endpoint"),
        ({"autoscaling": {"kind": "keda"}}, "autoscaling.prometheusUrl"),
        ({"autoscaling": {"minReplicas": 5}}, "autoscaling.maxReplicas"),
        ({"service": {"port": 8002}}, "service.port: 8002 is the port of the metrics"),
        ({"server": {"extraArgs": ["--device=cpu"]}}, "--device is given by the chart"),
        ({"server": {"extraArgs": ["--threads=2", "--threads=3"]}}, "server.extraArgs: --threads is given twice"),
        ({"server": {"extraArgs": ["--health_port=8002"]}}, "server.extraArgs: --health_port is given by the chart already"),
        ({"server": {"extraArgs": ["--otlp_ca=/x"]}}, "server.extraArgs: --otlp_ca: set tracing.endpoint"),
        ({"server": {"extraArgs": ["--otlp_ca=/x", "--otlp_endpoint="]}}, "server.extraArgs: --otlp_ca: set tracing"),
        (
            {"server": {"extraArgs": ["--callers=a,b"]}, "tokens": {"secretName": "callers"}},
            "server.extraArgs: --callers: where callers have tokens",
        ),
        ({"server": {"maxConnectionAge": "25h"}}, "server.maxConnectionAge: 25h: at most 24h"),
        ({"server": {"maxConnectionAge": "1441m"}}, "server.maxConnectionAge: 1441m: at most 24h"),
        ({"server": {"maxConnectionAge": "99999999999999999999s"}}, "server.maxConnectionAge: 99999999999999999999s"),
        ({"resources": {"limits": {"memory": "21Mi"}}}, "resources.limits.memory: 21Mi: at least 22Mi"),
        ({"server": {"extraArgs": ["--tls_key=/x"]}}, "--tls_key has no use while tls.enabled is false"),
        (
            {"strategy": {"rollingUpdate": {"maxUnavailable": "0%"}}},
            "strategy.rollingUpdate: with maxSurge and maxUnavailable 0",
        ),
        ({"lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}}}, "server.preStopSeconds"),
        ({"kernelCache": {"sizeLimit": "1Gi"}}, "kernelCache.sizeLimit: at least 1536Mi"),
        ({"kernelCache": {"sizeLimit": "2.5Gi"}}, "kernelCache.sizeLimit: 2.5Gi: write a whole number"),
    ):
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        with pytest.raises(RenderError, match=re.escape(message)):
            render(file)


def test_alerts_that_can_be_left_out_are_those_of_the_rules(rules_text):
    names = SCHEMA["properties"]["prometheusRule"]["properties"]["disabled"]["items"]["enum"]
    assert names == re.findall(r"- alert: (\w+)", rules_text), "deploy/kubernetes/simgrad/values.schema.json"


def test_the_least_memory_is_that_of_the_server():
    whole = SCHEMA["properties"]["server"]["properties"]["memoryBudget"]["oneOf"][1]
    told = subprocess.run(
        [BINARY, f"--memory_limit_bytes={whole['minimum'] - 1}", "--port=0"], capture_output=True, text=True, timeout=60
    )
    assert told.returncode != 0 and f"at least {whole['minimum']} bytes" in told.stdout + told.stderr


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--threads=2", "--threads=3"], "given twice"),
        (["--metrics_port=8002", "--health_port=8002"], "8002 is given twice"),
        (["--otlp_ca=/x"], "needs --otlp_endpoint"),
        (["--callers=a", "--token_file=/x"], "give one of both"),
        (["--max_connection_age=86401s"], "24h"),
        (["--max_connection_age=24h"], ""),
    ],
)
def test_the_server_refuses_what_the_chart_refuses(flags, told):
    done = subprocess.run([BINARY, "--validate_config", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == (2 if told else 0) and told in done.stderr


def test_what_the_server_just_takes_the_chart_takes(rendered):
    for age in ("24h", "1440m", "86400s"):
        assert arguments(rendered({"server": {"maxConnectionAge": age}}))["max_connection_age"] == age
    given = arguments(rendered({"resources": {"limits": {"memory": "22Mi"}}}))
    assert int(given["memory_limit_bytes"]) >= 16777216
    traced = {"tracing": {"endpoint": "collector:4317"}, "server": {"extraArgs": ["--otlp_ca=/x", "--callers=a"]}}
    assert arguments(rendered(traced))["otlp_ca"] == "/x"
    rendered({"server": {"extraArgs": ["--otlp_ca=/x", "--otlp_endpoint=collector:4317"]}})
    rendered({"device": "cpu", "resources": {"limits": {"memory": "21Mi"}}})


def test_every_value_is_used_and_every_use_has_a_value():
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([\w.]+)", templates))
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def paths(tree, path=()):
        for key, value in tree.items():
            yield ".".join((*path, key)), not (isinstance(value, dict) and value)
            if isinstance(value, dict):
                yield from paths(value, (*path, key))

    found = dict(paths(values))
    assert used <= found.keys()
    leaves = [path for path, is_leaf in found.items() if is_leaf]
    unused = [leaf for leaf in leaves if not any((leaf + ".").startswith(u + ".") for u in used)]
    assert unused == []


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
    if "HorizontalPodAutoscaler" in found:
        target = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
        assert target == found["Deployment"]["metadata"]["name"]


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
    kernels = volumes["kernels"]
    assert "sizeLimit" in kernels.get("emptyDir", ()) or "persistentVolumeClaim" in kernels


@by_case
def test_a_replacement_waits_for_the_gpu_and_a_drain_is_never_cut_off(name):
    strategy = objects(name)["Deployment"]["spec"]["strategy"]
    assert strategy["type"] == "RollingUpdate" and strategy["rollingUpdate"]["maxSurge"] == 0
    drain = int(flags(name)["drain_timeout"].rstrip("s"))
    grace = pod(name)["spec"]["terminationGracePeriodSeconds"]
    assert grace == drain + case(name)[0]["server"]["preStopSeconds"] + 15
    start = container(name)["startupProbe"]
    longest = grace + start["periodSeconds"] * start["failureThreshold"]
    assert objects(name)["Deployment"]["spec"]["progressDeadlineSeconds"] > longest


def test_a_long_drain_is_no_failed_upgrade(rendered):
    for long in ("drainTimeoutSeconds", "preStopSeconds"):
        deployment = rendered({"server": {long: 7200}})["Deployment"]["spec"]
        assert deployment["progressDeadlineSeconds"] > 7200 + 600


@pytest.fixture
def rendered(tmp_path):
    """Renders with values that are given as data, and parses the objects by kind."""

    def render_values(values, **options):
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        merged, files = render(file, **options)
        jsonschema.validate(merged, SCHEMA)
        texts = [text for name, text in files.items() if name.endswith(".yaml")]
        found = [document for text in texts for document in yaml.safe_load_all(text) if document]
        for document in found:
            if document["kind"] not in CUSTOM:
                kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
        return {document["kind"]: document for document in found}

    return render_values


def arguments(found):
    (server,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(argument[2:].split("=", 1) for argument in server["args"])


def test_an_upgrade_takes_one_replica_at_a_time_unless_told_otherwise(rendered):
    strategy = objects("default")["Deployment"]["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    recreated = rendered({"strategy": {"type": "Recreate"}})["Deployment"]["spec"]["strategy"]
    assert recreated == {"type": "Recreate"}


def test_a_release_that_changes_no_pod_replaces_none(tmp_path):
    """A chart of another version, say one that changed a dashboard, with the same image."""
    other = tmp_path / "chart"
    shutil.copytree(CHART, other)
    text = (other / "Chart.yaml").read_text()
    (other / "Chart.yaml").write_text(re.sub(r"(?m)^(version|appVersion): .*$", r"\1: 9.9.9", text))
    values = VALUES["secured_and_watched"]
    deployments = [
        yaml.safe_load(render(values, chart=chart)[1]["templates/deployment.yaml"])
        for chart in (CHART, other)
    ]
    labels = [deployment["metadata"]["labels"]["helm.sh/chart"] for deployment in deployments]
    assert labels[0] != labels[1]
    assert deployments[0]["spec"] == deployments[1]["spec"]


GIB = 1 << 30
BUDGETS = {
    "a power of two": ("64Gi", 48 * GIB),
    "a power of ten": ("100G", 75_000_000_000),
    "bytes as text": ("8589934592", 6 * GIB),
    "bytes": (8 * GIB, 6 * GIB),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_on_a_gpu_admitted_work_fits_the_memory_of_the_pod(rendered, name):
    """What does not fit the GPU spills to the pod's memory, and the server sees the GPU's alone."""
    limit, budget = BUDGETS[name]
    given = arguments(rendered({"resources": {"limits": {"memory": limit}}}))
    assert int(given["memory_limit_bytes"]) == budget


def test_the_budget_of_a_gpu_server_leaves_a_quarter_of_the_default_limit():
    limit = container("default")["resources"]["limits"]["memory"]
    assert container("default")["resources"]["requests"]["memory"] == limit
    assert int(flags("default")["memory_limit_bytes"]) * 4 == int(limit.removesuffix("Gi")) * GIB * 3


def test_the_budget_is_the_operators_or_the_servers_own(rendered):
    given = arguments(rendered({"server": {"memoryBudget": 5 * GIB}}))
    assert int(given["memory_limit_bytes"]) == 5 * GIB
    for own in ({"device": "cpu"}, {"resources": {"limits": None}}):
        assert "memory_limit_bytes" not in arguments(rendered(own))
    with pytest.raises(RenderError, match="resources.limits.memory: 1.5Gi"):
        rendered({"resources": {"limits": {"memory": "1.5Gi"}}})


def test_a_server_takes_as_many_gpus_as_its_pod_is_given(rendered):
    found = rendered({"gpu": {"count": 4}})
    (server,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert arguments(found)["device"] == "cuda"  # every GPU that it sees


def test_what_an_operator_adds_arrives_and_takes_nothing_away():
    values, spec, server = VALUES["customised"], pod("customised")["spec"], container("customised")
    given = yaml.safe_load(values.read_text())
    assert server["env"] == given["extraEnv"] and server["lifecycle"] == given["lifecycle"]
    assert given["extraVolumes"][0] in spec["volumes"] and len(spec["volumes"]) > 1
    assert given["extraVolumeMounts"][0] in server["volumeMounts"]
    assert spec["initContainers"] == given["initContainers"]
    assert [c["name"] for c in spec["containers"]] == ["simgrad", "agent"]
    assert spec["schedulerName"] == "volcano"
    assert spec["serviceAccountName"] == "existing"
    assert "ServiceAccount" not in objects("customised")
    assert server["resources"]["limits"]["nvidia.com/mig-3g.40gb"] == 1
    assert server["startupProbe"]["failureThreshold"] == 120
    assert server["startupProbe"]["periodSeconds"] == 5
    assert server["livenessProbe"]["periodSeconds"] == 20
    assert int(flags("customised")["memory_limit_bytes"]) == given["server"]["memoryBudget"]
    (endpoint,) = objects("customised")["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["relabelings"] == given["serviceMonitor"]["relabelings"]
    assert endpoint["metricRelabelings"] == given["serviceMonitor"]["metricRelabelings"]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "kernels"]
    assert volume["persistentVolumeClaim"] == {"claimName": "kernels"}


def test_without_an_account_of_its_own_a_pod_has_the_one_that_every_namespace_has(rendered):
    found = rendered({"serviceAccount": {"create": False}})
    assert "ServiceAccount" not in found
    assert found["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == "default"


def test_a_gpu_may_be_claimed_instead_of_counted(rendered):
    """Dynamic resource allocation; its fields are of newer versions of Kubernetes than the oldest."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    resources = {"claims": [{"name": "gpu"}]}
    found = rendered({"gpu": {"resource": ""}, "resourceClaims": claims, "resources": resources})
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert spec["resourceClaims"] == claims
    assert spec["containers"][0]["resources"]["claims"] == resources["claims"]
    assert spec["containers"][0]["resources"]["limits"].keys() == {"memory"}


def test_common_labels_and_annotations_are_on_every_object_and_on_no_pod():
    for document in objects("customised").values():
        metadata = document["metadata"]
        assert metadata["name"].startswith("physics-server")
        assert metadata["labels"]["cost-centre"] == "4711"
        assert metadata["annotations"]["example.com/owner"] == "physics"
    assert objects("customised")["Service"]["metadata"]["annotations"]["example.com/note"] == "here"
    assert "cost-centre" not in pod("customised")["metadata"]["labels"]
    assert "annotations" not in pod("customised")["metadata"]


def test_a_label_of_all_objects_may_be_an_objects_own_too(tmp_path):
    """Written once, as YAML wants it, with the object's own value."""
    own = {"enabled": True, "labels": {"release": "own", "team": "a"}}
    values = {"commonLabels": {"release": "all"}, **dict.fromkeys(("serviceMonitor", "prometheusRule", "dashboards"), own)}
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"allowInsecure": True, **values}))
    for name in ("servicemonitor.yaml", "prometheusrule.yaml", "dashboards.yaml"):
        [written] = [text for path, text in render(file)[1].items() if path.endswith(name)]
        labels = written.split("labels:")[1].split("annotations:")[0].split("spec:")[0].split("data:")[0]
        assert labels.count("release:") == 1 and "release: own" in labels and "team: a" in labels
        assert labels.count("app.kubernetes.io/name:") == 1


def test_a_platform_may_choose_the_user(rendered):
    chosen = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    spec = rendered({"podSecurityContext": chosen})["Deployment"]["spec"]["template"]["spec"]
    assert set(spec["securityContext"]) == {"runAsNonRoot", "seccompProfile", "fsGroupChangePolicy"}


def test_connections_are_renewed_so_that_clients_find_new_replicas(rendered):
    for name in CASES:
        assert re.fullmatch(r"[1-9]\d*(s|m|h)", flags(name)["max_connection_age"])
    assert arguments(rendered({"server": {"maxConnectionAge": "0"}}))["max_connection_age"] == "0"


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("plain_cpu", "customised")])
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
def test_probes_speak_to_the_plaintext_port_that_is_theirs(name):
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container(name)[probe]["grpc"]["port"] == int(flags(name)["health_port"]) == 8003


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
    assert "client-ca" not in mounts
    assert given["token_file"].startswith(mounts["tokens"] + "/")


def test_the_ca_of_callers_may_be_in_a_secret_of_its_own():
    """With cert-manager, ca.crt beside the server's certificate is the server's issuer."""
    volumes = {v["name"]: v for v in pod("customised")["spec"]["volumes"]}
    mounts = {m["name"]: m["mountPath"] for m in container("customised")["volumeMounts"]}
    assert volumes["client-ca"]["secret"]["secretName"] == "callers-ca"
    assert flags("customised")["tls_client_ca"] == mounts["client-ca"] + "/ca.crt"
    assert flags("customised")["tls_certificate"].startswith(mounts["tls"] + "/")


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
        "otlp_ca",
    )  # need files, or have no use here
    given = {n: v for n, v in flags(name).items() if not n.startswith(elsewhere)}
    known = {n: v for n, v in {**given, **here}.items() if n in server_flags()}
    server = LiveServer(*(f"--{n}={v}" for n, v in known.items()))
    assert server.stop() == 0


def test_the_service_is_headless_unless_told_otherwise(rendered):
    service = objects("default")["Service"]["spec"]
    assert service["clusterIP"] == "None" and "type" not in service
    assert service["ports"][0]["appProtocol"] == "kubernetes.io/h2c"
    assert "appProtocol" not in objects("secured_and_watched")["Service"]["spec"]["ports"][0]
    other = objects("customised")["Service"]["spec"]
    assert other["type"] == "ClusterIP" and "clusterIP" not in other
    assert other["ports"][0]["port"] == 443 and other["ports"][0]["appProtocol"] == "grpc"


@pytest.mark.parametrize("kind", ["NodePort", "LoadBalancer"])
def test_a_service_that_is_reached_from_outside_leaves_the_metrics_inside(tmp_path, kind):
    file = tmp_path / "values.yaml"
    keda = {"kind": "keda", "prometheusUrl": "http://prometheus:9090"}
    file.write_text(yaml.safe_dump({"service": {"type": kind}, "autoscaling": keda}))
    _, files = render(file)
    documents = [d for name in files if name.endswith(".yaml") for d in yaml.safe_load_all(files[name]) if d]
    calls, metrics = (d for d in documents if d["kind"] == "Service")
    assert calls["spec"]["type"] == kind and [p["name"] for p in calls["spec"]["ports"]] == ["grpc"]
    assert metrics["spec"]["clusterIP"] == "None" and [p["name"] for p in metrics["spec"]["ports"]] == ["metrics"]
    assert metrics["metadata"]["name"] == calls["metadata"]["name"] + "-metrics"
    assert metrics["metadata"]["labels"] == calls["metadata"]["labels"]
    assert metrics["spec"]["selector"] == calls["spec"]["selector"]
    (scaled,) = (d for d in documents if d["kind"] == "ScaledObject")
    for trigger in scaled["spec"]["triggers"]:
        assert f'service="{metrics["metadata"]["name"]}"' in trigger["metadata"]["query"]


def test_only_namesakes_and_prometheus_come_in_and_nothing_goes_out():
    policy = objects("default")["NetworkPolicy"]["spec"]
    assert policy["egress"] == [] and "Egress" in policy["policyTypes"]
    by_port = {rule["ports"][0]["port"]: rule["from"] for rule in policy["ingress"]}
    assert by_port["grpc"] == [{"podSelector": {}}]
    assert "namespaceSelector" in by_port["metrics"][0]


def test_spans_go_to_the_collector_alone_and_only_where_there_is_one(tmp_path):
    policy = objects("secured_and_watched")["NetworkPolicy"]["spec"]
    collector, dns = policy["egress"]
    assert collector == {
        "to": [{"namespaceSelector": {}}],
        "ports": [{"port": 4317, "protocol": "TCP"}],
    }
    assert dns.keys() == {"ports"} and {port["port"] for port in dns["ports"]} == {53}
    assert flags("secured_and_watched")["otlp_endpoint"] == "collector.observability:4317"
    assert not any(name.startswith("otlp") for name in flags("default"))
    file = tmp_path / "values.yaml"
    peers = [{"podSelector": {"matchLabels": {"app": "collector"}}}]
    for collector in (peers, []):
        tracing = {"endpoint": "[fd00::7]:14317"}
        values = {"tracing": tracing, "networkPolicy": {"collector": collector}}
        file.write_text(yaml.safe_dump(values))
        merged, files = render(file)
        jsonschema.validate(merged, SCHEMA)
        policy = yaml.safe_load(files["templates/networkpolicy.yaml"])
        kubernetes_validate.validate(policy, VERSIONS[-1], strict=True)
        to = [(rule["to"], rule["ports"][0]["port"]) for rule in policy["spec"]["egress"][:1]]
        assert to == ([(peers, 14317)] if collector else [])
        assert "Egress" in policy["spec"]["policyTypes"]


def test_the_ca_of_the_collector_comes_from_its_secret():
    volumes = {v["name"]: v for v in pod("secured_and_watched")["spec"]["volumes"]}
    mounts = {m["name"]: m["mountPath"] for m in container("secured_and_watched")["volumeMounts"]}
    assert volumes["collector-ca"]["secret"]["secretName"] == "collector-ca"
    assert flags("secured_and_watched")["otlp_ca"] == mounts["collector-ca"] + "/ca.crt"


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


def test_replicas_are_scaled_by_the_queue_and_the_busy_workers_of_their_own_release():
    """Of the queue alone: busy servers without a queue would be taken away."""
    asked = [trigger["metadata"] for trigger in objects("scaled")["ScaledObject"]["spec"]["triggers"]]
    service = objects("scaled")["Service"]["metadata"]["name"]
    own = f'{{job="simgrad", namespace="lab", service="{service}"}}'
    assert {one["query"]: one["threshold"] for one in asked} == {
        f"sum(simgrad_queue_requests{own})": "8",
        f"sum(simgrad_workers_busy{own})": "1",
    }


def test_keda_scales_down_as_slowly_as_the_values_say():
    """KEDA's own cooldownPeriod acts on the way to no replicas alone, and here is at least one."""
    scaled = objects("scaled")["ScaledObject"]["spec"]
    assert scaled["minReplicaCount"] >= 1 and "cooldownPeriod" not in scaled
    (configuration,) = scaled["advanced"].values()
    behavior = case("scaled")[0]["autoscaling"]["behavior"]
    assert configuration == {"behavior": behavior}
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 600
    autoscaler = copy.deepcopy(objects("customised")["HorizontalPodAutoscaler"])
    autoscaler["spec"]["behavior"] = configuration["behavior"]
    kubernetes_validate.validate(autoscaler, VERSIONS[-1], strict=True)


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


def test_an_hpa_scales_on_the_queue_and_the_busy_workers(tmp_path):
    file = tmp_path / "values.yaml"
    file.write_text("autoscaling: {kind: hpa}")
    (hpa,) = (yaml.safe_load(t) for n, t in render(file)[1].items() if "autoscaling" in n)
    kubernetes_validate.validate(hpa, VERSIONS[-1], strict=True)
    names = [metric["pods"]["metric"]["name"] for metric in hpa["spec"]["metrics"]]
    assert names == ["simgrad_queue_requests", "simgrad_workers_busy"]
    assert hpa["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600


def test_the_chart_holds_files_and_no_links():
    """Flux's source controller and others skip links when they pack a chart."""
    copy_files = runpy.run_path(str(CHART.parent / "copy-files"))
    assert not [path for path in CHART.rglob("*") if path.is_symlink()]
    held = {p: p.read_text() for p in (CHART / "files").rglob("*") if p.is_file()}
    assert held == copy_files["copies"](), "deploy/kubernetes/copy-files"


@pytest.mark.parametrize("lost", ["files/simgrad.rules.yml", "files/dashboards"])
def test_a_chart_that_lost_its_files_is_refused(tmp_path, lost):
    other = tmp_path / "chart"
    shutil.copytree(CHART, other)
    path = other / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(RenderError, match=lost):
        render(VALUES["secured_and_watched"], chart=other)


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
    alerts_of = lambda test: {one["alertname"] for one in test.get("alert_rule_test", [])}  # none: of a recorded rule
    kept = [test for test in tests["tests"] if not alerts_of(test) & set(values["disabled"])]
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


def test_a_certificate_is_asked_for_by_the_names_that_callers_dial():
    certificate = objects("customised")["Certificate"]["spec"]
    (volume,) = [v for v in pod("customised")["spec"]["volumes"] if v["name"] == "tls"]
    assert certificate["secretName"] == volume["secret"]["secretName"]
    assert certificate["issuerRef"] == {"name": "lab", "kind": "ClusterIssuer"}
    service = objects("customised")["Service"]["metadata"]["name"]
    assert {f"{service}.lab", f"{service}.lab.svc.cluster.local", "sim.example.com"} <= set(
        certificate["dnsNames"]
    )


def test_a_route_leads_to_the_service_and_to_nothing_else_of_it():
    route, service = objects("customised")["GRPCRoute"]["spec"], objects("customised")["Service"]
    (rule,) = route["rules"]
    (backend,) = rule["backendRefs"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"] in {port["port"] for port in service["spec"]["ports"]}
    (match,) = rule["matches"]
    proto = (ROOT / "proto/simgrad/v1/simgrad.proto").read_text()
    package, name = match["method"]["service"].rsplit(".", 1)
    assert f"package {package};" in proto and f"service {name} " in proto


def test_the_notes_warn_of_tokens_in_plaintext_and_of_a_server_that_takes_every_core(tmp_path):
    assert "WARNING" not in case("default")[1]["templates/NOTES.txt"]
    assert "WARNING" not in case("secured_and_watched")[1]["templates/NOTES.txt"]
    assert "every core" in case("plain_cpu")[1]["templates/NOTES.txt"]
    file = tmp_path / "values.yaml"
    file.write_text("tokens: {secretName: simgrad-tokens}")
    assert "WARNING: tokens travel in plaintext" in render(file)[1]["templates/NOTES.txt"]


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


def test_there_are_four_files_of_values_beside_the_default():
    assert len(VALUES) >= 4
