"""`topics ping`: how long an append and its delivery take."""

from __future__ import annotations

import json
import ssl
import time
import uuid
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any
from urllib.parse import urlsplit

from topics.cli.command import Args, Call, Command
from topics.cli.connect import delete, get, post, put
from topics.cli.options import option
from topics.cli.output.failures import EXIT_DONE, EXIT_FAILED, Failure
from topics.cli.output.units import duration
from topics.client.call import LOCAL_HOSTS, Request, topic_path
from topics.client.connection import Connection
from topics.client.errors import TopicsError, Unreachable
from topics.client.streams import Event

WAIT_S = 10.0
PROBE_S = 4.0
SHOWN = (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99))


def _request(args: Args, topic: str | None = None, number: int = 0) -> Request:
    name = topic or args.topic or "ping-example"
    config = None if args.topic else {"durability": args.durability}
    body: dict[str, Any] = {"records": [{"data": {"ping": number}, "tag": "ping"}], "idempotency_key": uuid.uuid4().hex}
    return post(topic_path(name), body | ({"config": config} if config else {}))


def _await(events: Iterator[Event], seq: int) -> None:
    """Read the stream up to a record. Raise `Failure` if it does not come."""
    try:
        for event in events:
            if event.name == "record" and any(one["$seq"] == seq for one in json.loads(event.data)["records"]):
                return
    except Unreachable as error:
        raise Failure(f"record {seq} was acknowledged but not delivered within {WAIT_S:.0f} s: {error}") from error
    raise Failure("the stream ended")


@Command(
    "ping",
    options=(
        option("-n --count N", "records to send [10]", default=10),
        option("--every DURATION", "time between two [100ms]", default=100),
        option(
            "--durability",
            "of the topic [disk]",
            choices=("ephemeral", "memory", "disk", "fsync", "replicated"),
            default="disk",
        ),
        option("--topic TOPIC", "a topic to use [a new one, which is removed afterwards]"),
        option(
            "--ready WHAT",
            "only ask whether the server is ready, for a probe: read, write or any. Needs no key, and accepts any "
            "certificate of an address of this machine",
            choices=("read", "write", "any"),
        ),
    ),
    request=_request,
    examples="  topics ping\n  topics ping --ready write    exit status 0 if the server takes writes\n"
    "  topics ping --count 100 --every 10ms --durability fsync\n",
)
def ping(call: Call) -> int:
    if call.args.ready is not None:
        return _probe(call)
    topic = call.args.topic or f"ping-{uuid.uuid4().hex[:8]}"
    made = call.args.topic is None
    if made:
        call.server.json(put(topic_path(topic), {"durability": call.args.durability}))
    try:
        events = call.server.events(
            post("/v0/watch", {"topics": {topic: {"tail": True}}}, safe=False), timeout_s=WAIT_S
        )
        next(events, None)  # the server sends one as soon as the stream is open
        acks, deliveries = _measure(call, topic, events)
    finally:
        if made:
            call.server.send(delete(topic_path(topic)))
    _report(call, acks, deliveries)
    return EXIT_DONE


def _probe(call: Call) -> int:
    """Print whether the server is ready, and why not. The scheme may be wrong: a probe has no context."""
    url = call.server.target.url
    scheme, _, rest = url.partition("://")
    is_here = urlsplit(url).hostname in LOCAL_HOSTS
    ready, why = False, ""
    for one in dict.fromkeys((scheme, "https", "http")) if is_here else (scheme,):
        with Connection(f"{one}://{rest}", timeout_s=PROBE_S) as server:
            if is_here:  # the certificate names the service, and nothing secret is sent
                server.tls = ssl.create_default_context()
                server.tls.check_hostname, server.tls.verify_mode = False, ssl.CERT_NONE
            try:
                server.send_once(get("/v0/ready", **{"for": None if call.args.ready == "any" else call.args.ready}))
                ready, why = True, ""
                break
            except Unreachable as error:
                why = f"{url} does not answer: {error}"
            except TopicsError as error:
                why = error.message
                break
    call.screen.result({"ready": ready, "reason": why or None}, "ready" if ready else f"not ready: {why}")
    return EXIT_DONE if ready else EXIT_FAILED


def _measure(call: Call, topic: str, events: Iterator[Event]) -> tuple[list[float], list[float]]:
    """Return how long each acknowledgement and each delivery took. A delivery counts once it is read: after its ack."""
    acks: list[float] = []
    deliveries: list[float] = []
    for number in range(call.args.count):
        if number:
            time.sleep(call.args.every / 1000)
        began = time.perf_counter()
        seq = call.server.json(_request(call.args, topic, number))["last_seq"]
        acks.append((time.perf_counter() - began) * 1000)
        _await(events, seq)
        deliveries.append((time.perf_counter() - began) * 1000)
        if call.screen.is_human:
            call.screen.line(
                f"seq {seq}: acknowledged in {duration(acks[-1])}, delivered in {duration(deliveries[-1])}"
            )
    return acks, deliveries


def _report(call: Call, acks: list[float], deliveries: list[float]) -> None:
    ack, delivery = percentiles(acks), percentiles(deliveries)
    if not call.screen.is_human:
        call.screen.json({"url": call.server.target.url, "count": len(acks), "ack": ack, "delivery": delivery})
        return
    for name, found in (("acknowledged", ack), ("delivered", delivery)):
        parts = [f"{key.removesuffix('_ms')} {duration(value)}" for key, value in found.items()]
        call.screen.line(f"{call.screen.paint(name.ljust(12), 'bold')} {', '.join(parts)}")


def percentiles(times_ms: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    found = {name: round(ordered[ceil(len(ordered) * share) - 1], 3) for name, share in SHOWN}
    return found | {"max_ms": round(ordered[-1], 3)}


register = ping.register
