"""The pages of queues, routers, consumers and pipelines."""

from __future__ import annotations

import re
import time

from playwright.sync_api import Route, expect

from tests.browser import needs_browser
from tests.console.conftest import OpenPage
from tests.console.seeding import QUEUE, Shop

pytestmark = needs_browser


def _without_date(route: Route) -> None:
    """Answer without the time of the server, so that the page goes by its own clock."""
    answer = route.fetch()
    route.fulfill(response=answer, headers={name: value for name, value in answer.headers.items() if name != "date"})


def test_queues_are_listed_with_their_jobs_by_state(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "queues")
    row = page.get_by_role("row").filter(has_text="emails.dead")
    expect(row.get_by_role("cell").nth(1)).to_have_text("10")
    expect(row.get_by_role("cell").nth(2)).to_have_text("3")
    expect(row.get_by_role("cell").nth(4)).to_have_text("1")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", name="emails")).to_be_visible()


def test_held_job_counts_down_and_is_extended_and_returned(open_page: OpenPage, shop: Shop, url: str) -> None:
    shop.put("prints", **QUEUE | {"dead_letter": "prints.dead"})
    shop.write("prints", {"page": 1})
    [job] = shop.send("POST", "/v0/topics/prints/claim", {"node": "press-1", "lease_ms": 20_000})["claimed"]
    page = open_page(url, "queues/prints")
    deadline = page.locator("[data-deadline]")
    expect(page.get_by_role("cell", name="press-1")).to_be_visible()
    first = deadline.inner_text()
    expect(deadline).not_to_have_text(first)
    page.get_by_role("button", name="Extend").click()
    expect(page.get_by_text("is held for 1 m more")).to_be_visible()
    [listed] = shop.send("GET", "/v0/topics/prints/jobs")["jobs"]
    assert listed["deadline"] > job["deadline"]
    page.get_by_role("button", name="Return").click()
    expect(page.get_by_text("No job is in flight")).to_be_visible()
    assert shop.send("GET", "/v0/topics/prints")["queue"]["ready"] == 1
    page.get_by_role("tab", name="Ready").click()
    expect(page.locator(".jobs tbody tr")).to_have_count(1)
    expect(page.locator(".jobs")).to_contain_text("1 of 2")


def test_plots_of_a_queue_show_samples_from_before_the_page(open_page: OpenPage, shop: Shop, url: str) -> None:
    """The browser gets an hour of samples: the test cannot wait for the server to take them."""
    shop.put("sampled", type="queue")
    page = open_page(url, "queues/sampled")
    expect(page.get_by_text("The plots begin now.")).to_be_visible()
    now_ms = time.time_ns() // 1_000_000
    rows = [[now_ms - age * 15_000, 40 + age % 7, 3, 0, 30, 60_000] for age in range(239, -1, -1)]
    columns = ["ts", "ready", "in_flight", "delayed", "finished", "age_ms"]
    answer = {"interval_ms": 15_000, "capacity": 240, "columns": columns, "rows": rows}
    page.route("**/v0/samples?queue=sampled*", lambda route: route.fulfill(json=answer))
    page.reload()
    jobs = page.get_by_role("img", name=re.compile(r"^Jobs: ready now 0, highest 46; in flight now 0, highest 3$"))
    expect(jobs).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Finished: .*highest 2"))).to_be_visible()
    expect(page.get_by_text("The plots begin now.")).not_to_be_visible()


