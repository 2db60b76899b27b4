"""HTTP/2 with clients that people use: curl, httpx, h2load; watches and writes over one connection."""

import json
import shutil
import subprocess

import httpx
import pytest

from tests.live.conftest import Live

WRITE = {"records": [{"data": "over HTTP/2"}]}


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def curl_speaks_http2() -> bool:
    found = shutil.which("curl")
    return (
        found is not None and b"HTTP2" in subprocess.run([found, "--version"], capture_output=True, check=True).stdout
    )


def test_httpx_writes_reads_and_watches_over_one_connection(live: Live, topic: str):
    with httpx.Client(base_url=live.url, http2=True, http1=False, timeout=10) as client:
        assert client.put(f"/v0/topics/{topic}", json={}).http_version == "HTTP/2"
        sessions = [client.post("/v0/watch", json={"topics": {topic: {}}}).json() for _ in range(5)]
        seen = []
        for session in sessions:
            with client.stream("GET", session["stream_url"], headers={"accept": "text/event-stream"}) as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                assert client.post(f"/v0/topics/{topic}", json=WRITE).status_code == 200
                for line in stream.iter_lines():
                    if line.startswith("data: ") and "records" in line:
                        seen.append(json.loads(line[6:])["records"][-1]["$seq"])
                        break
        assert len(seen) == 5
        page = client.post(f"/v0/topics/{topic}/diff", json={}).json()
        assert [record["$seq"] for record in page["records"]] == [1, 2, 3, 4, 5]
        assert client.get("/v0/ws").status_code == 400


def test_answers_are_those_of_http1(live: Live, topic: str):
    live.api.put(topic)
    live.api.append(topic, [{"data": "x" * 1000}] * 500)
    asked = [("GET", f"/v0/topics/{topic}?touch=false", None), ("POST", f"/v0/topics/{topic}/diff", {"limit": 500})]
    asked += [("GET", "/v0/topics/none", None), ("DELETE", "/v0/health", None), ("POST", "/v0/topics/a b", {})]
    with (
        httpx.Client(base_url=live.url, http2=True, http1=False) as new,
        httpx.Client(base_url=live.url) as old,
    ):
        for method, path, body in asked:
            answers = [client.request(method, path, json=body) for client in (new, old)]
            statuses = [answer.status_code for answer in answers]
            assert statuses[0] == statuses[1], path
            headers = [{name for name in answer.headers if name != "connection"} for answer in answers]
            assert headers[0] == headers[1], path
            own = ("performance", "request_id")  # of one request
            bodies = [{k: v for k, v in answer.json().items() if k not in own} for answer in answers]
            assert bodies[0] == bodies[1], path


@pytest.mark.skipif(not curl_speaks_http2(), reason="curl is not installed, or does not speak HTTP/2")
def test_curl_with_prior_knowledge_works(live: Live, topic: str):
    live.api.put(topic)
    curl = ["curl", "-sS", "--max-time", "10", "--http2-prior-knowledge", "-w", "\n%{http_version} %{http_code}"]
    body = ["-H", "content-type: application/json", "-d", json.dumps(WRITE)]
    for arguments in ([f"{live.url}/v0/health"], [*body, f"{live.url}/v0/topics/{topic}"]):
        done = subprocess.run([*curl, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "2 200"


@needs("h2load")
def test_h2load_gets_every_answer(live: Live):
    command = ["h2load", "-n", "500", "-c", "3", "-m", "20", f"{live.url}/v0/health"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "500 total, 500 started, 500 done, 500 succeeded, 0 failed, 0 errored, 0 timeout" in done.stdout
