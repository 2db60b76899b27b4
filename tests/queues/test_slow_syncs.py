"""Claims and deletes of a real server that wait for a sync, while time passes, clients leave, and the process ends."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess
from tests.contract.api import JSON_HEADERS, Api, Background, eventually
from tests.queues.test_http import claim, verb
from tests.queues.test_work import Stream

_numbers = count()
PROGRAM = str(Path(__file__).with_name("held_syncs.py"))


class SlowServer:
    """A server whose syncs the test holds and releases."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._hold = directory / "hold"
        self._starts = 0
        self.start()

    def start(self) -> None:
        self._starts += 1
        self.process = ServerProcess(
            self._directory / str(self._starts),
            {"data_dir": self._directory / "data"},
            program=(PROGRAM,),
            variables={"HOLD_SYNCS": str(self._hold)},
        )
        self.api = Api(self.process.url)

    def hold(self) -> None:
        self._hold.touch()

    def release(self) -> None:
        self._hold.unlink(missing_ok=True)

    def kill_and_start(self) -> None:
        self.process.kill()
        self.release()
        self.api.close()
        self.start()

    def queue(self, **config: Any) -> str:
        """Create a queue, which `figures` then reports."""
        self.name = f"q{next(_numbers)}"
        self.api.put(self.name, type="queue", durability="fsync", **{"leases_durable": True} | config)
        return self.name

    def streams(self) -> float:
        text: str = self.api.call("GET", "/v0/metrics").text
        return float(text.partition("\ntopics_sse_connections ")[2].split("\n")[0])

    def figures(self) -> tuple[int, int, int]:
        """Return how many jobs are ready, in flight, and moved to the dead letters."""
        queue = self.api.state(self.name)["queue"]
        return queue["ready"], queue["in_flight"], queue["dead_lettered"]

    def await_in_flight(self, jobs: int) -> None:
        """Wait until so many jobs are leased, and their leases written."""
        eventually(self.figures, lambda figures: figures[1] == jobs)
        self.figures()  # a turn of the event loop ends with the write, so it came before this answer

    def close(self) -> None:
        self.release()
        self.api.close()
        self.process.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowServer]:
    server = SlowServer(tmp_path_factory.mktemp("slow"))
    yield server
    server.close()


@pytest.fixture
def slow(server: SlowServer) -> Iterator[SlowServer]:
    yield server
    server.release()


def send(slow: SlowServer, *wanted: tuple[str, dict[str, Any]]) -> socket.socket:
    """Send requests (topic/verb and body) in this order, on a connection of their own. Wait for no answer."""
    sent = socket.create_connection(("127.0.0.1", slow.process.port), timeout=30)
    requests = b""
    for path, body in wanted:
        text = json.dumps(body)
        headers = JSON_HEADERS | {"host": "127.0.0.1", "content-length": str(len(text))}
        head = "".join(f"{field}: {value}\r\n" for field, value in headers.items())
        requests += f"POST /v0/topics/{path} HTTP/1.1\r\n{head}\r\n{text}".encode()
    sent.sendall(requests)
    return sent


def test_claim_whose_time_ends_while_its_lease_is_logged_gets_the_job(slow: SlowServer):
    queue = slow.queue(max_deliveries=1, dead_letter="dead")
    slow.api.append(queue, [{"data": n, "delay_ms": 100 + n} for n in range(3)])
    slow.hold()
    began = time.monotonic()
    claims = [Background(lambda: claim(slow.api, queue, wait_ms=400)) for _ in range(3)]
    slow.await_in_flight(3)
    eventually(time.monotonic, lambda now: now > began + 0.5)
    assert not any(one.done for one in claims), "no claim is answered before its lease is in the log"
    slow.release()
    answers = [one.result() for one in claims]
    assert sorted(job["data"] for answer in answers for job in answer["claimed"]) == [0, 1, 2]
    assert slow.figures() == (0, 3, 0)