def test_dead_letters_are_redriven_after_a_dry_run(open_page: OpenPage, shop: Shop, url: str) -> None:
    shop.put("calls", **QUEUE | {"dead_letter": "calls.dead", "max_deliveries": 1})
    shop.write("calls", {"n": 1}, {"n": 2}, {"n": 3})
    for job in shop.send("POST", "/v0/topics/calls/claim", {"node": "w", "max": 3})["claimed"]:
        shop.send("POST", "/v0/topics/calls/nack", {"node": "w", "seqs": [job["$seq"]]})
    shop.send("POST", "/v0/topics/calls/claim", {"node": "w", "max": 3})
    page = open_page(url, "queues/calls")
    page.get_by_role("tab", name="Dead letters").click()
    rows = page.locator(".jobs tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_label("Group by").select_option("data.n")
    page.get_by_role("button", name="1 × 2").click()
    expect(rows).to_have_count(1)
    page.reload()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="1 × 2").click()
    expect(rows).to_have_count(3)
    rows.first.get_by_role("button", name="Redrive").click()
    confirm = page.get_by_role("dialog").get_by_role("button", name="Redrive 1 job")
    expect(confirm).to_be_visible()
    assert shop.send("GET", "/v0/topics/calls.dead")["count"] == 3, "a dry run moves nothing"
    confirm.click()
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Redrive all").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive 2 jobs").click()
    expect(page.get_by_text("No dead letters")).to_be_visible()
    assert shop.send("GET", "/v0/topics/calls")["queue"]["ready"] == 3


def test_selected_dead_letters_are_deleted_and_one_is_repaired(open_page: OpenPage, shop: Shop, url: str) -> None:
    shop.put("texts", **QUEUE | {"dead_letter": "texts.dead", "max_deliveries": 1})
    shop.write("texts", {"to": "ada"}, {"to": "bob"}, {"to": "cy"}, tag="sms", meta={"rate": 1.50})
    for job in shop.send("POST", "/v0/topics/texts/claim", {"node": "w", "max": 3})["claimed"]:
        shop.send("POST", "/v0/topics/texts/nack", {"node": "w", "seqs": [job["$seq"]]})
    shop.send("POST", "/v0/topics/texts/claim", {"node": "w", "max": 3})
    page = open_page(url, "queues/texts?tab=dead")
    rows = page.locator(".jobs tbody tr")
    expect(page.get_by_role("button", name="3 × sms")).to_be_visible()
    page.get_by_role("searchbox").fill("bob")
    expect(rows).to_have_count(1)
    rows.first.get_by_role("button", name="Edit").click()
    page.get_by_role("dialog").get_by_label("Data, any JSON value").fill('{"to": "bob@example.com"}')
    page.get_by_role("button", name="Add the job and delete the dead letter").click()
    expect(page.get_by_text("Added as job 4.")).to_be_visible()
    [job] = shop.send("GET", "/v0/topics/texts/jobs?state=ready")["jobs"]
    assert (job["data"], job["$tag"]) == ({"to": "bob@example.com"}, "sms")
    page.get_by_role("searchbox").fill("")
    expect(rows).to_have_count(2)
    page.get_by_role("checkbox", name="Select job 3").check()
    page.get_by_role("button", name="Delete 1 selected").click()
    page.get_by_role("button", name="Delete 1 dead letter").click()
    expect(rows).to_have_count(1)
    assert shop.send("GET", "/v0/topics/texts.dead")["count"] == 1


def test_queue_without_a_worker_says_so(open_page: OpenPage, shop: Shop, url: str) -> None:
    """The browser sees a clock that is a minute ahead of the server's answers: the test cannot wait for it."""
    shop.put("unserved", type="queue")
    shop.write("unserved", 1, 2)
    page = open_page(url, "topics")
    page.clock.install(time=time.time() + 2)
    page.clock.fast_forward(60_000)
    page.route("**/v0/**", _without_date)
    page.goto(f"{url}/console#/queues/unserved")
    expect(page.get_by_role("alert")).to_contain_text("2 jobs wait, and no worker takes them.")


def test_queue_shows_keys_limits_progress_and_reasons(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "queues/reports")
    stats = page.locator(".stats")
    for text in ("1 wait for their key", "at most 8", "at most 5/s, 1/s per key"):
        expect(stats).to_contain_text(text)
    held = page.get_by_role("row").filter(has_text="report")
    expect(held).to_contain_text("40 % page 4 of 10")
    expect(held.get_by_role("progressbar")).to_have_attribute("value", "0.4")
    button = held.locator(".row-actions > .button").last.bounding_box()
    assert button is not None
    assert button["x"] + button["width"] < 1280, "the last button is inside the window"
    expect(page.get_by_role("columnheader", name="Key")).to_be_visible()
    page.get_by_role("tab", name="Delayed").click()
    expect(page.get_by_role("cell", name="the printer is out of paper")).to_be_visible()
    expect(page.get_by_role("cell", name="customer-7", exact=True)).to_be_visible()


