"""Requests generated from the OpenAPI document: no 5xx, and only documented answers."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.conftest import ServerProcess
from tools.docs import openapi
from topics.server.api.route_table import ROUTES

EXAMPLES, MANY = 5, 100
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# Existing topics by name, with their configuration.
TOPICS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fleeting": {"ttl_ms": 5},
    "full": {"cap_records": 2, "discard": "reject"},
    "queue": {"type": "queue"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("fuzz")
    running = ServerProcess(directory, {"data_dir": directory / "data"})
    with httpx.Client(base_url=running.url, trust_env=False, verify=False) as http:
        for name, config in TOPICS.items():
            http.put(f"/v0/topics/{name}", json=config).raise_for_status()
            http.post(f"/v0/topics/{name}", json={"records": [{"data": 1, "tag": "x", "meta": {}}]}).raise_for_status()
    yield running
    running.stop()


def operations() -> Iterator[Any]:
    """Return all operations except HEAD, which answers like GET, and streams, which have no end."""
    streams = {(route.method, route.path) for route in ROUTES if route.stream}
    for found in schemathesis.openapi.from_dict(openapi.document(ROUTES)).get_all_operations():
        operation = found.ok()
        method = operation.method.upper()
        if method != "HEAD" and (method, operation.path) not in streams:
            yield pytest.param(operation, id=operation.label)


@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(MANY, marks=pytest.mark.torture)])
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", list(operations()))
def test_any_request_gets_a_documented_answer(
    server: ServerProcess, operation: Any, mode: GenerationMode, examples: int
):
    if mode is GenerationMode.NEGATIVE and not (operation.path_parameters or operation.query or operation.body):
        return  # nothing to make invalid
    if mode is GenerationMode.NEGATIVE and operation.path.startswith("/console/"):
        return  # any text is a file name

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        _steer(case)
        case.call_and_validate(base_url=server.url, checks=CHECKS)

    send()


def _steer(case: schemathesis.Case) -> None:
    """Use existing names for half of the requests, to avoid 404 answers, and short waits."""
    name = str(case.path_parameters.get("topic", "")) if case.path_parameters else ""
    if len(name) % 2:
        names = sorted(TOPICS)
        case.path_parameters["topic"] = names[len(name) // 2 % len(names)]
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int):
        case.body["wait_ms"] = min(case.body["wait_ms"], 1)
    if isinstance(case.body, dict) and isinstance(case.body.get("claim_jitter_ms"), int):
        case.body["claim_jitter_ms"] = min(case.body["claim_jitter_ms"], 1)
