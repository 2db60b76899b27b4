"""docs/recipes/chat-room.md: a room in real browsers and in a terminal, in one order, across a killed server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.browser import Site, find_browser, needs_browser
from tests.docs.recipes.conftest import OpenKitchen
from topics.client import NewRecord, Topics

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WAIT_MS = 20_000


@pytest.fixture
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=find_browser(), args=["--no-sandbox", "--disable-dev-shm-usage", "--no-proxy-server"]
        )
        yield started
        started.close()


@needs_browser
def test_everyone_sees_all_messages_once_and_in_one_order(open_kitchen: OpenKitchen, browser: Browser) -> None:
    with ExitStack() as stack:
        site = stack.enter_context(Site(lambda _: None))
        kitchen = open_kitchen(cors_origins=site.origin)
        programs = kitchen.programs("chat-room", {"1000": "4"})
        site.page = (kitchen.here / "chat.html").read_text()
        ada, bob = (_open(browser, f"{site.origin}/chat.html?name={name}") for name in ("ada", "bob"))
        terminal = stack.enter_context(programs.start("chat.py", "eve"))
        _say(ada, "hello")
        _expect(bob, ["ada: hello"])
        assert terminal.line() == "ada: hello"
        terminal.type("<b>hi</b>")
        _expect(ada, ["ada: hello", "eve: <b>hi</b>"])

        kitchen.kill_server()
        _say(bob, "still here")
        seen = ["ada: hello", "eve: <b>hi</b>", "bob: still here"]
        _expect(ada, seen)
        _expect(bob, seen)
        assert [terminal.line(), terminal.line()] == ["eve: <b>hi</b>", "bob: still here"]

        with Topics(kitchen.address.url) as topics:
            lines = [NewRecord(data={"from": "bot", "text": str(number)}) for number in range(3)]
            topics.append_many("chat:general", lines)
        late = _open(browser, f"{site.origin}/chat.html?name=late")
        _expect(late, ["(2 older messages are not kept)", "bob: still here", "bot: 0", "bot: 1", "bot: 2"])


def _open(browser: Browser, url: str) -> Page:
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(url)
    page.get_by_text("you are").wait_for()
    return page


def _say(page: Page, text: str) -> None:
    page.get_by_placeholder("Message").fill(text)
    page.get_by_role("button").click()


def _expect(page: Page, lines: list[str]) -> None:
    """Wait until the page shows these lines."""
    page.get_by_role("listitem").nth(len(lines) - 1).wait_for()
    assert page.get_by_role("listitem").all_inner_texts() == lines