def test_queue_is_paused_and_resumed(open_page: OpenPage, shop: Shop, url: str) -> None:
    shop.put("halted", type="queue")
    page = open_page(url, "queues/halted")
    expect(page.get_by_text("No job is in flight")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("alert")).to_contain_text("The queue is paused.")
    assert shop.send("GET", "/v0/topics/halted")["config"]["paused"] is True
    page.goto(f"{url}/console#/queues")
    expect(page.get_by_role("row").filter(has_text="halted")).to_contain_text("paused")
    page.goto(f"{url}/console#/queues/halted")
    expect(page.get_by_role("alert")).to_contain_text("The queue is paused.")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    assert shop.send("GET", "/v0/topics/halted")["config"]["paused"] is False


def test_new_queue_of_the_console_has_safe_defaults(open_page: OpenPage, shop: Shop, url: str) -> None:
    page = open_page(url, "queues?new=queue")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("made-safe")
    dialog.get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("heading", name="made-safe")).to_be_visible()
    config = shop.send("GET", "/v0/topics/made-safe")["config"]
    assert (config["discard"], config["leases_durable"]) == ("reject", True)


def test_schedule_is_run_paused_and_previewed(open_page: OpenPage, shop: Shop, url: str) -> None:
    record = {"data": {"do": 1}}
    shop.put("ticked")
    shop.send("PUT", "/v0/schedules/hourly", {"topic": "ticked", "record": record, "cron": "@hourly"})
    page = open_page(url, "schedules")
    row = page.get_by_role("row").filter(has_text="ticked")
    expect(row).to_contain_text("never")
    row.get_by_role("button", name="Run now").click()
    expect(page.get_by_text("Appended seq 1 to ticked.")).to_be_visible()
    expect(row.get_by_role("link").nth(1)).to_have_attribute("href", "#/topics/ticked?at=1")
    row.get_by_role("button", name="Pause").click()
    expect(row.get_by_role("button", name="Resume")).to_be_visible()
    assert shop.send("GET", "/v0/schedules/hourly")["paused"] is True
    row.get_by_role("button", name="Resume").click()
    expect(row).to_contain_text("on time")
    row.get_by_role("button", name="Next ticks").click()
    expect(page.get_by_role("dialog").locator("tbody tr")).to_have_count(10)
    shop.send("DELETE", "/v0/schedules/hourly")
    expect(page.get_by_role("row").filter(has_text="ticked")).to_have_count(0)


def test_routers_show_lag_and_what_holds_one_up(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "routers")
    expect(page.get_by_role("row").filter(has_text="orders-to-audit")).to_contain_text("held up: topic_full")


def test_router_is_previewed_created_and_its_cycle_is_explained(open_page: OpenPage, shop: Shop, url: str) -> None:
    page = open_page(url, "routers", expect=("409 (Conflict)",))
    page.get_by_role("button", name="Create router").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("round")
    dialog.get_by_label("From", exact=True).fill("invoices")
    dialog.get_by_label("To", exact=True).fill("orders")
    dialog.get_by_role("button", name="Create router").click()
    expect(dialog.get_by_role("alert")).to_contain_text("orders → billing → invoices")
    dialog.get_by_label("From", exact=True).fill("orders")
    dialog.get_by_label("To", exact=True).fill("made.copies")
    dialog.get_by_label("Only this tag").fill("order-3*")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator(".preview")).to_contain_text("11 of 49 records")
    expect(dialog.locator(".sample li")).to_have_count(5)
    dialog.get_by_role("button", name="Create router").click()
    expect(page.get_by_role("row").filter(has_text="made.copies")).to_be_visible()
    assert shop.send("GET", "/v0/routers/round")["filter"] == ["tag", "Glob", "order-3*"]
    page.get_by_role("row").filter(has_text="made.copies").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete round").click()
    expect(page.get_by_role("row").filter(has_text="made.copies")).to_have_count(0)


