"""The overview page."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser import needs_browser
from tests.conftest import ServerProcess, StartServer
from tests.console.conftest import OpenPage
from tests.console.seeding import Shop

pytestmark = needs_browser


def test_overview_plots_the_last_hour_and_counts_losses(open_page: OpenPage, shop: Shop, url: str) -> None:
    page = open_page(url)
    lost = page.locator(".stat").filter(has_text="Lost")
    expect(lost).to_contain_text("600 cap", timeout=15_000)
    expect(page.get_by_role("img", name="Records appended: appended now")).to_be_visible()
    expect(page.locator(".plot .stroke").first).to_be_attached()
    expect(page.locator(".stat").filter(has_text="Pressure")).to_contain_text("calm")
    page.locator(".plot-frame").first.hover()
    expect(page.locator(".plot .tip").first).to_contain_text("appended")
    page.get_by_role("button", name="Day").click()
    expect(page.get_by_role("button", name="Day")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Hour").click()
    expect(lost).to_contain_text("600 cap")


def test_new_server_shows_the_command_that_writes_a_record(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server().url, "topics")
    expect(page.get_by_text("Nothing here yet")).to_be_visible()
    expect(page.locator(".code pre")).to_contain_text("curl http://127.0.0.1:")


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """A writer, a standby and two read replicas."""
    folder = tmp_path_factory.mktemp("replicas")
    known = {"replica": f"file://{folder}/bucket", "replica_interval_ms": 50, "takeover_after_ms": 5_000}
    follows = [{}, {"standby": True}, *[{"standby": True, "no_takeover": True}] * 2]
    servers = [
        ServerProcess(folder / f"{at}-server", {"data_dir": folder / str(at), **known, **more})
        for at, more in enumerate(follows)
    ]
    yield servers
    for server in servers:
        server.kill()


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        ("dark", 390),
        *[pytest.param(*one, marks=pytest.mark.torture) for one in (("dark", 1280), ("light", 390))],
    ],
)
def test_replica_page_shows_who_follows_and_how_far_it_is_behind(
    open_page: OpenPage, replicas: list[ServerProcess], scheme: str, width: int
) -> None:
    page = open_page(replicas[0].url, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.get_by_role("link", name="3 servers").click(timeout=60_000)
    rows = page.get_by_role("region", name="Followers").locator("tbody tr")
    expect(rows).to_have_count(3, timeout=30_000)
    for server, role in zip(replicas[1:], ("standby", "read replica", "read replica"), strict=True):
        row = rows.filter(has_text=server.url.removeprefix("http://").replace(":", "-"))
        expect(row).to_contain_text(role)
        expect(row).to_contain_text(re.compile(r"\d ?m?s"))
        expect(row.get_by_role("link")).to_have_attribute("href", f"{server.url}/console")
        expect(row.get_by_role("button", name="Promote")).to_have_count(int(role == "standby"))
    expect(page.locator(".stat", has_text="Restores since")).to_contain_text("ago", timeout=120_000)
    expect(page.locator(".stat", has_text="Stored")).to_contain_text("object")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/replicas-{scheme}-{width}.png")
    rows.get_by_role("button", name="Promote").click()
    expect(page.get_by_role("dialog")).to_contain_text("This server finishes its requests, uploads its last writes")
    page.keyboard.press("Escape")
    other = open_page(replicas[1].url, "replica", color_scheme=scheme)
    other.set_viewport_size({"width": width, "height": 900})
    expect(other.get_by_role("heading", name="Follows")).to_contain_text(replicas[0].url)
    expect(other.get_by_role("button", name="Promote")).to_be_visible()
    if folder := os.environ.get("SCREENSHOTS"):
        other.screenshot(path=f"{folder}/standby-{scheme}-{width}.png")
    other.goto(f"{replicas[1].url}/console#/")
    expect(other.get_by_text("This server is a standby")).to_contain_text("behind")


def test_browser_that_asks_for_the_root_gets_the_console(open_page: OpenPage, url: str) -> None:
    page = open_page(url)
    page.goto(url)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert page.url == f"{url}/console"


def test_url_that_names_no_page_is_reported_in_the_page(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics")
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    for path in ("topics/%", "queues/%ff", "nothing"):
        page.goto(f"{url}/console#/{path}")
        expect(page.get_by_role("heading", name="No such page")).to_be_visible()
        expect(page).to_have_title("No such page · topics")
        page.get_by_role("link", name="Go to the overview").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
