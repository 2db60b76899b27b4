"""A real Prometheus that scrapes the target and evaluates the shipped alerts, and which of them a fault must fire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.faults.kills.server import require

DEPLOY = Path(__file__).parents[3] / "deploy"
LOOK_S = 2.0
LATE_S = 900.0  # rates over minutes fall that long after a fault

# By fault: what it must fire if it lasts for so many seconds. Scrapes are 10 seconds apart, rates need minutes.
MUST: dict[str, tuple[str, float]] = {
    "full": ("TopicsReadOnly", 60.0), "kill": ("TopicsDown", 85.0), "slow": ("TopicsSlowSync", 480.0),
}  # fmt: skip
# By fault: what it may fire besides, because it is true.
MAY: dict[str, tuple[str, ...]] = {
    "full": ("TopicsReadOnly", "TopicsCheckpointsFail", "TopicsRequestErrors", "TopicsServerErrors"),
    "kill": ("TopicsDown",),
    "slow": ("TopicsSlowSync", "TopicsRequestsSlow"),
}


@dataclass
class Fault:
    """One fault that was injected, in seconds since the start of the run."""

    name: str
    began_s: float
    ended_s: float

    def allows(self, alert: str, at_s: float) -> bool:
        return alert in MAY.get(self.name, ()) and self.began_s <= at_s <= self.ended_s + LATE_S


@dataclass
class Firing:
    """One alert that fired, with its labels."""

    alert: str
    labels: str
    at_s: float


class Prometheus:
    """`prometheus` with the shipped rules, and the alerts that it has fired."""

    def __init__(self, directory: Path) -> None:
        self.fired: list[Firing] = []
        self._directory = directory
        self._began = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def runs(self) -> bool:
        return self._process is not None

    def start(self, target_port: int, *, interval: str = "10s") -> None:
        """Start it, if it is installed: otherwise the run has no alerts. The shipped settings have this interval."""
        if shutil.which("prometheus") is None:
            print("prometheus is not installed (Debian: prometheus): this run has no alerts", flush=True)
            return
        self._directory.mkdir()
        config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
        config["rule_files"] = [str(DEPLOY / "alerts.yml")]
        [job] = config["scrape_configs"]
        del job["authorization"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{target_port}"]}]
        (self._directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        options = {
            "config.file": self._directory / "prometheus.yml", "storage.tsdb.path": self._directory / "db",
            "web.listen-address": f"127.0.0.1:{self._port}",
        }  # fmt: skip
        words = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(words, stderr=log)

    async def look(self) -> None:
        """Note the alerts that fire, until cancelled."""
        before: set[tuple[str, str]] = set()
        while self._process is not None:
            await asyncio.sleep(LOOK_S)
            require(self._process.poll() is None, f"prometheus has ended: {self._directory / 'log'}")
            with contextlib.suppress(OSError):
                now = await asyncio.to_thread(self._firing)
                fired = [Firing(*one, time.monotonic() - self._began) for one in sorted(now - before)]
                for one in fired:
                    print(f"{one.at_s:6.0f} s  alert {one.alert} {one.labels}".rstrip(), flush=True)
                self.fired += fired
                before = now

    def _firing(self) -> set[tuple[str, str]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/alerts", timeout=30) as answer:
            found = json.loads(answer.read())["data"]["alerts"]
        return {(one["labels"]["alertname"], _labels(one["labels"])) for one in found if one["state"] == "firing"}

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()


def _labels(labels: dict[str, str]) -> str:
    left_out = ("alertname", "instance", "job", "severity")
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if name not in left_out)


def judge(faults: list[Fault], fired: list[Firing]) -> tuple[list[str], list[str], list[str]]:
    """Return the alerts that fired and should have, those that should not have, and those that are missing."""
    right = [one for one in fired if any(fault.allows(one.alert, one.at_s) for fault in faults)]
    wrong = [one for one in fired if one not in right]
    missing = []
    for fault in faults:
        alert, needed_s = MUST.get(fault.name, ("", 0.0))
        due = alert and fault.ended_s - fault.began_s >= needed_s
        if due and not any(one.alert == alert and fault.allows(alert, one.at_s) for one in fired):
            missing.append(f"{alert} of {fault.name} at {fault.began_s:.0f} s")
    return _named(right), _named(wrong), missing


def _named(found: list[Firing]) -> list[str]:
    return [f"{one.alert}{' ' + one.labels if one.labels else ''} at {one.at_s:.0f} s" for one in found]
