"""One instance of a consumer, as a process: `python instance.py PORT_FILE TOPIC NAME OUT`.

It reads from the position of the consumer, writes each seq that it has processed to OUT, and then moves the position by
compare-and-set. It goes on through every failure, until it is killed.
"""

import http.client
import json
import sys
import time
from pathlib import Path
from typing import Any

LIMIT = 7
WAIT_S = 5


class Lost(Exception):
    """There was no answer, or one that says to try again."""


def call(port_file: Path, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", int(port_file.read_text() or 0), timeout=WAIT_S)
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json"} if text else {})
        answer = connection.getresponse()
        status, found = answer.status, json.loads(answer.read())
        connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Lost from error
    if status in (429, 503):
        raise Lost
    return status, found


def step(port_file: Path, topic: str, name: str, out: Any) -> None:
    """Process one page of records, and acknowledge it unless the other instance was quicker."""
    path = f"/v0/topics/{topic}/consumers/{name}"
    status, found = call(port_file, "GET", path)
    if status == 404:
        call(port_file, "PUT", path, {"seq": 0, "if_seq": None})
        return
    at = found["seq"]
    _, page = call(port_file, "POST", f"/v0/topics/{topic}/diff", {"from_seq": at, "limit": LIMIT, "wait_ms": 50})
    assert page["tombstone"] is None, page
    for record in page["records"]:
        out.write(f"{record['$seq']}\n")
    out.flush()
    if page["next_from_seq"] > at:
        body = {"seq": page["next_from_seq"], "if_seq": at}
        status, answer = call(port_file, "PUT", path, body)
        assert status == 200 or answer["error"]["code"] == "consumer_moved", answer


def main() -> None:
    port_file, topic, name, out = sys.argv[1:]
    with open(out, "a") as file:
        # Bound: the test kills this process.
        while True:
            try:
                step(Path(port_file), topic, name, file)
            except Lost:
                time.sleep(0.02)


if __name__ == "__main__":
    main()
