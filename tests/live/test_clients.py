"""Third-party clients: a browser, httpx-sse, curl."""

import base64
import json
import shutil
import subprocess

import httpx
import pytest
from httpx_sse import connect_sse

from tests.browser import Site, dump_dom, needs_browser
from tests.live.events import decode_id

PAGE = """<!doctype html><title>waiting</title><pre id="out"></pre><script>
const received = [];
const source = new EventSource("{url}");
for (const name of ["record", "caught-up", "tombstone", "topic-deleted"]) {{
  source.addEventListener(name, event => {{
    received.push([name, event.lastEventId, JSON.parse(event.data)]);
    if (name === "topic-deleted") {{
      source.close();
      document.getElementById("out").textContent = btoa(unescape(encodeURIComponent(JSON.stringify(received))));
    }} else if (name === "caught-up") {{
      fetch("{origin}/next", {{method: "POST"}});
    }}
  }});
}}
</script>"""


@needs_browser
def test_browser_event_source_resumes_without_loss(start_live, tmp_path):
    """The stream of the page is cut off; the browser reconnects by itself with its last event id."""
    live = start_live(cors_origins="*")
    live.api.append("orders", [{"data": {"text": "grüße 🙂"}}, {"data": 2}])
    session = live.session("orders")
    steps = iter(
        [
            lambda: (live.api.write("orders", 3), live.open(session).close()),  # takes over the session, then closes
            lambda: live.api.drop("orders"),
        ]
    )
    with Site(lambda _: next(steps, lambda: None)()) as site:
        site.page = PAGE.format(url=live.url + session["stream_url"], origin=site.origin)
        received = _dump_dom(site.origin, tmp_path)
    records = [record for name, _, data in received if name == "record" for record in data["records"]]
    assert [record["$seq"] for record in records] == [1, 2, 3]
    assert records[0]["data"] == {"text": "grüße 🙂"}
    assert [name for name, _, _ in received][-1] == "topic-deleted"
    assert decode_id(received[-1][1]) == {"orders": 3}


def _dump_dom(url, tmp_path):
    dom = dump_dom(url, tmp_path)
    text = dom.partition('<pre id="out">')[2].partition("</pre>")[0]
    assert text, dom[-2000:]
    return json.loads(base64.b64decode(text))


def test_httpx_sse_reads_the_stream(live, topic):
    live.api.write(topic, {"n": 1}, "zwei\n\u2028drei")
    session = live.session(topic)
    with (
        httpx.Client(base_url=live.url, trust_env=False, timeout=10) as client,
        connect_sse(client, "GET", session["stream_url"]) as source,
    ):
        events = source.iter_sse()
        opening, at_open, record, caught_up = (next(events) for _ in range(4))
    assert (record.event, caught_up.event) == ("record", "caught-up")
    assert [each["data"] for each in record.json()["records"]] == [{"n": 1}, "zwei\n\u2028drei"]
    assert decode_id(record.id) == {topic: 2}
    assert (opening.data, opening.retry) == ("", 2000)  # httpx-sse returns a bare `retry` as an event without data,
    assert (at_open.data, decode_id(at_open.id)) == ("", {topic: 0})  # and a bare `id`, too


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_prints_events_as_they_arrive(live, topic):
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
