"""docs/recipes/job-queue.md: jobs are repeated until they succeed, and set aside after five attempts."""

from __future__ import annotations

import http.server
import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.docs.programs import WAIT_S
from tests.docs.recipes.conftest import Kitchen, wait_for
from topics.client import Topics

WORKERS = ["webhooks.py", pytest.param("webhooks.mjs", marks=pytest.mark.torture)]


class Receiver(http.server.ThreadingHTTPServer):
    """Takes webhooks: `/ok` succeeds, `/second` fails the first time, `/never` fails, `/slow` waits for `go_on`."""

    daemon_threads = True

    def __init__(self) -> None:
        receiver = self
        self.got: list[tuple[str, str, Any]] = []
        self.go_on = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                receiver.got.append((self.path, self.headers["idempotency-key"], body))
                if self.path == "/slow":
                    receiver.go_on.wait(WAIT_S)
                attempts = Counter(path for path, _, _ in receiver.got)[self.path]
                refused = self.path == "/never" or (self.path == "/second" and attempts == 1)
                self.send_response(500 if refused else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def keys(self, path: str) -> list[str]:
        return [key for seen, key, _ in self.got if seen == path]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    serving = threading.Thread(target=made.serve_forever)
    serving.start()
    yield made
    made.go_on.set()
    made.shutdown()
    serving.join(WAIT_S)
    made.server_close()


@pytest.mark.parametrize("worker", WORKERS)
def test_failed_job_is_repeated_and_then_set_aside(
    worker: str, kitchen: Kitchen, topics: Topics, receiver: Receiver
) -> None:
    programs = kitchen.programs("job-queue", {"1000 * 2": "5 * 2"})
    topics.put_topic("webhooks", type="queue")
    for path in ("/ok", "/second", "/never"):
        topics.append("webhooks", {"url": receiver.url(path), "body": {"order": 7}}, tag="shop-9")
    with programs.start(worker) as running:
        [dead] = wait_for(lambda: list(topics.read("webhooks.dead")) if _exists(topics, "webhooks.dead") else None)
        running.process.terminate()
        assert running.process.wait(WAIT_S) == 0
        lines = running.rest()
    assert dead.data["url"].endswith("/never")  # type: ignore[union-attr]
    assert (len(receiver.keys("/ok")), len(receiver.keys("/second")), len(receiver.keys("/never"))) == (1, 2, 5)
    assert len(set(receiver.keys("/never"))) == 1, "an attempt has the key of the one before"
    assert {"job 1: delivered", "job 2: delivered"} <= set(lines)
    assert sum(line.startswith("job 3: attempt ") for line in lines) == 5
    assert topics.topic("webhooks").count == 0
    assert topics.redrive("webhooks", match="shop-9").redriven == 1


@pytest.mark.parametrize("worker", ["webhooks.py", "webhooks.mjs"])
def test_job_of_a_killed_worker_is_done_by_another(
    worker: str, kitchen: Kitchen, topics: Topics, receiver: Receiver
) -> None:
    programs = kitchen.programs("job-queue", {"30_000": "2_000"})
    topics.put_topic("webhooks", type="queue")
    topics.append("webhooks", {"url": receiver.url("/slow"), "body": {"order": 7}})
    with programs.start(worker):
        wait_for(lambda: receiver.keys("/slow"))
    receiver.go_on.set()  # the first worker is dead, and its job is still leased
    kitchen.kill_server()
    with programs.start(worker) as second:
        assert second.line() == "job 1: delivered"
        wait_for(lambda: topics.topic("webhooks").count == 0)
    keys = receiver.keys("/slow")
    assert len(keys) >= 2
    assert len(set(keys)) == 1, "the receiver can drop a repetition"


def _exists(topics: Topics, name: str) -> bool:
    return any(row.topic == name for row in topics.topics(name))
