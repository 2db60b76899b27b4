"""Clients that nobody here wrote: a browser, httpx-sse, curl."""

import base64
import http.server
import json
import os
import shutil
import subprocess
import threading

import httpx
import pytest
from httpx_sse import connect_sse

from tests.live.events import decode_id

BROWSERS = (
    *filter(None, [os.environ.get("CHROMIUM")]), "chromium", "chromium-browser", "google-chrome",
    "google-chrome-stable", "chrome", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)  # fmt: skip
PAGE = """<!doctype html><title>waiting</title><pre id="out"></pre><script>
const told = [];
const source = new EventSource("{url}");
for (const name of ["record", "caught-up", "tombstone", "topic-deleted"]) {{
  source.addEventListener(name, event => {{
    told.push([name, event.lastEventId, JSON.parse(event.data)]);
    if (name === "topic-deleted") {{
      source.close();
      document.getElementById("out").textContent = btoa(unescape(encodeURIComponent(JSON.stringify(told))));
    }} else if (name === "caught-up") {{
      fetch("{origin}/next", {{method: "POST"}});
    }}
  }});
}}
</script>"""


def find_browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Site(http.server.ThreadingHTTPServer):
    """A page that watches, and a door for it to say how far it has got."""

    def __init__(self, page: str, on_next) -> None:
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(site.page.encode())

            def do_POST(self) -> None:
                on_next()
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.page = page
        self.origin = f"http://127.0.0.1:{self.server_port}"


@pytest.mark.skipif(find_browser() is None, reason="no browser found: install Chromium to run this test")
def test_a_browsers_event_source_gets_and_resumes_everything(start_live, tmp_path):
    """The page is cut off in the middle; the browser comes back by itself, with the last id it saw."""
    live = start_live(cors_origins="*")
    live.api.append("orders", [{"data": {"text": "grüße 🙂"}}, {"data": 2}])
    session = live.session("orders")
    steps = iter(
        [
            lambda: (live.api.write("orders", 3), live.open(session).close()),  # takes the session over, and leaves
            lambda: live.api.drop("orders"),
        ]
    )
    site = Site("", lambda: next(steps, lambda: None)())
    site.page = PAGE.format(url=live.url + session["stream_url"], origin=site.origin)
    serving = threading.Thread(target=site.serve_forever)
    serving.start()
    try:
        told = _dump_dom(site.origin, tmp_path)
    finally:
        site.shutdown()
        serving.join()
        site.server_close()
    records = [record for name, _, data in told if name == "record" for record in data["records"]]
    assert [record["$seq"] for record in records] == [1, 2, 3]
    assert records[0]["data"] == {"text": "grüße 🙂"}
    assert [name for name, _, _ in told][-1] == "topic-deleted"
    assert decode_id(told[-1][1]) == {"orders": 3}


def _dump_dom(url, tmp_path):
    browser = find_browser()
    assert browser is not None
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
        "--no-proxy-server", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom",
        url,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    text = done.stdout.decode().partition('<pre id="out">')[2].partition("</pre>")[0]
    assert text, done.stdout.decode()[-2000:] + done.stderr.decode()[-2000:]
    return json.loads(base64.b64decode(text))


def test_httpx_sse_reads_the_stream(live, topic):
    live.api.write(topic, {"n": 1}, "zwei\n\u2028drei")
    session = live.session(topic)
    with (
        httpx.Client(base_url=live.url, trust_env=False, timeout=10) as client,
        connect_sse(client, "GET", session["stream_url"]) as source,
    ):
        events = source.iter_sse()
        opening, record, caught_up = next(events), next(events), next(events)
    assert (record.event, caught_up.event) == ("record", "caught-up")
    assert [each["data"] for each in record.json()["records"]] == [{"n": 1}, "zwei\n\u2028drei"]
    assert decode_id(record.id) == {topic: 2}
    assert (opening.data, opening.retry) == ("", 2000)  # this library shows a bare `retry` as an event without data


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_shows_the_stream_as_it_comes(live, topic):
    live.api.write(topic, *range(3))
    url = live.url + live.session(topic)["stream_url"]
    with subprocess.Popen(["curl", "-sN", "--noproxy", "*", url], stdout=subprocess.PIPE) as curl:
        assert curl.stdout is not None
        seen = b""
        while b"caught-up" not in seen:
            seen += curl.stdout.readline()
        live.api.write(topic, "later")
        while b"later" not in seen:
            seen += curl.stdout.readline()
        curl.terminate()
    assert seen.startswith(b"retry: 2000\n\n: hb ")
