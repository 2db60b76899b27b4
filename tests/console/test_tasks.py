"""Ten tasks of people who look after a system: how many clicks and keys each takes, and that the answer is there.

The decision record of the console has the figures. `SCREENSHOTS=folder` prints them, and the seconds of the browser.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser import needs_browser
from tests.conftest import StartServer
from tests.console.conftest import OpenPage, OpenShop
from tests.console.seeding import QUEUE, Shop

pytestmark = needs_browser


class Hand:
    """Does what a person does, and counts it."""

    def __init__(self, page: Page) -> None:
        self.page, self.clicks, self.keys = page, 0, 0

    def click(self, what: Locator) -> None:
        self.clicks += 1
        what.click()

    def type(self, text: str, *, into: Locator | None = None) -> None:
        """Type into the focused field, or click into another one first."""
        if into is not None:
            self.click(into)
        self.keys += len(text)
        self.page.keyboard.type(text)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.keys += 1
            self.page.keyboard.press(key)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name)

    def go(self, name: str) -> None:
        """Open a topic or a queue by a part of its name."""
        self.press("Control+k")
        self.type(name)
        expect(self.page.get_by_role("option").filter(has_text=name).first).to_be_visible()
        self.press("Enter")
        expect(self.page.get_by_role("heading", level=1)).to_have_text(re.compile(name))


def whose_jobs_fail(hand: Hand) -> None:
    hand.go("calls")
    hand.click(hand.page.get_by_role("tab", name="Dead letters"))
    expect(hand.button("3 × tenant-42")).to_be_visible()
    expect(hand.page.get_by_role("cell", name="timeout").first).to_be_visible()


def what_a_consumer_missed(hand: Hand) -> None:
    hand.press("g", "c")
    hand.click(hand.button("that ticker missed"))
    expect(hand.page.get_by_role("dialog")).to_contain_text("Evicted by a cap")


def replay_dead_letters(hand: Hand) -> None:
    hand.go("calls")
    hand.click(hand.page.get_by_role("tab", name="Dead letters"))
    hand.click(hand.button("3 × tenant-42"))
    hand.click(hand.button("Redrive these 3"))
    hand.click(hand.button("Redrive 3 jobs"))
    expect(hand.page.get_by_text("Moved 3 jobs")).to_be_visible()


def who_deleted_a_topic(hand: Hand) -> None:
    hand.click(hand.page.get_by_role("link", name="Keys"))
    hand.click(hand.page.get_by_role("link", name="Who changed what"))
    hand.type("name = 'secret-plans'", into=hand.page.get_by_label("Where", exact=True))
    expect(hand.page.get_by_role("log").locator(".record").last).to_contain_text("key1")


def order_of_a_customer(hand: Hand) -> None:
    hand.go("orders")
    hand.type("order = 7710", into=hand.page.get_by_label("Where", exact=True))
    expect(hand.page.get_by_role("log").locator(".record")).to_have_count(1)
    expect(hand.page.get_by_role("log")).to_contain_text("Zürich")


def queue_without_a_worker(hand: Hand) -> None:
    hand.press("g", "q")
    expect(hand.page.get_by_role("row").filter(has_text="forgotten")).to_contain_text("no worker", timeout=30_000)


def pause_a_queue(hand: Hand) -> None:
    hand.go("reports")
    hand.click(hand.button("Pause"))
    expect(hand.page.get_by_text("The queue is paused.")).to_be_visible()


def why_a_router_is_late(hand: Hand) -> None:
    hand.press("g", "r")
    expect(hand.page.get_by_role("row").filter(has_text="orders-to-audit")).to_contain_text("held up")


def record_that_fits_a_schema(hand: Hand) -> None:
    hand.go("formed")
    hand.click(hand.button("Write record"))
    dialog = hand.page.get_by_role("dialog")
    hand.type("V60", into=dialog.get_by_label("sku"))
    hand.press("Tab")
    hand.type("2")
    hand.press("Enter")
    expect(hand.page.get_by_text("Written as seq 1.")).to_be_visible()


def token_for_an_hour(hand: Hand) -> None:
    hand.click(hand.page.get_by_role("link", name="Keys"))
    hand.click(hand.button("Create token"))
    dialog = hand.page.get_by_role("dialog")
    hand.type("user-7", into=dialog.get_by_label("For", exact=True))
    hand.press("Tab")
    hand.type("shop.*")
    hand.press("Tab")
    hand.type("1h")
    hand.press("Enter")
    expect(dialog.get_by_text("shown now and never again")).to_be_visible()


# Each with the most clicks and keys that it may take.
TASKS: list[tuple[Callable[[Hand], None], int, int]] = [
    (whose_jobs_fail, 1, 7), (what_a_consumer_missed, 1, 2), (replay_dead_letters, 4, 7),
    (who_deleted_a_topic, 3, 21), (order_of_a_customer, 1, 20), (queue_without_a_worker, 0, 2), (pause_a_queue, 1, 9),
    (why_a_router_is_late, 0, 2), (record_that_fits_a_schema, 2, 14), (token_for_an_hour, 3, 17),
]  # fmt: skip


def fill(shop: Shop) -> None:
    shop.fill()
    shop.put("calls", **QUEUE | {"dead_letter": "calls.dead", "max_deliveries": 1})
    for tenant in ("tenant-42", "tenant-42", "tenant-42", "tenant-7"):
        shop.write("calls", {"to": "+49"}, tag=tenant)
    for job in shop.send("POST", "/v0/topics/calls/claim", {"node": "w", "max": 4})["claimed"]:
        shop.send("POST", "/v0/topics/calls/nack", {"node": "w", "seqs": [job["$seq"]], "reason": "timeout"})
    shop.send("POST", "/v0/topics/calls/claim", {"node": "w", "max": 4})
    shop.put("secret-plans")
    shop.send("DELETE", "/v0/topics/secret-plans")
    shop.put("forgotten", type="queue")
    shop.write("forgotten", 1)
    properties = {"sku": {"type": "string"}, "qty": {"type": "integer"}}
    shop.put("formed", schema={"type": "object", "required": ["sku"], "properties": properties})


@pytest.mark.torture
def test_ten_tasks_take_few_clicks_and_keys(
    start_server: StartServer, open_page: OpenPage, open_shop: OpenShop
) -> None:
    server = start_server(api_keys="all-rights:read+write+delete+admin")
    fill(open_shop(server.url, key="all-rights"))
    left = "signal is aborted"  # a page that is left at once ends what it still reads
    page = open_page(server.url, "", expect=("401 (Unauthorized)", left))
    page.get_by_label("API key").fill("all-rights")
    page.get_by_role("button", name="Sign in").click()
    for task, clicks, keys in TASKS:
        page.goto(f"{server.url}/console#/")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        hand, began = Hand(page), time.monotonic()
        task(hand)
        took_s = time.monotonic() - began
        if os.environ.get("SCREENSHOTS"):
            print(f"{task.__name__}: {hand.clicks} clicks, {hand.keys} keys, {took_s:.1f} s")
        assert hand.clicks <= clicks, task.__name__
        assert hand.keys <= keys, task.__name__
        page.keyboard.press("Escape")
