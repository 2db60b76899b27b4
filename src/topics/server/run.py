"""The process of a server: event loop, listening sockets, signals, garbage collection, drain.

The sockets listen before the application has recovered its data, so that probes are answered from the first moment
(readiness returns 503 until then). A stop has this order: stop listening, end the requests that would wait without
limit, finish the other requests, stop the application. SIGHUP reads the files of certificates, keys and webhooks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from topics import __version__, early_signals, logs
from topics.clock import Clock, SystemClock
from topics.config import Settings
from topics.errors import Corrupt, TopicsError
from topics.server.http.browser_origin import CorsApp
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import App
from topics.server.http.request_log import RequestLog
from topics.server.http.server import Acceptor, HttpServer
from topics.server.http.tls import Certificate
from topics.server.http.tracing import traced
from topics.server.limits import os_limits
from topics.server.limits.loop_holds import Cause
from topics.storage.datadir import DataDirError
from topics.storage.fs import next_step

if TYPE_CHECKING:
    from topics.server.app import TopicsApp


log = logs.Log("server")

BACKLOG = 4096
EXIT_FAILED = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
# These errors of a start describe this machine and never the content of a request, so the log may show their message.
MACHINE_ERRORS = (OSError, Corrupt, DataDirError, TopicsError)

Build = Callable[[Settings, Clock, asyncio.AbstractEventLoop], "TopicsApp"]


def run(settings: Settings, *, build: Build | None = None) -> int:
    """Serve until a signal to stop arrives. Return the exit status of the process."""
    if build is None:
        # Imported here: a test with its own application needs no engine.
        from topics.server.app import TopicsApp

        build = TopicsApp
    os_limits.raise_descriptor_limit()
    os_limits.use_one_heap()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, build))


async def _serve(settings: Settings, build: Build) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_loop_error)
    stop = StopSignals(loop)
    found, wanted = os_limits.descriptors(), max(settings.max_connections, settings.max_sse_connections)
    if found.connections < wanted:
        log.warning("few_descriptors", limit=found.limit, connections=found.connections, wanted=wanted)
    if settings.port_file is not None:  # of an earlier server: a process that waits for this one would read a dead port
        settings.port_file.unlink(missing_ok=True)
    try:
        sockets = bind(settings.host, settings.port)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        log.error("cannot_listen", host=settings.host, port=settings.port, reason=reason, hint=_bind_hint(error))
        return EXIT_FAILED
    clock = SystemClock(on_jump=lambda by_ms: log.warning("clock_jumped", by_ms=by_ms))
    try:
        certificate = None if settings.tls_cert is None else Certificate(settings.tls_cert, settings.tls_key)
        app = build(settings, clock, loop)
    except MACHINE_ERRORS as error:
        return _cannot_start(error)
    send_life_signs(loop)
    reload = partial(_reload, settings, certificate, app)
    signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(reload))
    KeyUpkeep(loop, settings, app)
    if settings.key_rules():
        os_limits.forbid_core_files()
    if early_signals.hangups:
        reload()
    served: App = app
    if settings.cors_origins or settings.key_rules():
        served = CorsApp(app, settings.cors_origins, lambda: app.keys.origins)
    served = traced(served, os.environ)
    limits, request_log = HttpLimits.of(settings), RequestLog.of(settings)
    app.startup.http = http = HttpServer(served, limits, budget=app.budget, request_log=request_log, holds=app.holds)
    acceptors = [Acceptor(http, sock, certificate) for sock in sockets]
    app.port = sockets[0].getsockname()[1]
    app.stop_server = stop.ask
    _announce(settings, sockets)
    started = await _serve_until_stopped(app, stop, Garbage(clock.monotonic_ns, partial(app.holds.note, Cause.GC)))
    notify_manager("STOPPING=1")
    for acceptor in acceptors:
        acceptor.close()
    if stop.failure is not None:
        started = not _cannot_start(stop.failure)
    if started:
        log.info("draining", connections=len(http.connections), timeout_ms=settings.drain_timeout_ms)
    code = max(await _drain(settings, app, http), 0 if started else EXIT_FAILED)
    stop.end()
    if started:
        log.info("stopped", status=code)
    return code


async def _serve_until_stopped(app: TopicsApp, stop: StopSignals, garbage: Garbage) -> bool:
    """Start the application and wait for the signal to stop. Return False, and log why, if it cannot start."""
    starting = asyncio.ensure_future(app.start())
    stopping = asyncio.ensure_future(stop.asked.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            garbage.begin()  # until the process ends: collecting what is frozen would only delay that
            log.info("ready")
            notify_manager("READY=1")
            await stopping
    except Exception as error:
        _cannot_start(error)
        return False
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
    return True


async def _drain(settings: Settings, app: TopicsApp, http: HttpServer) -> int:
    app.begin_drain()
    left = await http.drain(settings.drain_timeout_ms)
    if left:
        log.warning("drain_timed_out", connections=left)
    try:
        await app.stop()
    except MACHINE_ERRORS as error:
        log.error("cannot_stop", reason=str(error))
        return EXIT_FAILED
    except Exception as error:
        log.failure("cannot_stop", error)
        return EXIT_FAILED
    return 0


def _cannot_start(error: Exception) -> int:
    """Log why the server cannot start: the reason of an expected failure, the traceback of any other."""
    if isinstance(error, OSError) and error.strerror is not None:
        where = f": {error.filename}" if error.filename else ""
        log.error("cannot_start", reason=f"{error.strerror}{where}", hint=next_step(error))
    elif isinstance(error, MACHINE_ERRORS):
        log.error("cannot_start", reason=str(error))
    else:
        log.failure("cannot_start", error)
    return EXIT_FAILED


def _bind_hint(error: Exception) -> str:
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        return "another process uses the port; choose another with --port or TOPICS_PORT, or 0 for a free one"
    if getattr(error, "errno", None) in (errno.EACCES, errno.EPERM):
        return "ports below 1024 need privileges; choose another with --port or TOPICS_PORT"
    return "check the address: --host or TOPICS_HOST"


class StopSignals:
    """SIGTERM and SIGINT request a drain. A SIGINT during the drain exits at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self.failure: Exception | None = None  # why the server cannot go on
        self._loop = loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._receive, number)

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)
        early_signals.ignore()

    def ask(self, failure: Exception | None) -> None:
        """Request a drain: another server takes over, or this one has failed."""
        self.failure = failure
        self.asked.set()

    def _receive(self, number: signal.Signals) -> None:
        if self.asked.is_set() and number is signal.SIGINT:
            log.warning("interrupted", hint="exited at once; open requests were cut off")
            os._exit(EXIT_INTERRUPTED)
        log.info("signal", name=number.name)
        self.asked.set()


