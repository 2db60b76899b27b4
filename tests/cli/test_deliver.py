"""`topics deliver` against a real server, and a receiver that answers as each test wants."""

from __future__ import annotations

import base64
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import Cli, Running
from tests.conftest import ServerProcess
from tests.contract.api import eventually
from topics.cli.queues.deliver import is_public
from topics.webhooks import Webhook, check_delivery

Api = Callable[..., Any]
SECRETS = ["whsec_" + base64.b64encode(letter * 24).decode() for letter in (b"a", b"b")]
POLICY = {"min_ms": 10, "max_ms": 20}


class Receiver(ThreadingHTTPServer):
    """Keeps all requests. `answer` says what each one gets: a status, and header fields."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/hooks?of=shop"
        self.seen: list[Any] = []
        self.answer: Callable[[Any], tuple[int, dict[str, str]]] = lambda _: (204, {})
        self.open = self.most_open = 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower().encode(): value.encode() for name, value in self.headers.items()}
        delivery = check_delivery(Webhook("standard", tuple(SECRETS)), headers, body, time.time())
        found = {"id": delivery.id, "path": self.path, "host": headers[b"host"].decode(), **json.loads(body)}
        with self.server.lock:
            self.server.open += 1
            self.server.most_open = max(self.server.open, self.server.most_open)
        try:
            status, fields = self.server.answer(found)
        finally:
            with self.server.lock:
                self.server.open -= 1
                self.server.seen.append(found)
        text = b"" if status == 204 else b"the stock is empty\xff"
        try:
            self.send_response(status)
            for name, value in {"content-length": str(len(text)), **fields}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)
        except ConnectionError:
            pass  # the sender has gone

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def secrets(tmp_path: Path) -> str:
    (tmp_path / "hook.secret").write_text("\n".join(SECRETS))
    return str(tmp_path / "hook.secret")


def queue(api: Api, name: str, *records: dict[str, Any], **config: Any) -> None:
    wanted = {"type": "queue", "retry": POLICY, "max_deliveries": 3, "dead_letter": f"{name}-dead", **config}
    assert api("PUT", f"/v0/topics/{name}", wanted)["created"]
    if records:
        assert api("POST", f"/v0/topics/{name}", {"records": list(records)})["count"] == len(records)


def start(cli: Cli, receiver: Receiver, name: str, secrets: str, *words: str) -> Running:
    return cli.start("deliver", name, "--to", receiver.url, "--secret-file", secrets, "--allow-private", *words)


def done(api: Api, name: str) -> None:
    eventually(lambda: api("GET", f"/v0/topics/{name}?touch=false")["queue"], lambda now: not any(
        now.get(state) for state in ("ready", "in_flight", "delayed", "blocked")
    ))  # fmt: skip


def letters(api: Api, name: str) -> Any:
    return api("POST", f"/v0/topics/{name}-dead/diff", {"from_seq": 0})["records"]


def test_jobs_are_sent_signed_and_acked(cli: Cli, api: Api, receiver: Receiver, secrets: str) -> None:
    queue(api, "sent", {"data": {"total": 1.50, "big": 2**70}, "tag": "order.paid"}, {"data": None})
    with start(cli, receiver, "sent", secrets) as running:
        done(api, "sent")
        ended = running.interrupt()
    assert ended.status == 0, ended
    assert json.loads(ended.out) == {"topic": "sent", "delivered": 2, "failed": 0}
    first, second = sorted(receiver.seen, key=lambda one: one["id"])
    assert first["data"] == {"total": 1.5, "big": 2**70}
    assert (first["type"], second["type"]) == ("order.paid", "sent")
    assert first["timestamp"].endswith("Z")
    assert first["id"].startswith("sent:1:")
    assert first["path"] == "/hooks?of=shop"
    assert first["host"] == receiver.url.split("/")[2]


def test_refused_job_is_repeated_and_becomes_a_dead_letter(
    cli: Cli, api: Api, receiver: Receiver, secrets: str
) -> None:
    receiver.answer = lambda _: (500, {})
    queue(api, "refused", {"data": 1})
    with start(cli, receiver, "refused", secrets) as running:
        done(api, "refused")
        ended = running.interrupt()
    assert len({one["id"] for one in receiver.seen}) == 1
    assert len(receiver.seen) == 3
    [letter] = letters(api, "refused")
    reason = letter["meta"]["$dead_letter_reason"]
    assert reason.startswith("HTTP 500 Internal Server Error from 127.0.0.1\nthe stock is empty"), reason
    assert "job 1: HTTP 500 Internal Server Error from 127.0.0.1 (delivery 3)" in ended.err
    assert json.loads(ended.out)["failed"] == 3


def test_redirects_are_not_followed(cli: Cli, api: Api, receiver: Receiver, secrets: str) -> None:
    receiver.answer = lambda _: (302, {"location": receiver.url})
    queue(api, "moved", {"data": 1}, max_deliveries=1)
    with start(cli, receiver, "moved", secrets):
        done(api, "moved")
    assert "redirects are not followed" in letters(api, "moved")[0]["meta"]["$dead_letter_reason"]
    assert len(receiver.seen) == 1


def test_receiver_says_when_to_come_again(cli: Cli, api: Api, receiver: Receiver, secrets: str) -> None:
    receiver.answer = lambda _: (429, {"retry-after": "3600"})
    queue(api, "busy", {"data": 1})
    with start(cli, receiver, "busy", secrets):
        [job] = eventually(
            lambda: api("GET", "/v0/topics/busy/jobs")["jobs"], lambda jobs: jobs[0]["state"] == "delayed"
        )
    assert 3500 < job["deliver_at"] / 1000 - time.time() < 3700


def test_silent_receiver_fails_the_job_after_the_timeout(cli: Cli, api: Api, receiver: Receiver, secrets: str) -> None:
    release = threading.Event()
    receiver.answer = lambda _: (204 if release.wait(20) else 500, {})
    queue(api, "silent", {"data": 1}, max_deliveries=1)
    with start(cli, receiver, "silent", secrets, "--timeout", "300ms"):
        done(api, "silent")
    release.set()
    assert letters(api, "silent")[0]["meta"]["$dead_letter_reason"] == "no answer within 300 ms"


def test_receiver_that_is_away_fails_the_job(cli: Cli, api: Api, secrets: str) -> None:
    queue(api, "away", {"data": 1}, max_deliveries=1)
    words = ("deliver", "away", "--to", "http://127.0.0.1:1/", "--secret-file", secrets, "--allow-private")
    with cli.start(*words):
        done(api, "away")
    assert "ConnectError" in letters(api, "away")[0]["meta"]["$dead_letter_reason"]


def test_jobs_of_a_key_are_sent_in_order_also_when_one_fails(
    cli: Cli, api: Api, receiver: Receiver, secrets: str
) -> None:
    failed: set[str] = set()

    def answer(found: Any) -> tuple[int, dict[str, str]]:
        with receiver.lock:
            again = found["id"] in failed
            failed.add(found["id"])
        return (204 if again or found["data"]["n"] % 5 else 503), {}

    receiver.answer = answer
    queue(api, "ordered", *({"data": {"of": n % 3, "n": n}, "key": f"k{n % 3}"} for n in range(60)))
    with start(cli, receiver, "ordered", secrets, "-j", "8"):
        done(api, "ordered")
    for key in range(3):
        sent = [one["data"]["n"] for one in receiver.seen if one["data"]["of"] == key]
        assert sorted(set(sent)) == [n for n in range(60) if n % 3 == key]
        assert sent == sorted(sent)
    assert not receiver.most_open > 3  # one at a time for each key


def test_rate_and_concurrency_hold(cli: Cli, api: Api, receiver: Receiver, secrets: str) -> None:
    queue(api, "slow", *({"data": n} for n in range(12)))
    times: list[float] = []
    receiver.answer = lambda _: (times.append(time.monotonic()), (204, {}))[1]
    with start(cli, receiver, "slow", secrets, "--rate", "20", "-j", "2"):
        done(api, "slow")
    assert times[-1] - times[0] >= 11 / 20 - 0.1
    assert receiver.most_open <= 2


def test_stop_lets_open_requests_finish(cli: Cli, api: Api, receiver: Receiver, secrets: str) -> None:
    asked, release = threading.Event(), threading.Event()

    def answer(_: Any) -> tuple[int, dict[str, str]]:
        asked.set()
        release.wait(20)
        return 204, {}

    receiver.answer = answer
    queue(api, "stopped", {"data": 1}, {"data": 2})
    with start(cli, receiver, "stopped", secrets, "-j", "1") as running:
        assert asked.wait(20)
        running.process.send_signal(signal.SIGTERM)
        release.set()
        ended = running.wait()
    assert ended.status == 0, ended
    assert json.loads(ended.out)["delivered"] == 1
    assert [job["data"] for job in api("GET", "/v0/topics/stopped/jobs")["jobs"]] == [2]


def test_job_of_a_killed_sender_comes_again_with_its_id(cli: Cli, api: Api, receiver: Receiver, secrets: str) -> None:
    asked, release = threading.Event(), threading.Event()

    def answer(_: Any) -> tuple[int, dict[str, str]]:
        asked.set()
        release.wait(20)
        return 204, {}

    receiver.answer = answer
    queue(api, "killed", {"data": 1})
    with start(cli, receiver, "killed", secrets) as running:
        assert asked.wait(20)
        running.process.kill()
    [job] = api("GET", "/v0/topics/killed/jobs")["jobs"]
    assert job["state"] == "in_flight"
    lease = {"node": job["node"], "seqs": [1]}
    assert api("POST", "/v0/topics/killed/nack", {**lease, "delay_ms": 0})["nacked"] == 1  # as if its lease had ended
    release.set()
    with start(cli, receiver, "killed", secrets):
        done(api, "killed")
    assert len(receiver.seen) == 2
    assert len({one["id"] for one in receiver.seen}) == 1


def test_private_address_is_refused_before_a_job_is_claimed(
    cli: Cli, api: Api, receiver: Receiver, secrets: str
) -> None:
    queue(api, "private", {"data": 1})
    for url in (receiver.url, receiver.url.replace("127.0.0.1", "localhost"), "http://[::ffff:127.0.0.1]:1/"):
        ended = cli.pipe("deliver", "private", "--to", url, "--secret-file", secrets)
        assert ended.status == 2, ended
        assert "is in a private network" in ended.err
        assert "--allow-private" in ended.err
    [job] = api("GET", "/v0/topics/private/jobs")["jobs"]
    assert (job["state"], job["deliveries"]) == ("ready", 0)
    assert receiver.seen == []


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
     "::1", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1", "::"],
)  # fmt: skip
def test_addresses_of_private_networks_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:8.8.8.8"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


def test_wrong_arguments_say_what_to_do(cli: Cli, api: Api, secrets: str, tmp_path: Path) -> None:
    queue(api, "wrong")
    api("PUT", "/v0/topics/log", {})
    for content, what in ((None, "cannot be read"), ("", "is empty"), ("hidden", "has a line that is not whsec_")):
        file = tmp_path / "bad"
        if content is not None:
            file.write_text(content)
        ended = cli.pipe("deliver", "wrong", "--to", "https://a.example", "--secret-file", str(file))
        assert ended.status == 2
        assert what in ended.err
        assert "openssl rand -base64 32" in ended.err
        assert "hidden" not in ended.err
    for url in ("shop.example", "ftp://shop.example", "https://user@shop.example", "https://shop.example:x"):
        assert "is not an address" in cli.pipe("deliver", "wrong", "--to", url, "--secret-file", secrets).err
    assert (
        "is a log, not a queue" in cli.pipe("deliver", "log", "--to", "http://127.0.0.1", "--secret-file", secrets).err
    )
    words = ("deliver", "wrong", "--to", "http://nowhere.invalid/", "--secret-file", secrets)
    assert "no job was claimed" in cli.pipe(*words).err


def test_one_server_sends_to_another_exactly_once(
    server: ServerProcess, cli: Cli, api: Api, secrets: str, tmp_path: Path
) -> None:
    (tmp_path / "webhooks").write_text(json.dumps({"copies": {"style": "standard", "secret": SECRETS}}))
    other = ServerProcess(tmp_path / "other", {"webhooks_file": tmp_path / "webhooks"})
    queue(api, "pair", *({"data": {"n": n}, "tag": "made"} for n in range(20)))
    url = f"{other.url}/v0/hooks/copies"
    words = ("deliver", "pair", "--to", url, "--secret-file", secrets, "--allow-private")
    with cli.start(*words, "--raw", "-j", "1"):
        done(api, "pair")
    assert [
        row["data"]["n"] for row in json_rows(Cli(tmp_path / "home", other.url).pipe("read", "copies").out)
    ] == list(range(20))
    other.stop()


def json_rows(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]
