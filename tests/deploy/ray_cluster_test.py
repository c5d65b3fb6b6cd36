"""The Ray cluster beside the chart: its pods are valid, and say what the chart's values say."""

import ast
import re

import kubernetes_validate
import pytest
import yaml
from chart import CHART
from live_server import ROOT
from server_flags import server_flags

FILE = ROOT / "deploy/kubernetes/ray-cluster.yaml"
IMAGE = (ROOT / "deploy/docker/Dockerfile.ray").read_text()
CLUSTER, POLICY = yaml.safe_load_all(FILE.read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
HEAD = CLUSTER["spec"]["headGroupSpec"]
(WORKERS,) = CLUSTER["spec"]["workerGroupSpecs"]
GROUPS = pytest.mark.parametrize("group", [HEAD, WORKERS], ids=["head", "workers"])


def pod(group):
    return group["template"]["spec"]


def container(group):
    (found,) = pod(group)["containers"]
    return found


def test_it_is_a_ray_cluster_with_the_fields_that_one_has():
    assert (CLUSTER["apiVersion"], CLUSTER["kind"]) == ("ray.io/v1", "RayCluster")
    assert CLUSTER["spec"].keys() == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    assert HEAD.keys() == {"rayStartParams", "template"}
    counts = {"replicas", "minReplicas", "maxReplicas"}
    assert WORKERS.keys() == {"groupName", "rayStartParams", "template", *counts}
    assert WORKERS["minReplicas"] <= WORKERS["replicas"] <= WORKERS["maxReplicas"]
    for group in (HEAD, WORKERS):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


@GROUPS
def test_its_pods_are_valid(group):
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"}, "spec": pod(group)}
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    mounted = {mount["name"] for mount in container(group)["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod(group)["volumes"]}


@GROUPS
def test_pods_are_as_safe_as_those_of_the_chart(group):
    assert pod(group)["securityContext"] == VALUES["podSecurityContext"]
    assert container(group)["securityContext"] == VALUES["securityContext"]
    assert pod(group)["automountServiceAccountToken"] is False
    assert container(group)["imagePullPolicy"] == VALUES["image"]["pullPolicy"]


def test_nodes_exchange_traffic_among_themselves_and_with_dns_only():
    """By default Ray asks a peer for no token."""
    kubernetes_validate.validate(POLICY, kubernetes_validate.latest_version(), strict=True)
    spec = POLICY["spec"]
    nodes = {"matchLabels": {"ray.io/cluster": CLUSTER["metadata"]["name"]}}
    assert spec["podSelector"] == nodes and spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [{"from": [{"podSelector": nodes}]}]
    among_themselves, dns = spec["egress"]
    assert among_themselves == {"to": [{"podSelector": nodes}]}
    assert dns.keys() == {"ports"} and {port["port"] for port in dns["ports"]} == {53}


def test_workers_have_the_resources_of_the_charts_pods():
    chart, resources = VALUES["resources"], container(WORKERS)["resources"]
    gpu = {VALUES["gpu"]["resource"]: VALUES["gpu"]["count"]}
    assert resources == {"requests": chart["requests"], "limits": {**chart["limits"], **gpu}}
    assert pod(WORKERS)["tolerations"] == VALUES["tolerations"]
    assert pod(WORKERS)["terminationGracePeriodSeconds"] > VALUES["server"]["drainTimeoutSeconds"]
    kernels = {volume["name"]: volume for volume in pod(WORKERS)["volumes"]}["kernels"]
    assert kernels["emptyDir"]["sizeLimit"] == VALUES["kernelCache"]["sizeLimit"]


def test_nothing_is_placed_on_the_head():
    assert HEAD["rayStartParams"]["num-cpus"] == "0"
    assert VALUES["gpu"]["resource"] not in container(HEAD)["resources"]["limits"]


def test_versions_and_images_are_those_of_the_image_and_of_the_tests():
    version = CLUSTER["spec"]["rayVersion"]
    assert f"ARG RAY_VERSION={version}\n" in IMAGE
    assert f"ray=={version}\n" in (ROOT / "tests/with_ray/requirements.txt").read_text()
    release = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    image = container(HEAD)["image"]
    assert image == container(WORKERS)["image"] == f"simgrad-ray:{release}-{VALUES['device']}"
    assert f"-t {image} " in IMAGE and f"ARG SIMGRAD={VALUES['image']['repository']}:{release}-cuda\n" in IMAGE
    user = VALUES["podSecurityContext"]["runAsUser"]
    assert f"\nUSER {user}:{user}\n" in IMAGE


def test_what_its_comments_say_of_the_pool_is_true():
    text = FILE.read_text()
    asked = re.search(r"simgrad\.ray\.Pool\((.*?)\) as pool", text.replace("\n#", ""), re.DOTALL)[1]
    flags = dict(re.findall(r'"--(\w+)=([^"]+)"', asked))
    assert flags.keys() == {"memory_limit_bytes", "kernel_cache"} <= set(server_flags())
    limit = int(container(WORKERS)["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
    assert int(flags["memory_limit_bytes"]) == limit * 3 // 4
    mounts = {mount["name"]: mount["mountPath"] for mount in container(WORKERS)["volumeMounts"]}
    assert flags["kernel_cache"] == mounts["kernels"]
    numbers = dict(re.findall(r"(\w+)=(-?\d+)", asked))
    assert int(numbers["servers"]) == WORKERS["replicas"]
    assert int(numbers["num_gpus"]) == VALUES["gpu"]["count"]
    assert numbers["num_cpus"] == container(WORKERS)["resources"]["requests"]["cpu"]
    module = ast.parse((ROOT / "client/python/simgrad/ray.py").read_text())
    [begin] = [f for f in ast.walk(module) if getattr(f, "args", None) and getattr(f, "name", "") == "__init__" and f.args.kwonlyargs]
    taken = {a.arg for a in (*begin.args.args, *begin.args.kwonlyargs)}
    assert set(re.findall(r"(\w+)=", asked)) - flags.keys() <= taken
