"""Keys, restarts and accessibility of the console."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser import needs_browser
from tests.conftest import ServerProcess, StartServer
from tests.console.conftest import OpenPage, OpenShop

pytestmark = needs_browser

# Every page, and what it shows once it has its data.
LOADED = {
    "": ".plot .stroke", "topics": ".table .name a", "topics/orders": ".record", "queues": ".table .name a",
    "queues/emails": ".jobs td", "routers": ".plain td", "consumers": ".table .name", "pipelines": ".plain td",
    "replica": ".empty", "sql": ".groups .button",
    "schedules": ".plain td", "queues/reports": ".jobs td",
    "map": ".graph .box", "topics/orders?view=seq": ".timeline .state", "queues/emails?tab=dead": ".jobs td",
}  # fmt: skip
PAGES = tuple(LOADED)
# What the browser logs about answers that the console expects.
REFUSED, GONE, STARTING = "401 (Unauthorized)", "ERR_CONNECTION_REFUSED", "503 (Service Unavailable)"
KEYS = "all-rights:read+write+delete+admin,only-read:read,shop-writer:read+write:shop."


def test_key_is_asked_for_and_sent_in_headers_only(
    start_server: StartServer, open_shop: OpenShop, open_page: OpenPage
) -> None:
    server = start_server(api_keys=KEYS)
    open_shop(server.url, key="all-rights").write("orders", 1)
    page = open_page(server.url, "topics/orders", expect=(REFUSED,))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for unknown in ("no such key", "ключ"):  # no header can hold the second one
        page.get_by_label("API key").fill(unknown)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("This server does not know the key")
        page.reload()
    page.get_by_label("API key").fill("all-rights")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("log").locator(".record")).to_have_count(1)
    assert page.evaluate("Object.keys(localStorage).length") == 0
    with page.expect_request("**/v0/watch/*"):  # the tail is a stream
        page.reload()
    expect(page.get_by_role("log").locator(".record")).to_have_count(1)
    assert not [url for url in asked if "all-rights" in url or "token" in url]
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_key_without_write_sees_no_write_buttons(
    start_server: StartServer, open_shop: OpenShop, open_page: OpenPage
) -> None:
    server = start_server(api_keys=KEYS)
    shop = open_shop(server.url, key="all-rights")
    shop.write("shop.orders", 1)
    shop.write("other", 1)
    actions = ("Write record", "Delete records", "Configure", "Delete topic")

    def buttons(key: str, topic: str) -> tuple[set[str], str]:
        page = open_page(server.url, f"topics/{topic}", expect=(REFUSED, "403 (Forbidden)"))
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name=topic)).to_be_visible()
        expect(page.get_by_role("button", name="Write record").or_(page.locator(".note")).first).to_be_visible()
        shown = {name for name in actions if page.get_by_role("button", name=name).count()}
        notes = page.locator(".note").all_inner_texts()
        return shown, notes[0] if notes else ""

    assert buttons("all-rights", "shop.orders") == (set(actions), "")
    shown, note = buttons("only-read", "shop.orders")
    assert shown == set()
    assert note.startswith("Your key lacks the scopes write, delete and admin")
    shown, note = buttons("shop-writer", "shop.orders")
    assert (shown, "delete and admin" in note) == ({"Write record"}, True)
    shown, note = buttons("shop-writer", "other")
    assert (shown, "do not cover other" in note) == (set(), True)


def test_keys_are_created_shown_and_revoked(
    start_server: StartServer, open_page: OpenPage, open_shop: OpenShop
) -> None:
    server = start_server(api_keys=KEYS)
    page = open_page(server.url, "", expect=(REFUSED, "400 (Bad Request)"))
    page.get_by_label("API key").fill("all-rights")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Keys").click()
    expect(page.get_by_role("row").nth(2)).to_contain_text("never")
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("billing")
    dialog.get_by_label("Topics").fill("orders, shop.*")
    dialog.get_by_label("Valid for").fill("soon")
    dialog.get_by_role("button", name="Create key").click()
    expect(dialog.get_by_role("alert")).to_contain_text('"soon" is not a duration')
    dialog.get_by_label("Valid for").fill("30d")
    dialog.get_by_role("button", name="Create key").click()
    secret = dialog.locator(".code pre").inner_text()
    dialog.get_by_role("button", name="Close").click()
    row = page.get_by_role("row").filter(has_text="billing")
    expect(row).to_contain_text("shop.*, orders")
    reader = open_shop(server.url, key=secret)
    rights = reader.send("GET", "/v0/whoami")
    assert (rights["scopes"], rights["names"], rights["prefixes"]) == (["read"], ["orders"], ["shop."])
    expect(row.get_by_role("cell").nth(3)).not_to_have_text("never")
    violations = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert not violations, violations
    page.get_by_role("button", name="Create token").click()
    dialog.get_by_label("For", exact=True).fill("user-7")
    dialog.get_by_label("write").check()
    dialog.get_by_label("Topics").fill("shop.*")
    dialog.get_by_label("Valid for").fill("2d")
    dialog.get_by_role("button", name="Create token").click()
    expect(dialog.get_by_role("alert")).to_contain_text("ttl_ms")
    dialog.get_by_label("Valid for").fill("1h")
    dialog.get_by_role("button", name="Create token").click()
    expect(dialog).to_contain_text("shown now and never again")
    token = dialog.locator(".code pre").first.inner_text()
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_text(token)).to_have_count(0)
    holder = open_shop(server.url, key=token)
    rights = holder.send("GET", "/v0/whoami")
    assert (sorted(rights["scopes"]), rights["prefixes"]) == (["read", "write"], ["shop."])
    assert 3_500_000 < rights["expires_at"] - time.time() * 1000 <= 3_600_000
    row.get_by_role("button", name="Revoke", exact=True).click()
    dialog.get_by_role("button", name="Revoke", exact=True).click()
    expect(row).to_have_count(0)
    assert reader.http.get("/v0/whoami").status_code == 401


def test_console_survives_a_restart_of_the_server(tmp_path: Path, open_shop: OpenShop, open_page: OpenPage) -> None:
    settings: dict[str, object] = {"data_dir": tmp_path / "data"}
    server = ServerProcess(tmp_path / "first", settings)
    open_shop(server.url).write("orders", 1)
    page = open_page(server.url, "topics/orders", expect=(GONE, STARTING, "ERR_", "Failed to fetch"))
    rows = page.get_by_role("log").locator(".record")
    expect(rows).to_have_count(1)
    server.stop()
    expect(page.get_by_text("The server does not answer.")).to_be_visible()
    same_port = f"import sys; from topics.cli.main import main; sys.exit(main(['serve', '--port', '{server.port}']))"
    again = ServerProcess(tmp_path / "second", settings, program=("-c", same_port))
    open_shop(again.url).write("orders", 2)
    expect(page.get_by_text("The server does not answer.")).not_to_be_visible(timeout=20_000)
    expect(rows).to_have_count(2, timeout=20_000)
    page.close()
    again.stop()


DARK = pytest.param("dark", ["color-contrast"], marks=pytest.mark.torture)


@pytest.mark.parametrize(("scheme", "rules"), [("light", None), DARK])
def test_axe_finds_no_violation(open_page: OpenPage, url: str, scheme: str, rules: list[str] | None) -> None:
    page = open_page(url, color_scheme=scheme)
    found = []
    for path in PAGES:
        page.goto(f"{url}/console#/{path}")
        page.locator(LOADED[path]).first.wait_for()
        options = {"resultTypes": ["violations"]} | ({"runOnly": rules} if rules else {})
        answer = Axe().run(page, options=options).response
        found += [(path, row["id"], [node["html"][:160] for node in row["nodes"]]) for row in answer["violations"]]
    assert not found, found


def test_pages_are_usable_with_the_keyboard(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.locator(".table .rows").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="billing")).to_be_focused()
    ring = page.get_by_role("link", name="billing").evaluate("link => getComputedStyle(link).outlineStyle")
    assert ring == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="billing")).to_be_focused()
    page.get_by_role("button", name="Write record").press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Write record")).to_be_focused()


def test_pages_fit_a_screen_of_360_pixels(open_page: OpenPage, url: str) -> None:
    """Nothing is beyond the edge: no page, no link to a page, no part that scrolls sideways but the list of tabs."""
    page = open_page(url)
    page.set_viewport_size({"width": 360, "height": 740})
    wide = """[...document.querySelectorAll("main .scroll, nav, .records")]
        .filter(part => part.scrollWidth > part.clientWidth + 1).map(part => part.outerHTML.slice(0, 120))"""
    for path in PAGES:
        page.goto(f"{url}/console#/{path}")
        page.locator(LOADED[path]).first.wait_for(state="attached")
        expect(page.locator("h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        assert page.evaluate(wide) == [], path
    expect(page.get_by_role("link", name="Pipelines")).to_be_in_viewport(ratio=1)
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    assert not found, found


def test_palette_opens_pages_topics_and_actions(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("emails")
    expect(page.get_by_role("option").first).to_contain_text("emails")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="emails")).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("create a rou")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Create a router")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("next and the previous row")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Topics")).to_be_focused()
    expect(page.get_by_role("link", name="billing", exact=True)).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="billing", exact=True)).to_be_focused()
    page.keyboard.press("k")
    expect(page.get_by_role("link", name="audit", exact=True)).to_be_focused()


def test_theme_is_chosen_and_kept(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics", color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    theme = page.locator(".theme")
    for chosen in ("light", "dark"):
        theme.click()
        expect(theme).to_contain_text(chosen)
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    expect(theme).to_contain_text("dark")
    assert page.evaluate(ground) == dark
