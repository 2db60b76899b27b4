"""Commands of topics in processes of their own: what takes long, or much memory, must not hold up the server."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from tempfile import NamedTemporaryFile

import msgspec

from topics.errors import Code, TopicsError
from topics.model.inspection import ReplicaFigures

QUERY_S = 50.0  # clients of agents give up after a minute
MAX_QUERIES, MAX_WAITING = 2, 8  # at a time
LOOK_S = 600.0  # such a look lists all objects
MAX_BYTES = 4 << 20  # of an answer


class Rows(msgspec.Struct):
    """The rows of a query: a JSON array each, in the order of the columns. There are more than these if `is_cut`."""

    columns: list[str]
    rows: list[bytes]
    is_cut: bool


class Processes:
    """Runs commands. Those beside a server have a lower priority; `own_url` returns where they find it, if they can."""

    def __init__(self, own_url: Callable[[], str | None] | None = None) -> None:
        self.own_url = own_url or (lambda: None)
        self._before = ("nice", "-n", "5") if own_url and shutil.which("nice") else ()
        self._running: set[asyncio.subprocess.Process] = set()
        self._queries = asyncio.Semaphore(MAX_QUERIES)
        self._asked = self._ends = 0

    def end(self) -> None:
        """End the commands that run or wait: the server drains."""
        self._ends += 1
        for process in self._running:
            if process.returncode is None:
                process.kill()

    async def run(self, *words: str, limit_s: float, since: int | None = None) -> tuple[bytes, bool]:
        """Return the first `MAX_BYTES` that a command prints, and whether that is all. Cancelling this ends it.

        Raise `query_failed` with its last message if it fails or takes longer, and `shutting_down` if `end` was called.
        """
        since = self._ends if since is None else since
        process = await asyncio.create_subprocess_exec(
            *self._before, sys.executable, "-m", "topics", *words,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._running.add(process)
        try:
            assert process.stderr is not None
            async with asyncio.timeout(limit_s):
                if self._ends == since:
                    (out, is_whole), err = await asyncio.gather(_first(process), process.stderr.read())
                    status = await process.wait()
        except TimeoutError:
            raise failed(f"it took longer than {limit_s:g} s: ask for less", limit_ms=int(limit_s * 1000)) from None
        finally:
            self._running.discard(process)
            if process.returncode is None:
                process.kill()
        if self._ends != since:
            raise TopicsError(Code.SHUTTING_DOWN, "the server is stopping", retry_after_ms=1000)
        if is_whole and status:
            raise failed(err.decode("utf-8", "replace")[-2000:].strip().removeprefix("topics: "))
        return out, is_whole

    async def query(self, url: str, token: str | None, text: str, *, limit: int) -> Rows:
        """Return the rows of a statement that DuckDB answers, with the rights of the token at the server."""
        if self._asked == MAX_QUERIES + MAX_WAITING:
            what = f"{MAX_QUERIES} queries run and {MAX_WAITING} wait, as many as the server takes"
            raise TopicsError(Code.THROTTLED, what, retry_after_ms=2000)
        # Spark takes many seconds to start, and lets a statement read files.
        words = ["sql", "--duckdb", "--no-files", "--format", "arrays", "--limit", str(limit + 1), "--url", url]
        self._asked, since = self._asked + 1, self._ends
        try:
            async with self._queries:
                with NamedTemporaryFile("w", encoding="latin-1") as file:  # only this user can read it
                    file.write(token or "")
                    file.flush()
                    key = ("--token-file", file.name) if token else ()
                    out, is_whole = await self.run(*words, *key, "--", text, limit_s=QUERY_S, since=since)
        finally:
            self._asked -= 1
        names, *rows = out.splitlines() if is_whole else out.rpartition(b"\n")[0].splitlines() or [b"[]"]
        return Rows(msgspec.json.decode(names, type=list[str]), rows[:limit], not is_whole or len(rows) > limit)


class ReplicaLooks:
    """What the bucket of the replica has, as `topics replica status` finds it: not newer than `LOOK_S`."""

    def __init__(self, processes: Processes, url: str | None) -> None:
        self.processes, self.url = processes, url
        self.found: ReplicaFigures | None = None
        self.failure = ""
        self._began_s = -LOOK_S
        self._look: asyncio.Task[None] | None = None

    def newest(self) -> ReplicaFigures | None:
        """Return what was found last. Begin to look again if that is old."""
        now_s = time.monotonic()
        if self.url and now_s - self._began_s >= LOOK_S and (self._look is None or self._look.done()):
            self._began_s, self._look = now_s, asyncio.get_running_loop().create_task(self._run(self.url))
        return self.found

    async def _run(self, url: str) -> None:
        try:
            out, _ = await self.processes.run("replica", "status", url, "--json", limit_s=LOOK_S)
            self.found, self.failure = msgspec.json.decode(out, type=ReplicaFigures), ""
        except (TopicsError, msgspec.MsgspecError, OSError) as error:
            self.failure = str(error)


def failed(message: str, **detail: int) -> TopicsError:
    return TopicsError(Code.QUERY_FAILED, message, detail=detail or None)


async def _first(process: asyncio.subprocess.Process) -> tuple[bytes, bool]:
    """Return the first bytes that a process prints, and whether there are no more. End it otherwise."""
    out = bytearray()
    assert process.stdout is not None
    while len(out) <= MAX_BYTES and (some := await process.stdout.read(1 << 16)):
        out += some
    if len(out) > MAX_BYTES:
        process.kill()
    return bytes(out[:MAX_BYTES]), len(out) <= MAX_BYTES