@pytest.mark.parametrize("wait_ms", [0, 20_000])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_job_returns_undelivered_if_its_client_leaves_before_the_answer(slow: SlowServer, wait_ms: int, how: str):
    queue = slow.queue(max_deliveries=1, dead_letter="dead")
    if wait_ms:
        gone = send(slow, (f"{queue}/claim", {"node": "w", "wait_ms": wait_ms}))
        slow.api.append(queue, [{"data": 1, "delay_ms": 60}])
        slow.hold()
    else:
        slow.api.write(queue, 1)
        slow.hold()
        gone = send(slow, (f"{queue}/claim", {"node": "w"}))
    slow.await_in_flight(1)
    if how == "reset":
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    gone.close()
    for _ in range(2):
        slow.figures()  # the server has seen the end of the connection before it answers these
    slow.release()
    eventually(slow.figures, lambda figures: figures == (1, 0, 0))
    [job] = claim(slow.api, queue)["claimed"]
    assert (job["data"], job["deliveries"]) == (1, 1)


def test_client_that_shuts_its_side_is_answered_without_the_job(slow: SlowServer):
    queue = slow.queue()
    slow.api.write(queue, 1)
    slow.hold()
    with send(slow, (f"{queue}/claim", {"node": "w"})) as half:
        slow.await_in_flight(1)
        half.shutdown(socket.SHUT_WR)
        slow.release()
        answer = b"".join(iter(lambda: half.recv(65536), b""))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["claimed"] == []
    eventually(slow.figures, lambda figures: figures == (1, 0, 0))


def test_stopping_server_answers_a_claim_with_the_job_that_it_logs(tmp_path: Path):
    slow = SlowServer(tmp_path)
    queue = slow.queue()
    waiting = Background(lambda: claim(slow.api, queue, wait_ms=20_000))
    slow.api.append(queue, [{"data": 1, "delay_ms": 60}])
    slow.hold()
    slow.await_in_flight(1)
    slow.process.terminate()
    eventually(slow.process.log, lambda log: "stopping" in log or "drain" in log)
    slow.release()
    assert waiting.result()["count"] == 1
    slow.close()


def test_stream_that_ends_before_its_push_returns_the_job_undelivered(slow: SlowServer):
    queue = slow.queue(max_deliveries=1, dead_letter="dead")
    slow.api.write(queue, 1)
    slow.hold()
    stream = Stream(slow.api, queue, node="w")
    slow.await_in_flight(1)
    stream.close()
    eventually(slow.streams, lambda streams: streams == 0)  # before that, the push would be a delivery
    slow.release()
    eventually(slow.figures, lambda figures: figures == (1, 0, 0))
    [job] = claim(slow.api, queue)["claimed"]
    assert job["deliveries"] == 1


@pytest.mark.parametrize("leases_durable", [False, True])
def test_last_nack_is_answered_after_the_move_to_the_dead_letters(slow: SlowServer, leases_durable: bool):
    queue = slow.queue(max_deliveries=1, leases_durable=leases_durable)
    dead = f"{queue}.dead"
    slow.api.put(dead)
    slow.api.put(queue, dead_letter=dead)
    slow.api.write(queue, 1)
    claim(slow.api, queue)
    slow.hold()
    nacked = Background(lambda: verb(slow.api, queue, "nack", node="w", seqs=[1], reason="broken", delay_ms=60_000))
    slow.await_in_flight(1)
    assert not nacked.done
    slow.release()
    answer = nacked.result()
    assert (answer["nacked"], answer["dead_lettered"]) == (1, 1)
    assert slow.figures() == (0, 0, 1)
    [letter] = slow.api.diff(dead)["records"]
    assert letter["meta"]["$dead_letter_reason"] == "broken"


def test_exhausted_job_whose_lease_expires_moves_without_a_claim(slow: SlowServer):
    queue = slow.queue(max_deliveries=1)
    slow.api.put(queue, dead_letter=f"{queue}.dead")
    slow.api.write(queue, 1)
    claim(slow.api, queue, lease_ms=100)
    eventually(slow.figures, lambda figures: figures == (0, 0, 1))


def test_kill_between_the_last_nack_and_the_move_loses_neither_the_job_nor_its_reason(slow: SlowServer):
    queue = slow.queue(max_deliveries=1)
    dead = f"{queue}.dead"
    slow.api.put(queue, dead_letter=dead)
    slow.api.write(queue, 1)
    claim(slow.api, queue)
    slow.hold()
    with send(slow, (f"{queue}/nack", {"node": "w", "seqs": [1], "reason": "broken"})):
        slow.await_in_flight(1)
        slow.kill_and_start()
    eventually(slow.figures, lambda figures: figures == (0, 0, 1))
    [letter] = slow.api.diff(dead)["records"]
    assert (letter["data"], letter["meta"]["$dead_letter_reason"]) == (1, "broken")


