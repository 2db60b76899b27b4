"""The SQL page: a statement runs, is in the address, is drawn, ends, and says why it failed."""

import json
import re

import pytest
from playwright.sync_api import Route, expect

from tests.browser import needs_browser
from tests.conftest import StartServer
from tests.console.conftest import OpenPage, OpenShop

pytest.importorskip("duckdb")
pytestmark = needs_browser
SLOW_MS = 120_000  # a query is a process, which starts slowly on a busy machine


def answered(route: Route, **answer: object) -> None:
    whole = {"columns": [], "rows": [], "more": False, "performance": {"server_total_ms": 12}} | answer
    route.fulfill(status=200, content_type="application/json", body=json.dumps(whole))


def test_statement_runs_and_its_link_shows_the_same(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "sql")
    page.get_by_label("Statement").fill("select topic, count(*) as n from orders group by 1")
    page.keyboard.press("Control+Enter")
    table = page.get_by_role("region", name="Rows")
    expect(table.locator("tbody tr")).to_have_count(1, timeout=SLOW_MS)
    expect(table).to_contain_text("orders")
    assert "q=select" in page.url
    other = open_page(url, page.url.partition("#/")[2])
    expect(other.get_by_label("Statement")).to_have_value("select topic, count(*) as n from orders group by 1")
    expect(other.get_by_role("region", name="Rows")).to_contain_text("orders", timeout=SLOW_MS)


def test_wrong_statement_says_why(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "sql", expect=("422",))
    page.get_by_label("Statement").fill("select nothing from orders")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("query_failed", timeout=SLOW_MS)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_rows_are_drawn_as_table_lines_and_bars(open_page: OpenPage, url: str, scheme: str, width: int) -> None:
    page = open_page(url, "sql", color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    rows: list[list[object]] = [["eu", 3, '{"a": 1}'], [None, 7, None]]
    page.route("**/v0/sql", lambda route: answered(route, columns=["tag", "n", "d"], rows=rows, more=True))
    page.get_by_label("Statement").fill("select 1")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("2 rows, and there are more, 12 ms")).to_be_visible()
    expect(page.get_by_role("region", name="Rows").locator("tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Plot").click()
    bars = page.get_by_role("region", name="Bars").locator(".bar i")
    expect(bars).to_have_count(2)
    assert bars.nth(1).evaluate("bar => bar.style.width") == "100%"
    page.unroute("**/v0/sql")
    times = [[f"2026-11-19T10:0{n}:00.000Z", n * n] for n in range(5)]
    page.route("**/v0/sql", lambda route: answered(route, columns=["minute", "n"], rows=times))
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".plot")).to_contain_text("minute")
    expect(page.locator(".plot path.stroke")).to_have_count(1)
    assert "view=plot" in page.url
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"


def test_statement_that_is_stopped_or_replaced_shows_nothing_late(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "sql")
    held: list[Route] = []
    page.route("**/v0/sql", lambda route: held.append(route))
    statement = page.get_by_label("Statement")
    statement.fill("select 1")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("Running …")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    page.unroute("**/v0/sql")
    page.route("**/v0/sql", lambda route: answered(route, columns=["n"], rows=[[42]]))
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("region", name="Rows")).to_contain_text("42")


def test_server_without_the_extra_shows_what_installs_it(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "sql", expect=("501",))
    error = {
        "code": "sql_unavailable",
        "message": "install it",
        "detail": {"install": "pip install 'topics-engine[sql]'"},
    }
    page.route("**/v0/sql", lambda route: route.fulfill(
        status=501, content_type="application/json", body=json.dumps({"error": error})
    ))  # fmt: skip
    page.get_by_label("Statement").fill("select 1")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("pip install")).to_be_visible()


def test_key_that_may_not_read_has_no_editor(
    open_page: OpenPage, start_server: StartServer, open_shop: OpenShop
) -> None:
    server = start_server(api_keys="root,writer:write")
    page = open_page(server.url, "sql", expect=("401", "403"))
    page.get_by_label("API key").fill("writer")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text(re.compile("lacks the scope read"))).to_be_visible()
    expect(page.get_by_label("Statement")).to_have_count(0)
