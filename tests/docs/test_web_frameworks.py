"""docs/web-frameworks.md: its programs, in their frameworks, against a real server."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import TypeVar

import httpx
import pytest

from tests.browser import WAIT_S as BROWSER_WAIT_S
from tests.browser import Site, needs_browser, visiting
from tests.conftest import ServerProcess
from tests.docs.programs import WAIT_S, Programs
from topics.client import Topics

ROOT = Path(__file__).parents[2]
T = TypeVar("T")

DJANGO_SETTINGS = """
SECRET_KEY = "only for this test"
INSTALLED_APPS = ["shop.apps.ShopConfig"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = "mails"
"""
DJANGO_ORDERS = """
import django
from django.core.management import call_command
from django.db import transaction

django.setup()
call_command("migrate", run_syncdb=True, verbosity=0)

from shop.models import Order

Order.objects.create(sku="V60", email="ada@example.org")
try:
    with transaction.atomic():
        Order.objects.create(sku="KETTLE", email="bob@example.org")
        raise KeyError
except KeyError:
    print("rolled back")
"""
FLASK_REQUESTS = """
from concurrent.futures import ThreadPoolExecutor
from signups import app

def sign_up(number):
    headers = {"idempotency-key": f"signup-{number % 20}"}
    return app.test_client().post("/signups", data={"to": "ada"}, headers=headers).json

with ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(sign_up, range(40)))
print(len({row["job"] for row in answers}), sum(row["again"] for row in answers))
"""
NEXT_REQUESTS = """
import { GET, POST } from "./app/orders/route.js"

