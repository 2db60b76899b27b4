"""Fixtures of the console: a real browser, and a server with a small shop."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import find_browser
from tests.conftest import ServerProcess
from tests.console.seeding import Shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WAIT_MS = 20_000


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of this folder in one worker: they share a browser."""
    for item in items:
        if "tests/console/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("console"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Open a browser until the last test of the file: while it is open, the thread has a running event loop."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=find_browser(), args=["--no-sandbox", "--disable-dev-shm-usage", "--no-proxy-server"]
        )
        yield started
        started.close()


OpenPage = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open pages of the console. Check at the end that none logged an error or broke its security policy."""
    contexts = []
    problems: list[str] = []
    expected: list[str] = []

    def start(url: str, path: str = "", *, expect: tuple[str, ...] = (), **options: object) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)  # type: ignore[arg-type]
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        expected.extend(expect)
        page = context.new_page()
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{url}/console#/{path}")
        return page

    yield start
    for context in contexts:
        for page in context.pages:
            page.unroute_all(behavior="ignoreErrors")  # a handler of `page.route` may still be answering
        context.close()
    assert [text for text in problems if not any(part in text for part in expected)] == []


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A server with a small shop. Tests that change it use topics of their own."""
    directory = tmp_path_factory.mktemp("shop")
    server = ServerProcess(directory, {"data_dir": directory / "data"})
    filled = Shop(server.url)
    filled.fill()
    yield filled
    filled.http.close()
    server.stop()


@pytest.fixture
def open_shop() -> Iterator[Callable[..., Shop]]:
    """Return clients of servers: `open_shop(url, key="...")`. They are closed at the end."""
    opened: list[Shop] = []

    def start(url: str, *, key: str | None = None) -> Shop:
        opened.append(Shop(url, key=key))
        return opened[-1]

    yield start
    for one in opened:
        one.http.close()


OpenShop = Callable[..., Shop]


@pytest.fixture
def url(shop: Shop) -> str:
    return str(shop.http.base_url).rstrip("/")


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with 5,000 topics."""
    server = ServerProcess(tmp_path_factory.mktemp("many"), {})
    _put_topics(server.port, [f"many.{number:04d}" for number in range(5000)])
    yield server.url
    server.stop()


def _put_topics(port: int, names: list[str]) -> None:
    """Create topics over one connection that does not wait for answers."""
    shared = "HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
    last = f"POST /v0/topics/{names[0]}/diff {shared}connection: close\r\n\r\n{{}}"
    requests = "".join([f"PUT /v0/topics/{name} {shared}\r\n{{}}" for name in names] + [last]).encode()
    with socket.create_connection(("127.0.0.1", port), WAIT_MS / 1000) as connection:
        sending = threading.Thread(target=connection.sendall, args=(requests,))
        sending.start()
        with connection.makefile("rb") as answers:
            made = answers.read().count(b"HTTP/1.1 20")
        sending.join()
    assert made == len(names) + 1
