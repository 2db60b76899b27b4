"""Webhooks that come in: signatures of three styles, ids, clocks, the file of secrets, and strangers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ServerProcess, StartServer
from tests.contract.api import eventually
from topics.webhooks import (
    TOLERANCE_S,
    BadDelivery,
    BadWebhooks,
    Webhook,
    check_delivery,
    parse_webhooks,
    signed_headers,
    standard_key,
)

STANDARD = "whsec_" + base64.b64encode(b"s" * 24).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 24).decode()
GITHUB, STRIPE = "a secret of a repository", "whsec_of_an_endpoint"
ROWS = {
    "orders": {"style": "standard", "secret": [STANDARD, OTHER]},
    "commits": {"style": "github", "secret": GITHUB},
    "payments": {"style": "stripe", "secret": STRIPE},
}
BODY = b'{"type": "order.paid", "id": "evt_1", "order": 7731}'
Signed = Callable[..., dict[str, str]]


def by_standard(
    body: bytes = BODY, secret: str = STANDARD, id: str = "msg_1", at: float | None = None
) -> dict[str, str]:
    return signed_headers(id, int(time.time() if at is None else at), body, [standard_key(secret)])


def by_github(
    body: bytes = BODY, secret: str = GITHUB, id: str = "delivery-1", at: float | None = None
) -> dict[str, str]:
    digits = hmac.digest(secret.encode(), body, "sha256").hex()
    return {"x-hub-signature-256": f"sha256={digits}", "x-github-delivery": id, "x-github-event": "push"}


def by_stripe(body: bytes = BODY, secret: str = STRIPE, id: str = "", at: float | None = None) -> dict[str, str]:
    sent = int(time.time() if at is None else at)
    digits = hmac.digest(secret.encode(), b"%d.%b" % (sent, body), "sha256").hex()
    return {"stripe-signature": f"t={sent},v1={'0' * 64},v1={digits},v0=x"}


STYLES: dict[str, Signed] = {"orders": by_standard, "commits": by_github, "payments": by_stripe}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("webhooks")
    (place / "webhooks").write_text(json.dumps(ROWS))
    server = ServerProcess(place, {"api_keys": "admin", "webhooks_file": place / "webhooks"})
    yield server
    server.stop()


KEY = {"authorization": "Bearer admin"}


@pytest.fixture
def server(process: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=process.url) as client:
        for topic in ROWS:
            client.delete(f"/v0/topics/{topic}", headers=KEY)
        yield client


def post(server: httpx.Client, topic: str, headers: dict[str, str], body: bytes = BODY) -> httpx.Response:
    given = {"content-type": "application/json", **headers}
    fields = [(name, value.encode("latin-1")) for name, value in given.items()]
    return server.post(f"/v0/hooks/{topic}", content=body, headers=fields)  # type: ignore[arg-type]


def records(server: httpx.Client, topic: str) -> Any:
    return (
        server.post(f"/v0/topics/{topic}/diff", json={"from_seq": 0, "include_tags": True}, headers=KEY)
        .json()
        .get("records")
    )


def code(reply: httpx.Response) -> Any:
    return reply.json()["error"]["code"]


# --- signatures


def test_signatures_are_those_that_the_styles_publish():
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    headers = signed_headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [standard_key(secret)]
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    found = check_delivery(
        Webhook("github", "It's a Secret to Everybody"),
        {
            b"x-hub-signature-256": b"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
            b"x-github-delivery": b"d",
        },
        b"Hello, World!",
        0,
    )
    assert (found.id, found.event) == ("d", None)


@pytest.mark.parametrize("topic", STYLES)
def test_delivery_becomes_a_record_once(server: httpx.Client, topic: str):
    first = post(server, topic, STYLES[topic]())
    assert (first.status_code, first.json()["count"], first.json()["deduped"]) == (201, 1, False)
    again = post(server, topic, STYLES[topic](at=time.time() - 10))  # the sender got no answer, and tries again
    assert (again.status_code, again.json()["first_seq"], again.json()["deduped"]) == (200, 1, True)
    [record] = records(server, topic)
    assert record["data"] == json.loads(BODY)
    assert record["$tag"] == ("push" if topic == "commits" else "order.paid")
    assert record["meta"]["$webhook_id"] == {"orders": "msg_1", "commits": "delivery-1", "payments": "evt_1"}[topic]
    state = server.get(f"/v0/topics/{topic}", headers=KEY).json()
    assert state["config"]["idempotency_window_ms"] == 3 * 86_400_000


WRONG = ("body", "secret", "old", "ahead", "missing", "nonsense")


@pytest.mark.parametrize(
    ("topic", "wrong"),
    [(topic, wrong) for topic in STYLES for wrong in WRONG if topic != "commits" or wrong not in ("old", "ahead")],
)
def test_delivery_with_a_wrong_signature_is_refused(server: httpx.Client, topic: str, wrong: str):
    headers, body = STYLES[topic](), BODY
    if wrong == "body":
        body = BODY.replace(b"7731", b"7732")
    elif wrong == "secret":
        headers = STYLES[topic](secret="whsec_" + base64.b64encode(b"x" * 24).decode())
    elif wrong in ("old", "ahead"):
        headers = STYLES[topic](at=time.time() + (30 + TOLERANCE_S) * (-1 if wrong == "old" else 1))
    elif wrong == "missing":
        headers = {}
    else:
        headers = {name: "v1,€=;sha256=zz t=1,v1=…".encode().decode("latin-1") for name in headers}
    reply = post(server, topic, headers, body)
    assert (reply.status_code, code(reply)) == (401, "unauthorized"), reply.text
    assert records(server, topic) is None


def test_any_secret_of_a_row_will_do(server: httpx.Client):
    assert post(server, "orders", by_standard(secret=OTHER, id="msg_2")).status_code == 201
    several = signed_headers("msg_3", int(time.time()), BODY, [b"x" * 24, standard_key(STANDARD)])
    assert post(server, "orders", several).status_code == 200


def test_stranger_does_not_learn_which_topics_take_webhooks(server: httpx.Client):
    known, unknown = (post(server, topic, by_standard(secret=f"whsec_{'A' * 32}")) for topic in ("orders", "others"))
    errors = [reply.json()["error"] for reply in (known, unknown)]
    assert errors[0] | {"request_id": ""} == errors[1] | {"request_id": ""}
    assert known.status_code == unknown.status_code == server.get("/v0/hooks/orders").status_code == 401
    assert server.get("/v0/hooks/orders", headers=KEY).status_code == 405


def test_body_that_is_no_json_is_refused_and_adds_no_record(server: httpx.Client):
    for body in (b'1},{"data":2', b"", b"text", b'{"a":\xff}', b'"\\ud800"', b"[" * 2000):
        reply = post(server, "orders", by_standard(body), body)
        assert reply.status_code == 400, (body[:20], reply.text)
    assert records(server, "orders") is None
    form = {**by_standard(b"a=1"), "content-type": "application/x-www-form-urlencoded"}
    assert post(server, "orders", form, b"a=1").status_code == 415


def test_large_delivery_is_stored(server: httpx.Client):
    body = json.dumps({"type": "large", "text": "x" * 600_000}).encode()
    assert post(server, "orders", by_standard(body, id="msg_large"), body).status_code == 201
    [record] = records(server, "orders")
    assert (record["$tag"], len(record["data"]["text"])) == ("large", 600_000)


def test_schema_of_the_topic_holds(server: httpx.Client):
    config = {"schema": {"type": "object", "required": ["total"]}}
    assert server.put("/v0/topics/orders", json=config, headers=KEY).status_code == 201
    reply = post(server, "orders", by_standard())
    assert (reply.status_code, code(reply)) == (400, "schema_violation")
    body = b'{"total": 1}'
    assert post(server, "orders", by_standard(body), body).status_code == 200


def test_one_record_for_deliveries_at_the_same_time(process: ServerProcess, server: httpx.Client):
    headers = by_standard(id="msg_race")

    def send(_: int) -> httpx.Response:
        with httpx.Client(base_url=process.url) as caller:
            return post(caller, "orders", headers)

    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(send, range(24)))
    assert {reply.status_code for reply in replies} <= {200, 201}
    assert [reply.json()["deduped"] for reply in replies].count(False) == 1
    assert len(records(server, "orders")) == 1


def test_acknowledged_delivery_is_not_stored_again_after_a_kill(start_server: StartServer, tmp_path: Path):
    (tmp_path / "webhooks").write_text(json.dumps(ROWS))
    settings = {"data_dir": tmp_path / "data", "webhooks_file": tmp_path / "webhooks"}
    first = start_server(**settings)
    with httpx.Client(base_url=first.url) as caller:
        assert caller.put("/v0/topics/orders", json={"durability": "fsync"}).status_code == 201
        assert post(caller, "orders", by_standard()).status_code == 200
        first.kill()
    with httpx.Client(base_url=start_server(**settings).url) as caller:
        assert post(caller, "orders", by_standard()).json()["deduped"] is True


# --- the file


def test_file_is_read_again_when_it_changes(start_server: StartServer, tmp_path: Path):
    file = tmp_path / "webhooks"
    file.write_text(json.dumps(ROWS))
    server = start_server(webhooks_file=file)
    with httpx.Client(base_url=server.url) as caller:
        assert post(caller, "orders", by_standard()).status_code == 201
        file.write_text(json.dumps({"orders": ROWS["orders"] | {"secret": OTHER}}))
        eventually(lambda: post(caller, "orders", by_standard()).status_code, lambda status: status == 401)
        assert post(caller, "orders", by_standard(secret=OTHER)).status_code == 200
        assert post(caller, "commits", by_github()).status_code == 401
        file.write_text('{"orders": {"style": "standard", "secret": "whsec_short"}}')
        os.kill(server.process.pid, signal.SIGHUP)
        eventually(lambda: "keys_refused" in server.log(), bool)
        assert "short" not in server.log()
        assert post(caller, "orders", by_standard(secret=OTHER)).status_code == 200
    server.kill()  # a refused file is logged as an error, which `stop` would report


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not valid JSON"),
        ("[]", "is not valid"),
        ('{"orders": {"style": "hidden", "secret": "hidden hidden hidden"}}', "$[...].style is not valid"),
        ('{"orders": {"style": "github", "secret": "hidden"}}', "row 1: a secret has less than 16 bytes"),
        ('{"orders": {"style": "github", "secret": []}}', "row 1: a secret has less than 16 bytes"),
        ('{"orders": {"style": "standard", "secret": "hidden hidden hidden"}}', "row 1: a secret of Standard Webhooks"),
        ('{"a/b": {"style": "github", "secret": "hidden hidden hidden"}}', "row 1: its key is not the name of a topic"),
        ('{"orders": {"style": "github", "secret": "hidden hidden hidden", "more": 1}}', "is not valid"),
    ],
)
def test_file_that_cannot_be_used_is_refused_without_a_quote(text: str, problem: str):
    with pytest.raises(BadWebhooks) as refused:
        parse_webhooks(text)
    assert problem in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_random_signatures_are_refused():
    """Whatever the fields say, the answer is a refusal or a delivery that was signed."""
    for number in range(2000):
        noise = hashlib.sha512(b"%d" % number).digest()
        for name in STYLES:
            row = parse_webhooks(json.dumps(ROWS))[name]
            fields = {key.encode(): noise[: number % 64] for key in STYLES[name]()}
            with pytest.raises(BadDelivery):
                check_delivery(row, fields, noise, time.time())
