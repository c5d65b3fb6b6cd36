"""The Compose files: what they mount exists, what they start is provisioned and hardened."""

import json
import re
import subprocess

import pytest
import yaml
from live_server import ROOT
from server_flags import server_flags

FOLDER = ROOT / "deploy/compose"


def load(path):
    return yaml.safe_load((ROOT / path).read_text())


COMPOSE = load("deploy/compose/compose.yml")
CUDA = load("deploy/compose/compose.cuda.yml")
SERVICES = COMPOSE["services"]


def mounts(service):
    """Targets of the files and folders that a service mounts, with their sources here."""
    lines = [line.split(":") for line in SERVICES[service]["volumes"] if line.startswith("..")]
    assert all(line[2] == "ro" for line in lines)
    return {target: (FOLDER / source).resolve() for source, target, _ in lines}


def test_every_mounted_file_exists():
    for service in SERVICES:
        assert all(source.exists() for source in mounts(service).values())
    build = SERVICES["simgrad"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).exists()


def test_every_named_volume_is_declared():
    named = {v.split(":")[0] for s in SERVICES.values() for v in s["volumes"] if v[0] != "."}
    assert named == COMPOSE["volumes"].keys()


def test_ports_are_published_on_this_machine_only():
    ports = [port for service in SERVICES.values() for port in service["ports"]]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


def test_the_server_runs_without_privileges_on_a_read_only_root():
    server = SERVICES["simgrad"]
    assert server["read_only"] is True and server["cap_drop"] == ["ALL"]
    assert server["security_opt"] == ["no-new-privileges:true"]
    (volume,) = server["volumes"]
    assert volume.split(":")[1] in (ROOT / "deploy/docker/Dockerfile").read_text()


def test_a_drain_is_never_cut_off():
    help_text = (ROOT / "server/config/parse_flags.cc").read_text()
    drain = int(re.search(r'"drain_timeout", "(\d+)s"', help_text)[1])
    assert int(SERVICES["simgrad"]["stop_grace_period"].rstrip("s")) > drain


@pytest.mark.parametrize("file", [COMPOSE, CUDA], ids=["compose.yml", "compose.cuda.yml"])
def test_flags_are_ones_that_the_server_knows(file):
    for flag in file["services"]["simgrad"]["command"]:
        assert re.fullmatch(r"--\w+=\S+", flag)
        assert flag[2:].partition("=")[0] in server_flags()


def test_the_cuda_file_changes_a_service_that_exists_to_bases_that_have_the_toolkit():
    assert CUDA["services"].keys() <= SERVICES.keys()
    server = CUDA["services"]["simgrad"]
    text = (ROOT / "deploy/docker/Dockerfile").read_text()
    for name, value in server["build"]["args"].items():
        assert f"--build-arg {name}={value}" in text, "the Dockerfile's own instructions differ"


def test_prometheus_accepts_its_configuration_and_finds_the_rules(tmp_path):
    for target, source in mounts("prometheus").items():
        (tmp_path / target.rpartition("/")[2]).write_text(source.read_text())
    checked = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "rules found" in checked.stdout
    (job,) = load("deploy/prometheus/prometheus.yml")["scrape_configs"]
    host, port = job["static_configs"][0]["targets"][0].split(":")
    assert job["job_name"] == "simgrad" and host in SERVICES and port == "8002"


def test_grafana_finds_prometheus_and_the_dashboards():
    (source,) = load("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert source["type"] == "prometheus" and host in SERVICES and port == "9090"
    interval = load("deploy/prometheus/prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == interval
    (provider,) = load("deploy/grafana/provisioning/dashboards/simgrad.yml")["providers"]
    dashboards = mounts("grafana")[provider["options"]["path"]]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert json.loads((dashboards / home.rpartition("/")[2]).read_text())["uid"]


def test_the_cuda_file_gives_the_server_gpus_for_the_image_asks_for_none():
    assert "NVIDIA_VISIBLE_DEVICES=void" in (ROOT / "deploy/docker/Dockerfile").read_text()
    server = CUDA["services"]["simgrad"]
    assert server["environment"]["NVIDIA_VISIBLE_DEVICES"] == "all"
    (device,) = server["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and device["count"] >= 1