def bind(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for every address of `host`, all on one port. Raise `OSError` if none can be bound."""
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            # With port 0 the first address picks the port and the others follow.
            chosen = sockets[0].getsockname()[1] if sockets else port
            bound = _bind_one(family, (address[0], chosen, *address[2:]), required=not sockets)
            if bound is not None:
                sockets.append(bound)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind_one(family: int, address: tuple[Any, ...], *, required: bool) -> socket.socket | None:
    """Return a listening socket, or None for a further address that this machine lacks.

    Many machines resolve localhost to ::1 and have no IPv6.
    """
    try:
        sock = socket.create_server(address, family=socket.AddressFamily(family), backlog=BACKLOG)
    except OSError as error:
        if not required and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return None
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None
    # Accepted connections inherit this: an answer is one write, and must not wait for the ACK of the last one.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def url(sock: socket.socket, scheme: str = "http") -> str:
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _announce(settings: Settings, sockets: list[socket.socket]) -> None:
    addresses = [url(sock, "http" if settings.tls_cert is None else "https") for sock in sockets]
    port: int = sockets[0].getsockname()[1]
    if settings.log_format == "json":  # standard output, too, has JSON lines only
        line = json.dumps({"version": __version__, "urls": addresses}, separators=(",", ":"))
    else:
        line = f"topics {__version__} listening on {' '.join(addresses)}"
    with contextlib.suppress(OSError):
        print(line, flush=True)
    if (path := settings.port_file) is not None:
        # By rename, so that a process that waits for the file never reads half a number.
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(f"{port}\n", encoding="ascii")
        temporary.replace(path)
    log.info("listening", addresses=addresses, data_dir=str(settings.data_dir or ""), pid=os.getpid())


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the loop. The default handler prints the arguments of callbacks, which can be client data."""
    error = context.get("exception")
    if isinstance(error, BaseException):
        log.failure("loop_error", error)
    else:
        log.error("loop_error", what=str(context.get("message", "")))


def _reload(settings: Settings, certificate: Certificate | None, app: TopicsApp) -> None:
    """Read the files of certificates, keys and webhooks again. A file that cannot be used changes nothing."""
    notify_manager(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
    if certificate is not None:
        try:
            certificate.reload()
            log.info("certificate_reloaded")
        except TopicsError as error:
            log.error("certificate_refused", reason=error.message, hint="the server continues with the old certificate")
    _reload_secrets(settings, app)
    log.info("reloaded", hint="all other settings, and the keys in TOPICS_API_KEYS, change with a restart")
    notify_manager("READY=1")


def _reload_secrets(settings: Settings, app: TopicsApp) -> None:
    try:
        now = settings.reread()
    except ValueError as error:
        log.error("keys_refused", reason=str(error), hint="the server continues with the old keys")
        return
    if now.api_keys_file is not None:
        app.keys.replace(now.key_rules())
        log.info("keys_reloaded", keys=len(now.key_rules()))
    if now.token_keys_file is not None:
        app.keys.tokens.use_keys(now.token_keys_file.keys)
        log.info("token_keys_reloaded")
    if now.webhooks_file is not None:
        app.webhooks.clear()
        app.webhooks.update(now.webhooks_file.keys)
        log.info("webhooks_reloaded", topics=len(app.webhooks))


class KeyUpkeep:
    """Every second: ends keys and tokens that have expired, and reads files with secrets again that have changed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Settings, app: TopicsApp) -> None:
        self._loop, self._settings, self._app = loop, settings, app
        files = (settings.api_keys_file, settings.token_keys_file, settings.webhooks_file)
        self._paths = [file.path for file in files if file is not None]
        self._seen = self._look()
        if settings.key_rules() or self._paths:
            loop.call_later(1, self._tick)

    def _look(self) -> list[tuple[int, int, int]]:
        """Return what differs when a file has changed. A file that is missing for a moment has not."""
        try:
            return [(stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in (path.stat() for path in self._paths)]
        except OSError:
            return []

    def _tick(self) -> None:
        self._app.keys.sweep()
        if (now := self._look()) and now != self._seen:
            self._seen = now
            _reload_secrets(self._settings, self._app)
        self._loop.call_later(1, self._tick)


FULL = 2  # the generation that a full collection collects
MAX_PAUSE_NS = 2_000_000
# With these, a full collection comes after some 10,000 new objects, which take about 2 ms; with those of the
# interpreter (700, 10, 10), after 85,000.
THRESHOLDS = (700, 4, 2)


class Garbage:
    """Garbage collection without long pauses: collects nothing until `begin`, then watches full collections.

    A full collection of the interpreter looks at every object that it tracks, and nothing else runs meanwhile: with
    99,000 topics, for 200 to 500 ms. Topics and their parts live long and are freed by reference counting, so looking
    at them again finds nothing. What has survived a full collection that took too long is therefore frozen: the
    interpreter never looks at those objects again, and the next full collection only has the objects that came after.

    A frozen object is still freed when its last reference goes. Only a cycle of frozen objects would never be freed, so
    objects with a shorter life, connections above all, break their cycles when they end.
    """

    def __init__(
        self, tick_ns: Callable[[], int], note: Callable[[int], None], *, freeze: Callable[[], None] = gc.freeze
    ) -> None:
        """`note` is called with the length of every collection in nanoseconds."""
        self._tick_ns = tick_ns
        self._note = note
        self._freeze = freeze
        self._began_ns = 0
        gc.disable()  # what a start makes is there to stay

    def begin(self) -> None:
        """Freeze everything that there is by now, then collect and watch."""
        self._freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self.watch)
        gc.enable()

    def watch(self, phase: str, info: dict[str, int]) -> None:
        """Freeze the survivors of a full collection that took too long. The interpreter calls this."""
        if phase == "start":
            self._began_ns = self._tick_ns()
            return
        took_ns = self._tick_ns() - self._began_ns
        self._note(took_ns)
        if info["generation"] == FULL and took_ns > MAX_PAUSE_NS:
            self._freeze()


# --- systemd, or another manager with its protocol


def notify_manager(message: str) -> None:
    """Send a message to the service manager, if one asks for it (`NOTIFY_SOCKET`)."""
    if path := os.environ.get("NOTIFY_SOCKET", ""):
        address = "\0" + path[1:] if path.startswith("@") else path  # an abstract name
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(message.encode(), address)


def send_life_signs(loop: asyncio.AbstractEventLoop) -> None:
    """Send signs of life from the event loop: a manager with a watchdog restarts a server whose loop hangs."""
    period_us = os.environ.get("WATCHDOG_USEC", "0")
    if period_us.isdigit() and int(period_us) and os.environ.get("WATCHDOG_PID", "") in ("", str(os.getpid())):
        notify_manager("WATCHDOG=1")
        loop.call_later(int(period_us) / 2e6, send_life_signs, loop)
