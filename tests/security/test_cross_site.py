"""Pages of other sites in a real browser, against a server without keys on the reader's own machine.

A page at localhost is another site than 127.0.0.1; a page at another port of 127.0.0.1 is the same site and another
origin.
"""

import json
import queue
import time
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Site, dump_dom, needs_browser, visiting
from tests.security.conftest import Caller
from tests.security.test_browsers import Start

JOBS = 5
WAIT_S = 40

# Every way in which a page makes a browser send a request, each given up after a moment; then a report.
PAGE = """<!doctype html><body><script>
const server = "{server}", work = server + "/v0/topics/mail/work?max=1000&node=", state = server + "/v0/topics/mail";
const finished = (start) => new Promise(done => {{ start(done); setTimeout(done, 1500); }});
const element = (name, fields) => finished(done => {{
  const made = Object.assign(document.createElement(name), fields);
  made.onload = made.onerror = done;
  document.body.append(made);
}});
const ways = {{
  img: url => element("img", {{src: url}}),
  script: url => element("script", {{src: url}}),
  frame: url => element("iframe", {{src: url}}),
  style: url => element("link", {{rel: "stylesheet", href: url}}),
  video: url => element("video", {{src: url, preload: "auto"}}),
  object: url => element("object", {{data: url}}),
  "no-cors": url => finished(done => fetch(url, {{mode: "no-cors"}}).then(done, done)),
  head: url => finished(done => fetch(url, {{mode: "no-cors", method: "HEAD"}}).then(done, done)),
  cors: url => finished(done => fetch(url).then(done, done)),
  events: url => finished(done => {{ const all = new EventSource(url); all.onmessage = all.onerror = done; }}),
  form: url => finished(done => {{
    const frame = Object.assign(document.createElement("iframe"), {{name: "into", onload: done}});
    const form = Object.assign(document.createElement("form"), {{method: "POST", target: "into"}});
    form.action = server + "/v0/topics/mail/redrive";
    document.body.append(frame, form);
    form.submit();
  }}),
  beacon: url => finished(done => {{ navigator.sendBeacon(server + "/v0/topics/mail/redrive"); done(); }}),
  socket: url => finished(done => {{
    const socket = new WebSocket(server.replace("http", "ws") + "/v0/ws");
    socket.onopen = () => socket.send('{{"op":"publish","topic":"evil","records":[{{"data":1}}]}}');
    socket.onmessage = socket.onerror = done;
  }}),
}};
(async () => {{
  for (const [name, way] of Object.entries(ways)) {{
    await way(work + name);
    await way(state + "?from=" + name);
    await way(server + "/v0/topics?touch=true&from=" + name);
  }}
  await fetch("/report", {{method: "POST", body: JSON.stringify(Object.keys(ways))}});
}})();
</script>"""

WORKER = """<!doctype html><script>
const jobs = [], events = new EventSource("{server}/v0/topics/mail/work?max=1000&node=page");
events.addEventListener("job", event => {{
  jobs.push(JSON.parse(event.data).data);
  if (jobs.length === {count}) fetch("/report", {{method: "POST", body: JSON.stringify(jobs)}});
}});
</script>"""


def with_jobs(server: Caller) -> str:
    """Make a queue whose jobs die at their second delivery. Return the server's address."""
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": "mail.dead"}
    assert server.send("PUT", "/v0/topics/mail", config).status == 201
    records = [{"data": n} for n in range(JOBS)]
    assert server.send("POST", "/v0/topics/mail", {"records": records}).status == 200
    return f"http://127.0.0.1:{server.port}"


def requests_total(server: Caller) -> int:
    lines = server.send("GET", "/v0/metrics").text.splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith("topics_http_requests_total")]
    return int(float(value))


def report_of(page: str, host: str, directory: Path) -> Any:
    """What the page reports from a site at `host`."""
    reports: queue.Queue[bytes] = queue.Queue()
    with Site(reports.put, host=host) as site:
        site.page = page
        with visiting(site.origin, directory):
            return json.loads(reports.get(timeout=WAIT_S))


@needs_browser
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_no_page_of_another_origin_takes_a_job_or_counts_as_interest(call: Start, tmp_path: Path, host: str):
    server = call()
    address = with_jobs(server)
    before = requests_total(server)
    ways = report_of(PAGE.format(server=address), host, tmp_path)
    assert len(ways) == 13
    # Eight ways send no `Origin`, so three requests each pass the first check. Those with one are refused uncounted.
    assert requests_total(server) - before >= 8 * 3, "the browser did not send the requests"
    state = server.send("GET", "/v0/topics/mail?touch=false").json
    assert state["queue"] == {"ready": JOBS, "in_flight": 0, "dead_lettered": 0, "delayed": 0}
    assert state["last_read_ts"] is None
    assert server.send("GET", "/v0/topics/evil?touch=false").status == 404


@needs_browser
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_page_of_an_allowed_origin_works_on_a_queue(call: Start, tmp_path: Path, host: str):
    reports: queue.Queue[bytes] = queue.Queue()
    with Site(reports.put, host=host) as site:
        server = call(cors_origins=site.origin)
        site.page = WORKER.format(server=with_jobs(server), count=JOBS)
        with visiting(site.origin, tmp_path):
            assert json.loads(reports.get(timeout=WAIT_S)) == list(range(JOBS))


@needs_browser
def test_an_address_typed_into_a_browser_shows_the_topic(call: Start, tmp_path: Path):
    server = call()
    address = with_jobs(server)
    assert '"head_seq":5' in dump_dom(f"{address}/v0/topics/mail", tmp_path)
    assert server.send("GET", "/v0/topics/mail?touch=false").json["last_read_ts"] is not None


def test_jobs_of_a_closed_stream_return_before_the_test_looks(call: Start):
    """The assertions above would not see a stream that took jobs and gave them back: dead letters show that."""
    server = call()
    with_jobs(server)
    for _ in range(2):
        sock = server.connect()
        sock.sendall(b"GET /v0/topics/mail/work?node=x&max=1000 HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\n\r\n")
        sock.recv(65_536)
        sock.close()
        deadline = time.monotonic() + 10
        while server.send("GET", "/v0/topics/mail?touch=false").json["queue"]["in_flight"]:
            assert time.monotonic() < deadline
    assert server.send("GET", "/v0/topics/mail?touch=false").json["queue"]["dead_lettered"] == JOBS
