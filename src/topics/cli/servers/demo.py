"""`topics demo`: a server in a temporary directory, a small shop that uses it, and what to look at."""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from topics import early_signals
from topics.cli.connect import Server, Target, post
from topics.cli.options import add_parser, option
from topics.cli.output.failures import EXIT_DONE, Failure
from topics.cli.output.screen import Screen
from topics.cli.tree import Subparsers
from topics.client._sync.management import ManagementCalls
from topics.client._sync.queues import QueueCalls
from topics.client.call import topic_path
from topics.errors import TopicsError
from topics.testing import server

TURN_S = 0.2
SKUS = ("AEROPRESS-GO", "V60", "FILTERS-350", "SCALE-MINI", "KETTLE-1L")
CUSTOMERS = ("ada", "bob", "eve", "kim", "leo", "zoe")
BROKEN = "nobody@invalid"
CLICKS_KEPT = 200
CLICKS_A_TURN = 25
MAIL_NODE = "mailer"

TOUR = (
    ("topics top", "everything at once: rates, lag, jobs, losses"),
    ("topics ls --rates", "the topics of the shop"),
    ("topics read orders --last 5 -f", "orders as they come"),
    ("topics read clicks --from 1 --limit 3", "a capped topic: the gap says which records were lost"),
    ("topics queue ls", "emails to send; one address always fails"),
    ("topics queue dead emails", "its jobs end here; `topics queue redrive emails` returns them"),
    ("topics router ls", "orders of the EU are copied to orders-eu"),
    ("topics consumer ls orders", "two consumers: billing keeps up, search is behind"),
)


def register(subparsers: Subparsers) -> None:
    port = os.environ.get("TOPICS_PORT", "0")
    parser = add_parser(
        subparsers, "demo", "",
        option("--port PORT", "port of the server [TOPICS_PORT, or a free one]", default=port),
        option("--time DURATION", "stop after this time [Ctrl-C]"),
        option("--json", "print the addresses as JSON, also on a terminal"),
        details="Ctrl-C stops it and removes everything.",
    )  # fmt: skip
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    screen = Screen(as_json=args.json)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="topics-demo-") as folder,
            early_signals.handled(signal.default_int_handler),  # SIGTERM stops the demo as Ctrl-C does
        ):
            with (
                server(data_dir=Path(folder, "data"), port=args.port, log_level="warning") as url,
                ShopServer(Target(url=url, source="demo")) as shop_server,
            ):
                try:
                    _introduce(screen, url)
                    shop = Shop(shop_server)
                    shop.open()
                    deadline_s = math.inf if args.time is None else time.monotonic() + args.time / 1000
                    while time.monotonic() < deadline_s:
                        shop.turn()
                        time.sleep(TURN_S)
                except KeyboardInterrupt:
                    pass
                except TopicsError as error:
                    raise shop_server.failure(error) from error
    except RuntimeError as error:
        raise Failure(str(error)) from error
    screen.note("stopped; nothing was left behind")
    return EXIT_DONE


def _introduce(screen: Screen, url: str) -> None:
    if not screen.is_human:
        screen.json({"url": url, "console": f"{url}/console"})
        screen.flush()
    else:
        screen.line(f"{screen.paint('A shop is open at', 'bold')} {url}")
        screen.line(f"{screen.paint('Console', 'bold')}           {url}/console")
        screen.line(f"\nIn another terminal: {screen.paint(f'export TOPICS_URL={url}', 'cyan')}, then try\n")
        width = max(len(command) for command, _ in TOUR)
        for command, text in TOUR:
            screen.line(f"  {screen.paint(command.ljust(width), 'green')}  {screen.paint(text, 'dim')}")
        screen.line("\nCtrl-C stops the shop and removes everything.")
        screen.flush()


# --- the shop


class ShopServer(Server, ManagementCalls, QueueCalls):  # type: ignore[override]  # its `_http` is the connection
    """The server with calls of the sync client."""


class Shop:
    """Plays the shop against a server, a turn at a time. The same seed makes the same shop."""

    def __init__(self, server: ShopServer, *, seed: int = 7) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._orders = 0
        self._turns = 0

    def open(self) -> None:
        """Create the topics, the queue, the router and the consumers."""
        server = self._server
        server.put_topic("orders", durability="fsync")
        server.put_topic("clicks", cap_records=CLICKS_KEPT)
        server.put_topic(
            "emails", type="queue", leases_durable=False, max_deliveries=2, dead_letter="emails.dead", lease_ms=5000
        )
        server.put_router("orders->eu", source="orders", dest="orders-eu", filter=("tag", "Glob", "eu:*"))
        for consumer in ("billing", "search"):
            server.put_consumer("orders", consumer, seq=0)

    def turn(self) -> None:
        """Sell something, click around, send emails, and let the consumers read."""
        self._turns += 1
        for _ in range(self._random.randint(1, 3)):
            self._order()
        clicks = [{"data": {"page": f"/{self._random.choice(SKUS).lower()}"}} for _ in range(CLICKS_A_TURN)]
        self._append("clicks", clicks)
        self._send_emails()
        self._server.put_consumer("orders", "billing", seq=self._orders)
        if self._turns % 10 == 0:
            self._server.put_consumer("orders", "search", seq=self._orders * 2 // 3)

    def _order(self) -> None:
        customer, region = self._random.choice(CUSTOMERS), self._random.choice(("eu", "us"))
        self._orders += 1
        order = {"order": self._orders, "sku": self._random.choice(SKUS), "qty": self._random.randint(1, 3)}
        self._append("orders", [{"data": order, "tag": f"{region}:{customer}", "node": f"till-{self._orders % 3}"}])
        to = BROKEN if self._orders % 10 == 3 else f"{customer}@example.org"
        self._append("emails", [{"data": {"to": to, "order": self._orders}, "tag": "confirmation"}])

    def _send_emails(self) -> None:
        """Finish the emails that can be sent, and return the others."""
        for job in self._server.claim("emails", node=MAIL_NODE, max=10):
            if job.data["to"] == BROKEN:
                job.nack(delay_ms=500)
            else:
                job.ack()

    def _append(self, topic: str, records: list[dict[str, Any]]) -> None:
        self._server.json(post(topic_path(topic, return_seqs=False), {"records": records}, safe=False))