def test_consumers_show_their_lag_and_what_they_lost(open_page: OpenPage, shop: Shop, url: str) -> None:
    shop.write("events", *range(10))
    shop.send("PUT", "/v0/topics/events/consumers/mailer", {"seq": 4})
    page = open_page(url, "consumers")
    row = page.get_by_role("row").filter(has_text="mailer")
    expect(row).to_contain_text("4 of 10")
    expect(row.get_by_role("cell").nth(3)).to_have_text("6")
    lost = page.get_by_role("row").filter(has_text="ticker")
    dialog = page.get_by_role("dialog")
    lost.get_by_role("button", name="Show the 400 records").click()
    expect(dialog).to_contain_text("201600400Evicted by a cap")
    page.keyboard.press("Escape")
    row.get_by_role("button", name="mailer").click()
    dialog.get_by_role("button", name="Seek").click()
    dialog.get_by_label("Move it to").fill("1h ago")
    expect(dialog).to_contain_text("Seqs 1 to 4 would be read again")
    dialog.get_by_label("Move it to").fill("8")
    expect(dialog).to_contain_text("Seqs 5 to 7 would be skipped")
    dialog.get_by_role("button", name="Move consumer").click()
    expect(row).to_contain_text("7 of 10")
    row.get_by_role("button", name="mailer").click()
    dialog.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete consumer").click()
    expect(row).to_have_count(0)
    assert shop.send("GET", "/v0/topics/events/consumers")["consumers"] == []


def test_lag_of_a_consumer_comes_from_samples_of_the_server(open_page: OpenPage, shop: Shop, url: str) -> None:
    """The browser gets samples of an hour: the test cannot wait for the server to take them."""
    shop.write("metered", *range(100))
    shop.send("PUT", "/v0/topics/metered/consumers/meter", {"seq": 40})
    now_ms = time.time_ns() // 1_000_000
    columns = ["ts", "lag consumer metered meter", "done consumer metered meter"]
    rows = [[now_ms - age * 15_000, 60 + age * 15, 40 - age / 10] for age in range(239, 0, -1)]
    answer = {"interval_ms": 15_000, "capacity": 240, "columns": columns, "rows": rows}
    page = open_page(url, "overview")
    page.route("**/v0/samples?readers=true*", lambda route: route.fulfill(json=answer))
    page.goto(f"{url}/console#/consumers?search=meter")
    expect(page.get_by_role("img", name=re.compile("meter on metered now 60, highest 3.6"))).to_be_visible()
    row = page.get_by_role("row").filter(has_text="meter")
    expect(row).to_contain_text(re.compile("in about 1 m|up to date"))


def test_map_draws_what_flows_between_topics_and_readers(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "map")
    graph = page.locator(".graph")
    for name in ("orders", "audit", "billing", "emails", "worker-1"):
        expect(graph.locator(".box").filter(has_text=re.compile(f"^{name}")).first).to_be_visible()
    expect(graph.locator(".edge.held text")).to_have_text("held up")
    expect(graph.locator(".edge.dead").filter(has_text="job of emails").locator("text")).to_have_text("1 dead")
    page.set_viewport_size({"width": 390, "height": 800})
    expect(graph).not_to_be_visible()
    expect(page.locator(".outline li").filter(has_text="orders").first).to_contain_text("audit")


def test_consumer_is_marked_on_the_timeline_of_its_topic(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "topics/orders?view=seq")
    mark = page.locator(".timeline g.mark.consumer").filter(has_text="analytics")
    expect(mark.locator("title")).to_contain_text("29 records behind")


def test_pipelines_show_runs_gaps_and_errors_with_the_next_step(open_page: OpenPage, url: str) -> None:
    page = open_page(url, "pipelines")
    archive = page.locator(".card").filter(has=page.get_by_role("heading", name="archive"))
    expect(archive).to_contain_text("389 records of 2 topics")
    archive.get_by_text("Topics of this run").click()
    expect(archive).to_contain_text("1 to 600 cap")
    mirror = page.locator(".card").filter(has=page.get_by_role("heading", name="mirror"))
    expect(mirror.locator(".failure")).to_contain_text("start the other server")
