"""Connections charge what they hold to the memory budget, and report answers that have left."""

import zlib
from contextlib import suppress

import pytest

from tests.server.conftest import Serve
from tests.server.harness import FakeApp, Harness, request
from topics.errors import TopicsError
from topics.server.http.messages import Answer, Deferred, Request, Response
from topics.server.limits.budget import CONNECTION_BYTES, SMALL_BYTES, MemoryBudget

LARGE = 20_000_000  # more than the system's buffers take


class CountingApp(FakeApp):
    """An application that counts answers that have not left yet."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = 0

    def handle(self, request: Request) -> Answer:
        answer = super().handle(request)
        self.under_way += 1
        if isinstance(answer, Response):
            answer.sent = self.sent
        elif isinstance(answer, Deferred):
            answer.when_over(self.over)
        return answer

    def over(self, response: Response | None) -> None:
        if response is None:
            self.sent()
        else:
            response.sent = self.sent

    def sent(self) -> None:
        self.under_way -= 1
        assert self.under_way >= 0, "an answer was reported twice"


@pytest.fixture
def app() -> CountingApp:
    return CountingApp()


def held(server: Harness) -> dict[str, int]:
    return {account: size for account, size in server.call(server.http.budget.accounts).items() if size}


def test_small_answers_are_reported_at_once(server: Harness, app: CountingApp):
    with server.connect() as client:
        for path in ("/hello", "/hello", "/soon?1", "/soon?2", "/large?50000", "/json?500"):
            client.get(path)
            server.wait_until(lambda: app.under_way, 0)
        assert client.get("/json?50000", "Accept-Encoding: gzip").status == 200
        client.send(request("/hello") * 5 + request("/soon?1") + request("/later") + request("/hello") * 5)
        assert app.events.get(timeout=5)[0] == "waiting"
        server.call(lambda: app.waiting[0].resolve(Response(200, b"{}")))
        assert [client.answer().status for _ in range(12)] == [200] * 12
        server.wait_until(lambda: app.under_way, 0)
        assert client.get("/hello", method="HEAD").status == 200
    server.wait_until(lambda: app.under_way, 0)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("before", ["", "/hello", "/later"])
def test_large_answer_is_reported_and_released_once_it_has_left(
    server: Harness, app: CountingApp, before: str, reads: bool
):
    with server.connect(receive_buffer=4096) as client:
        assert client.get("/hello").status == 200  # the head of the next request is known now
        if before:
            client.send(request(before) + request(f"/large?{LARGE}"))
        else:
            client.send(request(f"/large?{LARGE}"))
        if before == "/later":
            assert app.events.get(timeout=5)[0] == "waiting"
            server.call(lambda: app.waiting[0].resolve(Response(200, b"{}")))
        if before:
            client.answer()
        client.until(b"\r\n\r\n")
        assert held(server)["answers"] >= LARGE
        assert server.call(lambda: app.under_way) >= 1
        if reads:
            client.exactly(LARGE)
            server.wait_until(lambda: app.under_way, 0)
            assert held(server) == {"connections": CONNECTION_BYTES}
            assert client.get("/hello").status == 200
    server.wait_until(lambda: app.under_way, 0)
    server.wait_until(lambda: server.http.budget.charged_bytes, 0)


def test_work_in_progress_is_reported_and_released_when_a_client_leaves(server: Harness, app: CountingApp):
    packed = zlib.compress(b"x" * 8_000_000, wbits=31)
    post = request("/echo", "Content-Encoding: gzip", f"Content-Length: {len(packed)}", method="POST") + packed
    ways = [
        request("/later") * 70,
        request("/later") + request("/large?3000000") * 3,
        request("/large?30000000", "Accept-Encoding: gzip") * 2,
        request("/json?900000", "Accept-Encoding: gzip") * 3,
        request("/later") * 64 + post * 3,
        request("/echo", "Content-Length: 1000000", method="POST") + b"x" * 900_000,
        request("/stream"),
        b"GET / HTTP/1.1\r\nx: " + b"y" * 20_000,
    ]
    for sent in ways * 3:
        with server.connect(receive_buffer=4096) as client:
            client.send(sent)
            server.call(lambda: None)
    # A connection that is not read from is found to be gone when it is written to.
    server.call(lambda: [later.resolve(Response(200, b"x" * 100_000)) for later in app.waiting])
    server.wait_until(lambda: len(server.http.connections), 0)
    server.wait_until(lambda: server.http.budget.charged_bytes, 0)
    # Streams do not report; the fake application counts them all the same.
    server.wait_until(lambda: app.under_way, 3)


def test_input_is_charged_while_it_waits(server: Harness, app: CountingApp):
    with server.connect() as client:
        client.send(request("/echo", "Content-Length: 1000000", method="POST") + b"x" * 900_000)
        server.wait_until(lambda: server.http.budget.accounts()["bodies"] >= 900_000)
        client.send(b"x" * 100_000)
        assert len(client.answer().body) == 1_000_000
        server.wait_until(lambda: server.http.budget.accounts()["bodies"], 0)
        client.send(request("/later") * 64 + request("/count", method="POST", body=b"x" * 500_000))
        server.wait_until(lambda: server.http.budget.accounts()["bodies"] >= 500_000)
        server.call(lambda: [later.resolve(Response(200, b"{}")) for later in app.waiting])
        assert [client.answer().status for _ in range(65)] == [200] * 65
        server.wait_until(lambda: server.http.budget.accounts()["bodies"], 0)


def test_unpacked_body_is_charged_with_its_real_size(server: Harness):
    packed = zlib.compress(b"x" * 20_000_000, wbits=31)
    with server.connect() as client:
        client.send(
            request("/later") * 64
            + request("/count", "Content-Encoding: gzip", f"Content-Length: {len(packed)}", method="POST")
            + packed
        )
        server.wait_until(lambda: server.http.budget.accounts()["bodies"] >= 20_000_000)


# --- the budget by itself


class Holder:
    def __init__(self, budget: MemoryBudget) -> None:
        self.budget, self.size, self.refused = budget, 0, False

    def hold(self, size: int) -> None:
        self.budget.charge("bodies", size - self.size)
        self.size = size
        self.budget.receive(self, size)

    def give_up_input(self, error: TopicsError) -> None:
        self.refused = True
        self.hold(0)


def test_new_requests_may_use_seven_eighths_and_begun_ones_all():
    budget = MemoryBudget(8_000_000)
    budget.check(7_000_000)
    with pytest.raises(TopicsError) as refused:
        budget.check(7_000_001)
    assert refused.value.retry_after_ms == 1000
    first, second, third = Holder(budget), Holder(budget), Holder(budget)
    first.hold(4_000_000)
    second.hold(3_500_000)
    assert budget.full
    third.hold(400_000)
    assert not third.refused
    first.hold(4_300_000)
    assert (first.refused, second.refused, third.refused) == (False, False, True)
    first.hold(5_000_000)
    assert (first.refused, second.refused) == (False, True)
    assert not budget.full


def test_many_small_holders_are_refused_without_nesting():
    budget = MemoryBudget(100_000_000)
    holders = [Holder(budget) for _ in range(4000)]
    for holder in holders:
        holder.hold(SMALL_BYTES + 1)
    other = [0]
    budget.count("writes", lambda: other[0])
    other[0] = 200_000_000
    holders[0].hold(SMALL_BYTES + 2)
    assert all(holder.refused for holder in holders)


def test_listeners_get_changes_only_and_limit_0_means_unlimited():
    budget, seen = MemoryBudget(8000), []
    budget.listeners.append(lambda: seen.append(budget.full))
    for delta in (7000, 1, 100, -200, -100):
        budget.charge("answers", delta)
    assert seen == [True, False]
    endless = MemoryBudget(0)
    endless.charge("answers", 1 << 60)
    endless.check(1 << 60)
    assert not endless.full
    assert endless.accounts()["answers"] == 1 << 60


def test_streams_wait_for_the_budget_and_go_on(serve: Serve, app: CountingApp):
    server = serve()
    server.call(lambda: setattr(server.http, "budget", MemoryBudget(8_000_000)))
    with server.connect(receive_buffer=4096) as client:
        client.send(request("/stream"))
        _, stream = app.events.get(timeout=5)
        server.call(lambda: server.http.budget.charge("answers", 8_000_000))
        results = [server.call(lambda: stream.sink.write(b"x" * 30_000)) for _ in range(400)]
        assert results[0]
        assert not results[-1]
        assert server.call(stream.sink._connection.unsent_bytes) > 0
        client.sock.setblocking(False)

        def read_and_look() -> bool:
            with suppress(BlockingIOError):
                client.sock.recv(1 << 16)
            return not app.events.empty()

        server.wait_until(read_and_look)
        assert app.events.get_nowait()[0] == "drained"
        server.call(lambda: server.http.budget.charge("answers", -8_000_000))


def test_long_packed_body_is_refused_while_the_budget_is_full(serve: Serve, app: CountingApp):
    packed = zlib.compress(b"x" * 5_000_000, wbits=31)
    post = request("/count", "Content-Encoding: gzip", f"Content-Length: {len(packed)}", method="POST") + packed
    server = serve()
    server.call(lambda: setattr(server.http, "budget", MemoryBudget(40_000_000)))
    with server.connect() as client:
        server.call(lambda: server.http.budget.charge("answers", 40_000_000))
        client.send(post)
        answer = client.answer()
        assert (answer.status, answer.code) == (429, "throttled")
        assert app.abandoned == 1
        server.call(lambda: server.http.budget.charge("answers", -40_000_000))
        client.send(post * 2)
        assert [client.answer().body for _ in range(2)] == [b"5000000"] * 2


def test_body_of_the_fast_path_is_charged_while_its_answer_waits(server: Harness, app: CountingApp):
    with server.connect() as client:
        post = request("/later", method="POST", body=b"x" * 50_000)
        for _ in range(2):  # the head is known the second time
            client.send(post)
            assert app.events.get(timeout=5)[0] == "waiting"
            server.wait_until(lambda: server.http.budget.accounts()["bodies"] >= 50_000)
            server.call(lambda: app.waiting[-1].resolve(Response(200, b"{}")))
            assert client.answer().status == 200
            server.wait_until(lambda: server.http.budget.accounts()["bodies"], 0)
