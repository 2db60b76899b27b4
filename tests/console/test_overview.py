"""The overview page."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser import needs_browser
from tests.conftest import StartServer
from tests.console.conftest import OpenPage
from tests.console.seeding import Shop

pytestmark = needs_browser


def test_overview_plots_the_last_hour_and_counts_losses(open_page: OpenPage, shop: Shop, url: str) -> None:
    page = open_page(url)
    lost = page.locator(".stat").filter(has_text="Lost, last hour")
    expect(lost).to_contain_text("600 cap", timeout=15_000)
    expect(page.get_by_role("img", name="Records appended: appended now")).to_be_visible()
    expect(page.locator(".plot .stroke").first).to_be_attached()
    expect(page.locator(".stat").filter(has_text="Pressure")).to_contain_text("calm")
    page.locator(".plot-frame").first.hover()
    expect(page.locator(".plot .tip").first).to_contain_text("appended")


def test_new_server_shows_the_command_that_writes_a_record(start_server: StartServer, open_page: OpenPage) -> None:
    page = open_page(start_server().url, "topics")
    expect(page.get_by_text("Nothing here yet")).to_be_visible()
    expect(page.locator(".code pre")).to_contain_text("curl http://127.0.0.1:")


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
