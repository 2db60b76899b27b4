"""`topics serve` with a small test application, run as a process by the tests of this folder.

It answers `/v0/health` at once, `/slow` when the server drains, and `/stuck` never. The variable START makes its start
fail or hang, or its stop fail.
"""

import asyncio
import errno
import os
import sys
from types import SimpleNamespace

from topics.cli.options import build_parser
from topics.cli.servers import serve
from topics.clock import Clock
from topics.config import Settings
from topics.errors import Corrupt
from topics.server.access.key_ring import KeyRing
from topics.server.http.messages import Answer, App, Deferred, Request, Response
from topics.server.limits.budget import MemoryBudget
from topics.server.limits.loop_holds import LoopHolds


class PlainApp(App):
    def __init__(self) -> None:
        self.slow: list[Deferred] = []
        self.startup = SimpleNamespace()
        self.budget = MemoryBudget()
        self.holds = LoopHolds()
        self.keys = KeyRing(())

    @classmethod
    def build(cls, settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop) -> "PlainApp":
        if os.environ.get("START") == "locked":
            raise OSError(errno.EAGAIN, "another process has it", "data")
        return cls()

    def admit(self, request: Request, content_length: int | None) -> Response | None:
        return None

    def handle(self, request: Request) -> Answer:
        if request.path == b"/v0/health":
            return Response(200, b'{"status":"ok"}')
        if request.path == b"/broken":
            raise RuntimeError("a message that quotes s3cret")
        later = Deferred()
        if request.path == b"/slow":
            self.slow.append(later)
        return later

    def abandon(self, request: Request) -> None:
        pass

    async def start(self) -> None:
        match os.environ.get("START"):
            case "fail":
                raise Corrupt("snapshot", 12, "checksum does not match")
            case "hang":
                await asyncio.Event().wait()

    def begin_drain(self) -> None:
        for later in self.slow:
            asyncio.get_running_loop().call_later(0.2, later.resolve, Response(200, b'"late"'))

    async def stop(self) -> None:
        print("application stopped", flush=True)
        if os.environ.get("START") == "stuck":
            raise RuntimeError("a message that quotes s3cret")


if __name__ == "__main__":
    args = build_parser().parse_args(["serve", *sys.argv[1:]])
    sys.exit(serve.execute(args, build=PlainApp.build))