const stop = new AbortController()
const post = (sku) => POST(new Request("http://shop/orders", { method: "POST", body: JSON.stringify({ sku, qty: 1 }) }))
const made = await post("V60")
console.log(made.status, JSON.stringify(await made.json()))
await post("KETTLE")
const headers = { "last-event-id": "1" }
const live = await GET(new Request("http://shop/orders", { headers, signal: stop.signal }))
const reader = live.body.getReader()
console.log(live.headers.get("content-type"), new TextDecoder().decode((await reader.read()).value).trim())
await reader.cancel()
stop.abort()
"""


def wait_for(look: Callable[[], T]) -> T:
    """Return what `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, "nothing was found in time"
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("frameworks"), {})
    yield server
    server.stop()


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    """The server that the tests share, without topics."""
    yield shared
    with Topics(shared.url) as topics:
        for row in list(topics.topics()):
            topics.drop_topic(row.topic)


@pytest.fixture
def programs(tmp_path: Path, server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """The programs of the page. They find the server in TOPICS_URL, and the JavaScript client as a package."""
    monkeypatch.setenv("TOPICS_URL", server.url)
    found = Programs("web-frameworks.md", tmp_path, {"retry_for_s=5": "retry_for_s=1"})
    shutil.copytree(ROOT / "clients" / "js", tmp_path / "node_modules" / "topics-client")
    return found


@contextmanager
def running(directory: Path, *command: str, **variables: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a program with its output in a file, and kill it at the end."""
    log = directory / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=directory, env=os.environ | variables, stdout=out, stderr=out)
    try:
        yield process, log
    finally:
        process.kill()
        process.wait(WAIT_S)


def printed(directory: Path, *command: str, **variables: str) -> str:
    """Return what a program prints. It must end with 0."""
    env = os.environ | {"PYTHONPATH": str(directory)} | variables
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_fastapi_relays_committed_orders_and_streams_them(programs: Programs, server: ServerProcess) -> None:
    command = [sys.executable, "-m", "uvicorn", "orders:app", "--port", "0", "--timeout-graceful-shutdown", "1"]
    with Topics(server.url) as topics, running(programs.directory, *command) as (process, log):
        [url] = wait_for(lambda: re.findall(r"running on (\S+)", log.read_text()))
        assert httpx.post(f"{url}/orders", json={"sku": "V60", "qty": 0}).status_code == 422
        assert httpx.post(f"{url}/orders", json={"sku": "V60", "qty": 2}).json() == {"order": 1}
        assert "/live" in httpx.get(url).text
        first = {"order": 1, "sku": "V60", "qty": 2}
        with httpx.stream("GET", f"{url}/live", headers={"last-event-id": "0"}, timeout=WAIT_S) as live:
            lines = live.iter_lines()
            assert [next(lines), next(lines)] == ["id: 1", f"data: {json.dumps(first)}"]
            httpx.post(f"{url}/orders", json={"sku": "KETTLE", "qty": 1})
            assert [next(lines), next(lines)] == ["", "id: 2"]
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)
        assert [record.data["sku"] for record in topics.diff("orders").records] == ["V60", "KETTLE"]


def test_django_adds_a_job_after_the_commit_and_works_on_it(programs: Programs, server: ServerProcess) -> None:
    here = programs.directory
    (here / "settings.py").write_text(DJANGO_SETTINGS)
    django = {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": str(here)}
    with Topics(server.url) as topics:
        assert printed(here, sys.executable, "-c", DJANGO_ORDERS, **django) == "rolled back"
        assert topics.topic("emails").count == 1
        with running(here, sys.executable, "-m", "django", "work", **django) as (process, log):
            [mail] = wait_for(lambda: list((here / "mails").glob("*")))
            wait_for(lambda: topics.topic("emails").count == 0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0, log.read_text()
        assert "To: ada@example.org" in mail.read_text()
        assert "for the V60" in mail.read_text()


def test_flask_threads_share_a_client_and_keys_add_one_job(programs: Programs, server: ServerProcess) -> None:
    assert printed(programs.directory, sys.executable, "-c", FLASK_REQUESTS) == "20 20"
    with Topics(server.url) as topics:
        assert topics.topic("emails").count == 20


def test_flask_reports_a_full_queue(programs: Programs, server: ServerProcess) -> None:
    with Topics(server.url) as topics:
        topics.put_topic("emails", type="queue", discard="reject", cap_records=1)
        topics.append("emails", 1)
    request = "from signups import app; print(app.test_client().post('/signups', data={'to': 'ada'}).status_code)"
    assert printed(programs.directory, sys.executable, "-c", request) == "503"


def test_next_route_appends_and_streams(programs: Programs, server: ServerProcess) -> None:
    if shutil.which("node") is None:
        pytest.skip("no Node found: it runs the JavaScript programs")
    (programs.directory / "package.json").write_text('{"type": "module"}')
    (programs.directory / "try.mjs").write_text(NEXT_REQUESTS)
    lines = printed(programs.directory, "node", "try.mjs").splitlines()
    assert lines == ['201 {"seq":1}', "text/event-stream id: 2", 'data: {"sku":"KETTLE","qty":1}']


@pytest.mark.torture  # installs a package
def test_express_appends_works_and_ends(programs: Programs, server: ServerProcess) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm found")
    here = programs.directory
    (here / "package.json").write_text('{"private": true}')
    install = [npm, "install", "--no-fund", "--no-audit", "express@5", str(ROOT / "clients" / "js")]
    subprocess.run(install, cwd=here, check=True, capture_output=True, timeout=300)
    with running(here, "node", "signups.mjs", PORT="0") as (process, log):
        [port, *_] = wait_for(lambda: log.read_text().split())
        answer = httpx.post(f"http://127.0.0.1:{port}/signups", json={"to": "ada"})
        assert (answer.status_code, answer.json()) == (202, {"job": 1})
        wait_for(lambda: "sending to ada" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, log.read_text()


REPORT = """<script>
  const last = () => document.querySelector("li:last-child").textContent
  new MutationObserver(() => fetch("/seen", { method: "POST", body: last() }))
    .observe(document.querySelector("ul"), { childList: true })
</script>"""


@needs_browser
def test_page_reads_with_a_key_of_few_rights(tmp_path: Path) -> None:
    """The settings are those of the command on the page."""
    page = (ROOT / "docs" / "web-frameworks.md").read_text()
    [key] = re.findall(r"TOPICS_API_KEYS=(\S+) TOPICS_CORS_ORIGINS=", page)
    seen: Queue[bytes] = Queue()
    with Site(seen.put) as site:
        server = ServerProcess(
            tmp_path / "server", {"cors_origins": site.origin, "api_keys": f"{key},shop:read+write+admin"}
        )
        programs = Programs("web-frameworks.md", tmp_path, {"http://127.0.0.1:4000": server.url})
        site.page = (programs.directory / "page.html").read_text() + REPORT
        with Topics(server.url, token="shop") as topics:
            topics.append("secret-plans", "no")
            topics.append("public-news", "hello")
            with visiting(site.origin, tmp_path):
                assert seen.get(timeout=BROWSER_WAIT_S) == b'"hello"'
        server.stop()


@needs_browser
@pytest.mark.parametrize("with_token", [False, True])
def test_page_of_the_readme_shows_orders_from_another_origin(tmp_path: Path, with_token: bool) -> None:
    [page] = re.findall(r"```html\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    seen: Queue[bytes] = Queue()
    with Site(seen.put) as site:
        keys = {"api_keys": "shop"} if with_token else {}
        server = ServerProcess(tmp_path / "server", {"cors_origins": site.origin, **keys})
        with Topics(server.url, token="shop" if with_token else None) as topics:
            topics.append("orders", {"sku": "V60"})
            site.page = page.replace("http://localhost:4000", server.url) + REPORT
            if with_token:
                made = httpx.post(
                    f"{server.url}/v0/tokens",
                    headers={"authorization": "Bearer shop"},
                    json={"names": ["orders"], "operations": ["watch"], "origins": [site.origin]},
                ).json()["token"]
                site.page = site.page.replace(
                    f'Topics("{server.url}")', f'Topics("{server.url}", {{ token: async () => "{made}" }})'
                )
            with visiting(site.origin, tmp_path):
                assert json.loads(seen.get(timeout=BROWSER_WAIT_S)) == {"sku": "V60"}
                topics.append("orders", {"sku": "new"})
                assert json.loads(seen.get(timeout=BROWSER_WAIT_S)) == {"sku": "new"}
        server.stop()
