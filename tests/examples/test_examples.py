"""Every program in `examples/` does what it says, against a real server."""

import signal
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from tests.browser import WAIT_S as BROWSER_WAIT_S
from tests.browser import Site, needs_browser, visiting
from tests.conftest import ServerProcess
from tests.docs.programs import WAIT_S, Program, Programs
from topics.client import NewRecord, Topics

EXAMPLES = Path(__file__).parents[2] / "examples"
FORMS = ["async.py", "sync.py", ".mjs"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path / "server", {})
    yield running
    running.stop()


def example(name: str, form: str, server: ServerProcess, directory: Path) -> Program:
    """Start an example. Use it in a `with` block, which ends it."""
    file = EXAMPLES / (f"{name}{form}" if form == ".mjs" else f"{name}_{form}")
    return Program([str(file)], directory, TOPICS_URL=server.url)


@pytest.mark.parametrize("form", FORMS)
def test_producer_writes_each_line_once(form: str, server: ServerProcess, tmp_path: Path) -> None:
    with example("producer", form, server, tmp_path) as program:
        program.type("one\ntwo")
        program.end_input()
        assert [program.line(), program.line()] == ["wrote 1", "wrote 2"]
        assert program.process.wait(WAIT_S) == 0
    with Topics(server.url) as topics:
        assert [item.data for item in topics.read("lines")] == ["one", "two"]  # type: ignore[union-attr]


@pytest.mark.parametrize("form", FORMS)
def test_consumer_reports_gaps_and_resumes(form: str, server: ServerProcess, tmp_path: Path) -> None:
    with Topics(server.url) as topics:
        topics.put_topic("lines", cap_records=2)
        topics.append_many("lines", [NewRecord(data=text) for text in ("a", "b", "c")])
        with example("consumer", form, server, tmp_path) as program:
            assert program.line().startswith("lost 1 to 1: ")
            assert [program.line(), program.line()] == ["2 b", "3 c"]
            topics.append("lines", "d")
            assert program.line() == "4 d"
            topics.append("lines", "e")
            assert program.line() == "5 e"
        with example("consumer", form, server, tmp_path) as program:
            topics.append("lines", "f")
            repeated = list(iter(program.line, "6 f"))
            assert repeated in (["4 d", "5 e"], ["5 e"], [])  # the last page may come again, and no record is skipped


@pytest.mark.parametrize("form", FORMS)
def test_worker_finishes_running_jobs_when_it_is_stopped(form: str, server: ServerProcess, tmp_path: Path) -> None:
    with Topics(server.url) as topics, example("worker", form, server, tmp_path) as program:
        topics.put_topic("emails", type="queue")
        topics.append("emails", {"to": "ada", "seconds": 0.5})
        assert program.line() == "sending ada"
        program.process.send_signal(signal.SIGTERM)
        assert program.line() == "stopped"
        assert program.process.wait(WAIT_S) == 0
        assert topics.topic("emails").count == 0


@pytest.mark.parametrize("form", FORMS)
def test_live_shows_topics_that_come_later(form: str, server: ServerProcess, tmp_path: Path) -> None:
    with Topics(server.url) as topics, example("live", form, server, tmp_path) as program:
        assert program.line() == "watching"
        topics.append("chat-green", "hello")
        assert program.line() == "chat-green hello"


REPORT = """<script>
  new MutationObserver(() => fetch("/seen", { method: "POST", body: document.querySelector("li").textContent }))
    .observe(document.getElementById("messages"), { childList: true })
</script>"""


@needs_browser
def test_live_page_shows_new_messages_in_a_browser(tmp_path: Path) -> None:
    """The page is on another origin than the server, and gets the client from the server."""
    seen: Queue[bytes] = Queue()
    with Site(seen.put) as site:
        server = ServerProcess(tmp_path / "server", {"cors_origins": site.origin})
        site.page = (EXAMPLES / "live.html").read_text() + REPORT
        with Topics(server.url) as topics, visiting(f"{site.origin}/?server={server.url}", tmp_path):
            topics.append("chat-green", "hello")
            assert seen.get(timeout=BROWSER_WAIT_S) == b'chat-green: "hello"'
            topics.append("chat-blue", {"text": "later"})
            assert seen.get(timeout=WAIT_S) == b'chat-blue: {"text":"later"}'
        server.stop()


SHOP_REPORT = """<script>
  new MutationObserver(() => fetch("/seen", { method: "POST", body: document.body.innerText }))
    .observe(document.body, { childList: true, subtree: true, characterData: true })
</script>"""


@needs_browser
def test_shop_page_shows_stock_and_orders_in_a_browser(tmp_path: Path) -> None:
    seen: Queue[bytes] = Queue()
    with Site(seen.put) as site:
        server = ServerProcess(tmp_path / "server", {"cors_origins": site.origin})
        site.page = (EXAMPLES / "shop" / "live.html").read_text() + SHOP_REPORT
        with Topics(server.url) as topics:
            topics.put_topic("stock")
            topics.append("orders", {"sku": "V60", "qty": 2})
            with visiting(f"{site.origin}/?server={server.url}", tmp_path):
                while b"2 x V60" not in seen.get(timeout=BROWSER_WAIT_S):
                    pass
                topics.append("stock", {"sku": "V60", "left": 998})
                while b"V60: 998" not in seen.get(timeout=WAIT_S):
                    pass
                topics.append("stock", {"sku": "V60", "left": 997})
                while b"V60: 997" not in (text := seen.get(timeout=WAIT_S)):
                    pass
                assert text.count(b"V60: ") == 1
        server.stop()


def test_shop_programs_in_javascript_take_orders_and_send_mail(server: ServerProcess, tmp_path: Path) -> None:
    programs = Programs("tutorial.md", tmp_path, {"http://127.0.0.1:4000": server.url})
    order = ("2", "KETTLE", "1", "bob@example.com")
    with Topics(server.url) as topics:
        topics.put_topic("orders")
    assert [*programs.run("till.mjs", *order), *programs.run("till.mjs", *order)] == ["order 2 is record 1"] * 2
    with Topics(server.url) as topics:
        topics.put_topic("emails", type="queue", max_deliveries=2, dead_letter="emails.dead")
        topics.put_topic("emails.dead")
        topics.put_router("confirmations", source="orders", dest="emails", from_seq=0)
        (tmp_path / "mail-server-is-down").touch()
        with programs.start("mailer.mjs") as mailer:
            assert topics.diff("emails.dead", wait_ms=30_000).records[0].tag == "order-2"
            (tmp_path / "mail-server-is-down").unlink()
            topics.put_topic("sent")
            topics.redrive("emails")
            [sent] = topics.diff("sent", wait_ms=30_000).records
            assert sent.data == {"to": "bob@example.com", "text": "thank you for 1 x KETTLE"}
            mailer.process.send_signal(signal.SIGTERM)
            assert mailer.process.wait(WAIT_S) == 0


@pytest.mark.parametrize("path", sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.mjs")]), ids=lambda path: path.name)
def test_example_is_short(path: Path) -> None:
    apart = ("import ", "from ", "//", '"""', "async def main", "asyncio.run")
    lines = [line.strip() for line in path.read_text().splitlines()]
    assert len([line for line in lines if line and not line.startswith(apart)]) <= 15
