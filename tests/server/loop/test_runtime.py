"""The runtime: drains, pool work and timers of one server."""

import threading

from tests.live.manual import manual_app


class Waiting:
    """A request that waits until it is ended."""

    def __init__(self) -> None:
        self.ended = 0

    def end(self) -> None:
        self.ended += 1


def test_drain_ends_every_open_request_once() -> None:
    app, _ = manual_app()
    runtime, waiting = app.services.runtime, [Waiting(), Waiting()]
    runtime.open_ended.update(waiting)

    app.begin_drain()

    assert runtime.draining
    assert [one.ended for one in waiting] == [1, 1]


def test_drain_survives_requests_that_leave_while_they_end() -> None:
    app, _ = manual_app()
    runtime = app.services.runtime

    class Leaving(Waiting):
        def end(self) -> None:
            super().end()
            runtime.open_ended.discard(self)

    waiting = [Leaving() for _ in range(10)]
    runtime.open_ended.update(waiting)
    app.begin_drain()
    assert [one.ended for one in waiting] == [1] * 10
    assert not runtime.open_ended


def test_stop_ends_the_threads_of_the_pool() -> None:
    app, _ = manual_app()
    runtime = app.services.runtime
    ran = runtime.pool.submit(threading.current_thread).result(20)
    assert ran.is_alive()

    runtime.stop()

    assert not ran.is_alive()
