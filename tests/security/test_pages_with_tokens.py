"""A real browser, with a page of another origin than the server: the client, a worker, an EventSource, a WebSocket."""

import json
import queue
from pathlib import Path
from typing import Any

from tests.browser import WAIT_S, Site, needs_browser, visiting
from tests.conftest import StartServer
from tests.security.conftest import Caller

ROOT = "root-key"
PAGE = """<!doctype html><meta charset="utf-8"><script type="module">
const server = "SERVER"
const report = (name, value) => fetch("/report", { method: "POST", body: JSON.stringify([name, value]) })
const source = `
  onmessage = async ({ data }) => {
    const { Topics } = await import(data.server + "/client.js")
    const topics = new Topics(data.server, { token: async () => data.token })
    postMessage((await topics.append("orders", "from the worker")) > 0)
  }`
try {
  const { Topics } = await import(server + "/client.js")
  const tokens = TOKENS
  let asked = 0
  const token = async () => tokens[Math.min(asked++, tokens.length - 1)]
  const topics = new Topics(server, { token })
  await topics.append("orders", "from the page")
  const seen = []
  const following = (async () => {
    for await (const item of topics.follow("orders")) {
      seen.push(item.data)
      if (item.data === "last") return
    }
  })()

  const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })), { type: "module" })
  worker.postMessage({ server, token: tokens.at(-1) })
  await report("worker", await new Promise((done) => (worker.onmessage = ({ data }) => done(data))))

  const headers = { authorization: "Bearer " + tokens.at(-1), "content-type": "application/json" }
  const body = JSON.stringify({ topics: { orders: {} } })
  const session = await (await fetch(server + "/v0/watch", { method: "POST", headers, body })).json()
  const events = new EventSource(server + session.stream_url + "?token=" + tokens.at(-1))
  const first = (event) => JSON.parse(event.data).records[0].data
  const came = new Promise((done) => events.addEventListener("record", (event) => done(first(event))))
  await report("EventSource", await came)
  events.close()

  const raw = new WebSocket(server.replace("http", "ws") + "/v0/ws", ["topics", "topics.bearer." + tokens.at(-1)])
  await new Promise((done) => (raw.onopen = done))
  await report("protocol", raw.protocol)
  raw.close()
  const socket = await topics.connect()
  await socket.subscribe("orders", { tail: true })
  await new Promise((done) => setTimeout(done, 3500)) // longer than the first token is valid
  await socket.publish("orders", { data: "last" })
  for await (const item of socket) {
    await report("WebSocket", item.data)
    break
  }
  await following
  await report("follow", seen)
  await report("asked", asked)
  await report("end", true)
} catch (error) {
  await report("failed", String(error.stack ?? error))
}
</script>"""


def tokens(caller: Caller, origin: str) -> list[str]:
    rights = {"names": ["orders"], "scopes": ["read", "write"], "origins": [origin], "subject": "ann"}
    times = (2500, 60_000)
    return [caller.send("POST", "/v0/tokens", rights | {"ttl_ms": ms}, key=ROOT).json["token"] for ms in times]


@needs_browser
def test_page_of_another_origin_uses_a_token_everywhere(start_server: StartServer, tmp_path: Path) -> None:
    reports: queue.Queue[Any] = queue.Queue()
    with Site(lambda body: reports.put(json.loads(body))) as site:
        server = start_server(api_keys=ROOT, cors_origins=site.origin)
        caller = Caller(server.port)
        caller.send("PUT", "/v0/topics/orders", {}, key=ROOT)
        url = f"http://127.0.0.1:{server.port}"
        site.page = PAGE.replace("SERVER", url).replace("TOKENS", json.dumps(tokens(caller, site.origin)))
        found: dict[str, Any] = {}
        with visiting(site.origin, tmp_path):
            while not {"end", "failed"} & found.keys():
                name, value = reports.get(timeout=WAIT_S)
                found[name] = value
        caller.close()
    assert "failed" not in found, found["failed"]
    assert found["worker"] is True
    assert (found["EventSource"], found["protocol"], found["WebSocket"]) == ("from the page", "topics", "last")
    assert found["follow"] == ["from the page", "from the worker", "last"], "each record once, over two tokens"
    assert found["asked"] >= 2
