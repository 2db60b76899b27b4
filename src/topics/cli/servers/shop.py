"""The shop of `topics demo`: orders, clicks, emails, and readers that keep up more or less."""

from __future__ import annotations

import random
from typing import Any

from topics.cli.connect.request import Request, post, router_path, topic_path
from topics.cli.connect.server import Server

SKUS = ("AEROPRESS-GO", "V60", "FILTERS-350", "SCALE-MINI", "KETTLE-1L")
CUSTOMERS = ("ada", "bob", "eve", "kim", "leo", "zoe")
BROKEN = "nobody@invalid"
CLICKS_KEPT = 200
CLICKS_A_TURN = 25
MAIL_NODE = "mailer"


class Shop:
    """Plays the shop against a server, a turn at a time. The same seed makes the same shop."""

    def __init__(self, server: Server, *, seed: int = 7) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._orders = 0
        self._turns = 0

    def open(self) -> None:
        """Create the topics, the queue, the router and the consumers."""
        self._put("orders", durability="fsync")
        self._put("clicks", cap_records=CLICKS_KEPT)
        self._put("emails", type="queue", discard="reject", max_deliveries=2, dead_letter="emails.dead", lease_ms=5000)
        router = {"source": "orders", "dest": "orders-eu", "filter": ["tag", "Glob", "eu:*"]}
        self._send(Request(method="PUT", path=router_path("orders->eu"), body=router))
        for consumer in ("billing", "search"):
            self._commit(consumer, 0)

    def turn(self) -> None:
        """Sell something, click around, send emails, and let the consumers read."""
        self._turns += 1
        for _ in range(self._random.randint(1, 3)):
            self._order()
        clicks = [{"data": {"page": f"/{self._random.choice(SKUS).lower()}"}} for _ in range(CLICKS_A_TURN)]
        self._append("clicks", clicks)
        self._send_emails()
        self._commit("billing", self._orders)
        if self._turns % 10 == 0:
            self._commit("search", self._orders * 2 // 3)

    def _order(self) -> None:
        customer, region = self._random.choice(CUSTOMERS), self._random.choice(("eu", "us"))
        self._orders += 1
        order = {"order": self._orders, "sku": self._random.choice(SKUS), "qty": self._random.randint(1, 3)}
        self._append("orders", [{"data": order, "tag": f"{region}:{customer}", "node": f"till-{self._orders % 3}"}])
        to = BROKEN if self._orders % 10 == 3 else f"{customer}@example.org"
        self._append("emails", [{"data": {"to": to, "order": self._orders}, "tag": "confirmation"}])

    def _send_emails(self) -> None:
        """Finish the emails that can be sent, and return the others."""
        jobs = self._send(post(topic_path("emails", "claim"), {"node": MAIL_NODE, "max": 10}, safe=False))["claimed"]
        sent = [job["$seq"] for job in jobs if job["data"]["to"] != BROKEN]
        failed = [job["$seq"] for job in jobs if job["data"]["to"] == BROKEN]
        if sent:
            self._send(post(topic_path("emails", "ack"), {"node": MAIL_NODE, "seqs": sent}))
        if failed:
            self._send(post(topic_path("emails", "nack"), {"node": MAIL_NODE, "seqs": failed, "delay_ms": 500}))

    def _put(self, topic: str, **config: Any) -> None:
        self._send(Request(method="PUT", path=topic_path(topic), body=config))

    def _append(self, topic: str, records: list[dict[str, Any]]) -> None:
        self._send(post(topic_path(topic, return_seqs=False), {"records": records}, safe=False))

    def _commit(self, consumer: str, seq: int) -> None:
        self._send(Request(method="PUT", path=topic_path("orders", f"consumers/{consumer}"), body={"seq": seq}))

    def _send(self, request: Request) -> Any:
        return self._server.json(request)