def answers(slow: SlowServer, *wanted: tuple[str, dict[str, Any]]) -> list[Any]:
    """Send requests while syncs are held, so that each finds those before it pending. Return their answers."""
    slow.hold()
    with send(slow, *wanted) as sent, sent.makefile("rb") as file:
        slow.figures()  # the server has read the requests before this one
        slow.release()
        found = []
        for _ in wanted:
            head = b"".join(iter(file.readline, b"\r\n"))
            [size] = [line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length")]
            found.append(json.loads(file.read(int(size))))
        return found


def test_delete_wins_against_an_ack_a_move_and_a_redrive_that_follow_it(slow: SlowServer):
    queue = slow.queue(max_deliveries=1)
    dead = f"{queue}.dead"
    slow.api.put(dead, durability="fsync")
    slow.api.put(queue, dead_letter=dead)
    slow.api.write(queue, 1, 2, 3)
    claim(slow.api, queue, max=3)
    delete = f"{queue}/delete", {"seqs": [1]}
    deleted, acked = answers(slow, delete, (f"{queue}/ack", {"node": "w", "seqs": [1]}))
    assert (deleted["deleted"], acked["acked"], acked["skipped"]) == (1, 0, [1])

    delete = f"{queue}/delete", {"seqs": [2]}
    deleted, nacked = answers(slow, delete, (f"{queue}/nack", {"node": "w", "seqs": [2, 3]}))
    assert (deleted["deleted"], nacked["dead_lettered"], nacked["skipped"]) == (1, 1, [2])
    assert [record["data"] for record in slow.api.read_all(dead)] == [3]

    deleted, moved = answers(slow, (f"{dead}/delete", {"before_seq": 2}), (f"{queue}/redrive", {}))
    assert (deleted["deleted"], moved["redriven"]) == (1, 0)
    assert (slow.figures(), slow.api.read_all(dead)) == ((0, 0, 1), [])


def test_claim_after_a_pending_delete_survives_a_kill(slow: SlowServer):
    queue = slow.queue()
    slow.api.write(queue, "kept", "deleted", "kept")
    slow.hold()
    with send(slow, (f"{queue}/delete", {"seqs": [2]}), (f"{queue}/claim", {"node": "w", "max": 9})):
        slow.await_in_flight(2)
        slow.kill_and_start()
    assert slow.figures() == (0, 2, 0)
    jobs = slow.api.get(f"/v0/topics/{queue}/jobs")["jobs"]
    assert [(job["data"], job["state"]) for job in jobs] == [("kept", "in_flight")] * 2


def test_job_nacked_after_leases_are_no_longer_logged_is_ready_after_a_kill(slow: SlowServer):
    queue = slow.queue()
    slow.api.write(queue, 1)
    claim(slow.api, queue, lease_ms=600_000)
    slow.api.put(queue, leases_durable=False)
    assert slow.figures() == (0, 1, 0), "the worker keeps its lease"
    verb(slow.api, queue, "nack", node="w", seqs=[1])
    slow.kill_and_start()
    assert slow.figures() == (1, 0, 0)
    assert claim(slow.api, queue, node="other")["count"] == 1


def test_acked_and_deleted_records_do_not_expire_while_they_wait_for_the_sync(slow: SlowServer):
    queue, log = slow.queue(ttl_ms=1500), "expiring"
    slow.api.put(log, durability="fsync", ttl_ms=1500)
    for name in (queue, log):
        slow.api.write(name, 1, 2, 3, 4)
    written = time.monotonic()
    claim(slow.api, queue, max=2)
    slow.hold()
    acked = Background(lambda: verb(slow.api, queue, "ack", node="w", seqs=[1, 2]))
    deleted = Background(lambda: slow.api.delete(log, seqs=[1, 2]))
    eventually(time.monotonic, lambda now: now > written + 1.6)
    for name in (queue, log):
        slow.api.state(name)  # a reader in between
    slow.release()
    assert (acked.result()["acked"], deleted.result()["deleted"]) == (2, 2)

    def missed() -> list[int]:
        return [slow.api.diff(name, from_seq=0)["tombstone"]["missed_estimate"] for name in (queue, log)]

    assert missed() == [2, 2]
    slow.kill_and_start()
    assert missed() == [2, 2]
