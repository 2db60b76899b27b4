"""The pages of topics: the table, one topic, its records, and its timeline."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser import needs_browser
from tests.console.conftest import OpenPage
from tests.console.seeding import Shop

pytestmark = needs_browser

HOSTILE = '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'


def button(page: Page, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def copied(page: Page) -> str:
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def test_table_finds_a_topic_by_a_part_of_its_name(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics")
    table = page.get_by_role("table", name="Topics")
    expect(table.get_by_role("link", name="orders", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("rice")
    expect(page.get_by_role("status").filter(has_text="1 of")).to_be_visible()
    row = table.get_by_role("row").filter(has_text="prices")
    expect(row).to_contain_text("400 records")
    expect(row).to_contain_text("600")
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.get_by_text("No topic matches")).to_be_visible()


def test_topic_is_created_configured_and_deleted(open_page: OpenPage, shop: Shop, url: str) -> None:
    page = open_page(url, "topics", expect=("404 (Not Found)",))  # a poll may find that the topic is deleted
    button(page, "Create topic").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("made.here")
    expect(dialog.locator("input, select").filter(visible=True)).to_have_count(3)
    dialog.get_by_text("Advanced").click()
    dialog.get_by_label("Maximum records").fill("5")
    dialog.get_by_label("Keep records for").fill("1h30m")
    dialog.get_by_label("Maximum size").fill("64KiB")
    dialog.get_by_text("Copy as").click()
    dialog.get_by_role("button", name="curl").click()
    expect(page.get_by_text("Copied as curl.")).to_be_visible()
    assert copied(page) == (
        f"curl -X PUT \\\n  '{url}/v0/topics/made.here' \\\n  -H 'content-type: application/json' \\\n"
        """  -d '{"type":"log","ttl_ms":5400000,"cap_records":5,"cap_bytes":65536}'"""
    )
    dialog.get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("heading", name="made.here")).to_be_visible()
    assert shop.send("GET", "/v0/topics/made.here")["config"]["cap_records"] == 5
    shop.put("made.here", idempotency_window_ms=0, priority=0)
    settings = page.locator(".settings")
    expect(settings).to_contain_text("Keep records for1 h 30 m")
    expect(settings).not_to_contain_text("Lease")
    expect(settings).to_contain_text("Remember idempotency keys fornot at all")
    button(page, "Configure").click()
    expect(page.get_by_role("dialog").get_by_label("Keep records for")).to_have_value("1h30m")
    expect(page.get_by_role("dialog").get_by_label("Remember idempotency keys for")).to_have_value("0")
    for text, problem in (("9" * 400, "it is too large"), ("many", "a whole number, such as 100 or 10k")):
        page.get_by_role("dialog").get_by_label("Maximum records").fill(text)
        button(page, "Save changes").click()
        expect(page.get_by_role("alert")).to_contain_text(problem)
    page.get_by_role("dialog").get_by_label("Maximum records").fill("7")
    button(page, "Save changes").click()
    expect(page.get_by_text("Changed made.here.")).to_be_visible()
    config = shop.send("GET", "/v0/topics/made.here")["config"]
    expected = {"cap_records": 7, "ttl_ms": 5_400_000, "idempotency_window_ms": 0, "priority": 0}
    assert {name: config[name] for name in expected} == expected
    button(page, "Delete topic").click()
    confirm = page.get_by_role("dialog").get_by_role("button", name="Delete topic")
    expect(confirm).to_be_disabled()
    page.get_by_role("dialog").get_by_label("Type made.here to confirm").fill("made.here")
    confirm.click()
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    assert "made.here" not in [row["topic"] for row in shop.send("GET", "/v0/topics")["topics"]]


def test_tail_shows_hostile_records_as_text(open_page: OpenPage, shop: Shop, url: str) -> None:
    shop.write("hostile", {"before": 1})
    page = open_page(url, "topics/hostile")
    records = page.get_by_role("log")
    expect(records.locator(".record")).to_have_count(1)
    shop.write("hostile", {HOSTILE: HOSTILE}, tag=HOSTILE[:60], node="<b>node</b>", meta={"<i>": HOSTILE})
    last = records.locator(".record").nth(1)
    expect(last).to_contain_text("<script>")
    last.locator("summary").first.click()
    expect(last.locator(".tree").first).to_contain_text(r"<img src=x onerror=\"document")
    expect(last).to_contain_text("<b>node</b>")
    assert page.locator("main").evaluate("main => main.querySelectorAll('script, img, b > b, i i').length") == 0
    assert "owned" not in page.title()


EXACT = """{"price":1.10,"far":1e400,"long":12345678901234567890,"zero":-0,"price":"\\u00e9","more":[1.0,{"x":0.10}]}"""


def test_payloads_are_shown_token_for_token(open_page: OpenPage, shop: Shop, url: str) -> None:
    def write() -> None:
        content = f'{{"records":[{{"data":{EXACT},"meta":{{"rate":2.50}}}}]}}'
        headers = {"content-type": "application/json"}
        assert shop.http.post("/v0/topics/exact", content=content, headers=headers).is_success

    write()
    page = open_page(url, "topics/exact")
    rows = page.get_by_role("log").locator(".record")
    expect(rows.first.locator(".line")).to_have_text(EXACT)  # from history
    write()
    expect(rows.nth(1).locator(".line")).to_have_text(EXACT)  # from the stream
    rows.nth(1).locator("summary").first.click()
    trees = rows.nth(1).locator(".tree")
    expect(trees).to_have_count(2)
    data, meta = trees.all()
    for token in ('"price": 1.10', "1e400", "12345678901234567890", "-0", '"price": "\\u00e9"', "1.0"):
        expect(data).to_contain_text(token)
    expect(meta).to_contain_text("2.50")
    rows.nth(1).get_by_role("button", name="Copy data").click()
    expect(page.get_by_text("Copied")).to_be_visible()
    assert re.sub(r"\s", "", copied(page)) == EXACT


def test_record_is_written_and_copied_token_for_token(open_page: OpenPage, shop: Shop, url: str) -> None:
    shop.write("typed", 1)
    page = open_page(url, "topics/typed")
    button(page, "Write record").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Data, any JSON value").fill(EXACT)
    for kind, part in (("curl", f'"data":{EXACT}'), ("Python", "12345678901234567890"), ("JavaScript", EXACT)):
        dialog.get_by_text("Copy as").click()
        dialog.get_by_role("button", name=kind).click()
        expect(page.get_by_text(f"Copied as {kind}.")).to_be_visible()
        assert part in copied(page)
    dialog.get_by_role("button", name="Write record").click()
    expect(dialog).not_to_be_visible()
    stored = shop.http.post("/v0/topics/typed/diff", json={"from_seq": 1}).text
    assert EXACT in stored


def test_schema_is_set_checked_and_shown_with_its_versions(open_page: OpenPage, shop: Shop, url: str) -> None:
    first = {"type": "object", "properties": {"qty": {"type": "integer"}}}
    shop.put("parcels", schema=first, compatibility="full")
    page = open_page(url, "topics/parcels", expect=("409 (Conflict)",))
    shown = page.get_by_label("Version of the schema")
    expect(shown).to_have_value("0")
    button(page, "Configure").click()
    dialog = page.get_by_role("dialog")
    schema = dialog.get_by_label("Schema", exact=True)
    schema.fill('{"type": "object", "properties": {"qty": {"type": "integer", "minimum": 1.0}}}')
    dialog.get_by_role("button", name="Save changes").click()
    expect(dialog.get_by_role("alert")).to_contain_text("schema_incompatible")
    dialog.get_by_label("Changes of the schema").select_option("backward")
    schema.fill('{"type": "object"')
    dialog.get_by_role("button", name="Save changes").click()
    expect(dialog.get_by_role("alert")).to_contain_text("schema is not valid JSON")
    schema.fill('{"type": "object", "properties": {"qty": {"type": "number"}}}')
    dialog.get_by_role("button", name="Save changes").click()
    expect(shown).to_have_value("1")
    config = shop.send("GET", "/v0/topics/parcels")["config"]
    assert (config["schema"]["properties"]["qty"], config["schema_versions"][0]) == ({"type": "number"}, first)
    tree = page.locator(".tree").last
    tree.get_by_text("qty").click()
    expect(tree).to_contain_text('"number"')
    shown.select_option("0")
    tree.get_by_text("qty").click()
    expect(tree).to_contain_text('"integer"')
    button(page, "Configure").click()
    schema.fill("")
    dialog.get_by_role("button", name="Save changes").click()
    expect(shown.locator("option").first).to_have_text("Schema, version 2, not in use")


def test_tail_can_be_paused_and_continued(open_page: OpenPage, shop: Shop, url: str) -> None:
    shop.write("ticks", 1)
    page = open_page(url, "topics/ticks")
    rows = page.get_by_role("log").locator(".record")
    expect(rows).to_have_count(1)
    button(page, "Pause").click()
    shop.write("ticks", 2, 3)
    expect(page.locator(".stat").filter(has_text="Head")).to_contain_text("3")
    expect(rows).to_have_count(1)
    button(page, "Go live").click()
    expect(rows).to_have_count(3)


def test_history_pages_in_both_directions_and_jumps(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics/prices")
    log = page.get_by_role("log")
    first, last = log.locator(".record .seq").first, log.locator(".record .seq").last
    expect(last).to_have_text("1,000")
    expect(first).to_have_text("951")
    button(page, "Older").click()
    expect(first).to_have_text("901")
    button(page, "Newer").click()
    expect(last).to_have_text("1,000")
    jump = page.get_by_label("Jump to seq or time")
    jump.fill("690")
    jump.press("Enter")
    expect(first).to_have_text("690")
    expect(first).to_be_in_viewport()
    expect(last).not_to_be_in_viewport()
    expect(log.locator(".record .seq").nth(10)).to_have_text("760")
    jump.fill("1")
    jump.press("Enter")
    expect(log.locator(".gap")).to_contain_text("Seqs 1 to 600 are missing")
    jump.fill("1h ago")
    jump.press("Enter")
    expect(first).to_have_text("601")
    jump.fill("700")
    jump.press("Enter")
    expect(first).to_have_text("760")
    log.locator(".record summary").nth(2).click()
    expect(page).to_have_url(re.compile(r"at=700&open=762$"))
    page.reload()
    expect(log.locator(".record[open] .seq")).to_have_text("762")
    page.go_back()
    expect(first).to_have_text("601")
    expect(jump).to_have_value("1h ago")
    jump.fill("sometime")
    jump.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("neither a seq nor a time")


def test_records_are_filtered_on_the_server_by_tag_and_node(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics/orders")
    log = page.get_by_role("log")
    expect(log.locator(".record").first).to_be_visible()
    page.get_by_label("Tag", exact=True).fill("order-1*")
    expect(log.locator(".record")).to_have_count(11)
    page.get_by_label("Not from node").fill("till-1")
    expect(log.locator(".record")).to_have_count(6)


def test_where_box_filters_by_fields_and_is_in_the_address(open_page: OpenPage, shop: Shop, url: str) -> None:
    for total in (50, 150, 250):
        shop.write("where", {"total": total}, tag="a" if total < 200 else "b")
    page = open_page(url, "topics/where")
    page.get_by_label("Where", exact=True).fill("total > 100")
    expect(page.get_by_role("log").locator(".record")).to_have_count(2)
    expect(page).to_have_url(re.compile(r"where=total\+%3E\+100"))
    again = open_page(url, "topics/where?where=total+%3E+100&tag=b")
    expect(again.get_by_label("Where", exact=True)).to_have_value("total > 100")
    expect(again.get_by_role("log").locator(".record")).to_have_count(1)


def test_record_is_written_and_deleted_by_tag_after_a_count(open_page: OpenPage, shop: Shop, url: str) -> None:
    shop.write("notes", 1)
    page = open_page(url, "topics/notes")
    for text in ('{"n": 1}', '{"n": 2}'):
        button(page, "Write record").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Data, any JSON value").fill(text)
        dialog.get_by_label("Tag").fill("mine")
        dialog.get_by_role("button", name="Write record").click()
        expect(dialog).not_to_be_visible()
    expect(page.get_by_role("log").locator(".tag")).to_have_count(2)
    button(page, "Write record").click()
    page.get_by_role("dialog").get_by_label("Data, any JSON value").fill("{no json")
    page.get_by_role("dialog").get_by_role("button", name="Write record").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("data is not valid JSON")
    page.keyboard.press("Escape")
    button(page, "Delete records").click()
    page.get_by_role("dialog").get_by_label("Tag").fill("mine")
    button(page, "Count the records").click()
    assert shop.send("GET", "/v0/topics/notes")["count"] == 3, "a count deletes nothing"
    button(page, "Delete 2 records").click()
    expect(page.get_by_text("Deleted 2 records.")).to_be_visible()
    expect(page.get_by_role("log").locator(".record")).to_have_count(1)
    assert shop.send("GET", "/v0/topics/notes")["count"] == 1


def test_timeline_draws_ranges_to_scale_with_reasons(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics/prices")
    page.get_by_role("tab", name="By seq").click()
    expect(page).to_have_url(re.compile("view=seq$"))
    drawn = page.locator(".timeline .state")
    expect(drawn).to_have_count(4)
    width = page.locator(".timeline").bounding_box()["width"]  # type: ignore[index]
    sizes = drawn.evaluate_all("all => all.map(one => [one.classList[1], Number(one.getAttribute('width'))])")
    assert {name: round(size / width, 2) for name, size in sizes if name != "live"} == {"cap": 0.6, "deleted": 0.06}
    legend = page.locator(".states")
    expect(legend).to_contain_text("Evicted by a cap 600")
    expect(legend).to_contain_text("Deleted on request 60")
    page.locator(".timeline .cap").hover()
    tip = page.locator(".timeline-frame .tip")
    expect(tip).to_contain_text("Seq 1 to 600")
    expect(tip).to_contain_text("Evicted by a cap")
    page.locator(".timeline").press("+")
    expect(page.get_by_text(re.compile("Seqs 251 to 750 of 1,000, exact"))).to_be_visible()
    page.locator(".timeline").press("0")
    expect(page.get_by_text("Seqs 1 to 1,000, exact")).to_be_visible()
    page.get_by_text("Ranges as a table").click()
    expect(page.locator(".ranges tbody tr")).to_have_count(4)


def test_timeline_marks_where_routers_stand(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics/orders?view=seq")
    mark = page.locator(".timeline g.mark").filter(has_text="orders-to-audit")
    expect(mark).to_be_visible()
    expect(mark.locator("title")).to_have_text(re.compile("router to audit, 9 records behind"))


ROW_PX = 40  # as in parts/table.js


def test_five_thousand_topics_scroll(open_page: OpenPage, many: str) -> None:
    page = open_page(many, "topics")
    expect(page.get_by_text("5,000 topics")).to_be_visible()
    rows = page.locator(".table .rows")
    assert rows.locator(".row").count() < 60
    for top in (5_000, 100_000, 20_000):
        page.evaluate("top => scrollTo(0, top)", top)
        expect(page.get_by_role("link", name=f"many.{top // ROW_PX:04d}", exact=True)).to_be_visible()
        assert rows.locator(".row").count() < 60
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    expect(page.get_by_role("link", name="many.4999")).to_be_visible()
    assert rows.locator(".row").count() < 60


def test_activity_shows_what_has_become_of_the_records_of_each_time(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics/prices")
    bars = page.locator(".activity")
    expect(bars.locator(".state.cap").first).to_be_attached()
    legend = page.locator(".states").first
    expect(legend).to_contain_text("Live 340")
    expect(legend).to_contain_text("Deleted on request 60")
    expect(bars.locator("g.mark.consumer")).to_contain_text("ticker, 340 behind")
    expect(page.locator(".stat").filter(has_text="Rate")).to_contain_text("/s")
    bars.locator(".state.live").last.click()
    expect(page).to_have_url(re.compile(r"at=\d+"))
    expect(page.get_by_label("Jump to seq or time")).not_to_be_empty()
    page.get_by_role("button", name="24h").click()
    expect(page).to_have_url(re.compile("span=24h"))
    page.get_by_role("button", name="Bytes").click()
    expect(bars.locator(".state.bytes").first).to_be_attached()
    bars.press("+")
    expect(page.get_by_role("button", name="Zoom out")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("button", name="Zoom out")).not_to_be_visible()
    expect(page.get_by_role("button", name="24h")).to_have_attribute("aria-pressed", "true")


def test_missing_topic_and_queue_are_reported_once_without_buttons(open_page: OpenPage, shop: Shop, url: str) -> None:
    page = open_page(url, "topics/nowhere")
    expect(page.get_by_text("There is no topic nowhere")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("button", name="Write record")).not_to_be_visible()
    expect(page.locator(".stat")).to_have_count(0)
    page.goto(f"{url}/console#/queues/nowhere")
    expect(page.get_by_text("There is no queue nowhere")).to_be_visible()
    expect(page.get_by_role("button", name="Add job")).not_to_be_visible()
    shop.put("nowhere", type="queue")
    expect(page.get_by_role("button", name="Add job")).to_be_visible()


def test_tag_of_a_record_filters_by_it(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics/orders")
    log = page.get_by_role("log")
    log.locator(".tag", has_text=re.compile("^order-7$")).click()
    expect(log.locator(".record")).to_have_count(1)
    expect(page).to_have_url(re.compile("tag=order-7$"))
    page.go_back()
    expect(log.locator(".record")).to_have_count(49)
