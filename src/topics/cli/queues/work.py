"""`topics queue work`: run a program for each job of a queue."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import threading
import time
from types import FrameType
from typing import Any

import msgspec
from msgspec import Raw, Struct

from topics.cli.command import Args, Call, Command, topic_argument
from topics.cli.connect.request import Request, get, post, topic_path
from topics.cli.connect.server import Server
from topics.cli.output.failures import EXIT_DONE, EXIT_FAILED, Unreachable, usage
from topics.cli.output.units import counted, duration, parse_duration, parse_positive
from topics.cli.queues.jobs import raw_jobs
from topics.errors import Code, TopicsError

WAIT_MS = 1000  # of a claim; also how long a stop waits for one
PAUSE_S = 0.5
FIRST_DELAY_MS = 1000
LONGEST_DELAY_MS = 60_000


class Job(Struct, rename={"seq": "$seq", "tag": "$tag"}):
    seq: int
    lease_id: str
    deliveries: int
    data: Raw
    tag: str | None = None


def _arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser, "queue", help="the queue")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="program and its arguments, after --")
    parser.add_argument(
        "-j", "--concurrency", metavar="N", type=parse_positive, default=1, help="programs at the same time [1]"
    )
    parser.add_argument("--lease", metavar="DURATION", type=parse_duration, default=30_000, help="lease of a job [30s]")
    parser.add_argument("--timeout", metavar="DURATION", type=parse_duration, help="end a program after this time")
    parser.add_argument(
        "--until-empty", action="store_true", help="end when no job is ready; exit status 1 if a job was returned"
    )
    parser.add_argument("--node", metavar="NODE", help="name of the worker [a new one for each run]")


def _claim(args: Args, node: str | None = None) -> Request:
    wait_ms = 0 if args.until_empty else WAIT_MS
    body = {"node": node or args.node or f"work-{os.getpid()}", "max": 1, "lease_ms": args.lease, "wait_ms": wait_ms}
    return post(topic_path(args.queue, "claim"), body, safe=False, wait_ms=wait_ms)


def _run(call: Call) -> int:
    if call.args.lease < 1000:
        raise usage("--lease must be 1s or more", "the lease is renewed while the program runs")
    state = call.server.json(get(topic_path(call.args.queue, touch=False)))
    if state["type"] != "queue":
        raise TopicsError(Code.NOT_A_QUEUE, f'topic "{call.args.queue}" is a log, not a queue')
    return Pool(call).run()


class Pool:
    """Runs one thread for each program that may run at a time, until a signal stops it or the queue is empty.

    The first signal lets running programs finish; the second ends them, and their jobs go back to the queue.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.node = call.args.node or f"work-{os.urandom(4).hex()}"
        self.stopping = threading.Event()
        self.ending = threading.Event()
        self.done = self.failed = 0
        self.problem: Exception | None = None
        self._lock = threading.Lock()

    def run(self) -> int:
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGINT, signal.SIGTERM)}
        threads = [threading.Thread(target=self._work) for _ in range(self.call.args.concurrency)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(PAUSE_S)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.problem is not None:
            raise self.problem
        self._report()
        return EXIT_FAILED if self.failed and self.call.args.until_empty else EXIT_DONE

    def _report(self) -> None:
        summary = {"topic": self.call.args.queue, "finished": self.done, "returned": self.failed}
        if self.call.screen.is_human:
            self.call.screen.line(f"finished {counted(self.done, 'job')}, returned {self.failed:,}")
        else:
            self.call.screen.json(summary)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self.stopping.is_set():
            self.ending.set()
        self.stopping.set()

    def _work(self) -> None:
        """Claim and run jobs. A server that does not answer is tried again; another error stops all threads."""
        with self.call.server.again() as server:
            while not self.stopping.is_set():
                try:
                    if not self._one(server) and self.call.args.until_empty:
                        return
                except (Unreachable, TopicsError) as error:
                    if isinstance(error, TopicsError) and not error.code.retryable:
                        self.problem = error
                        self.stopping.set()
                        return
                    self.call.screen.warn(f"{error}; trying again")
                    self.stopping.wait(PAUSE_S)

    def _one(self, server: Server) -> bool:
        """Claim and run one job. Return False if none is ready."""
        claimed = raw_jobs(server.send(_claim(self.call.args, self.node)), "claimed")
        if not claimed:
            return False
        job = msgspec.json.decode(claimed[0], type=Job)
        began = time.monotonic()
        problem = self._execute(server, job)
        held = {"node": self.node, "seqs": [job.seq], "lease_ids": [job.lease_id]}
        took = duration((time.monotonic() - began) * 1000)
        if problem is None:
            answer = server.json(post(topic_path(self.call.args.queue, "ack"), held))
            if answer["skipped"]:
                self.call.screen.warn(f"job {job.seq}: the lease had expired; another worker may run it again")
            self._count(job, f"finished in {took}", ok=True)
        else:
            delay_ms = min(FIRST_DELAY_MS * 2 ** min(job.deliveries - 1, 10), LONGEST_DELAY_MS)
            if self.ending.is_set():
                delay_ms = 0
            server.json(post(topic_path(self.call.args.queue, "nack"), {**held, "delay_ms": delay_ms}))
            self._count(job, f"{problem} after {took}; returned (delivery {job.deliveries})", ok=False)
        return True

    def _count(self, job: Job, text: str, *, ok: bool) -> None:
        with self._lock:
            if ok:
                self.done += 1
            else:
                self.failed += 1
            self.call.screen.note(f"job {job.seq}: {text}", "dim" if ok else "yellow")

    def _execute(self, server: Server, job: Job) -> str | None:
        """Run the program with the data on standard input. Return None if it succeeded, else what went wrong."""
        env = {
            **os.environ, "TOPICS_QUEUE": self.call.args.queue, "TOPICS_SEQ": str(job.seq),
            "TOPICS_DELIVERIES": str(job.deliveries), "TOPICS_TAG": job.tag or "",
        }  # fmt: skip
        try:
            # A group of its own: Ctrl-C reaches this process, which lets the program finish.
            process = subprocess.Popen(self.call.args.command, stdin=subprocess.PIPE, env=env, process_group=0)
        except OSError as error:
            self.problem = usage(f"{self.call.args.command[0]} cannot be run: {error.strerror}")
            self.stopping.set()
            return f"not started: {error.strerror}"
        feeder = threading.Thread(target=_feed, args=(process, bytes(job.data)), daemon=True)
        feeder.start()
        return self._wait(server, job, process)

    def _wait(self, server: Server, job: Job, process: subprocess.Popen[bytes]) -> str | None:
        """Wait for the program and extend the lease meanwhile."""
        lease_s = self.call.args.lease / 1000
        began = extended = time.monotonic()
        timeout_s = None if self.call.args.timeout is None else self.call.args.timeout / 1000
        announced = False
        while True:
            try:
                status = process.wait(0.05)
                return None if status == 0 else f"exit status {status}"
            except subprocess.TimeoutExpired:
                pass
            now = time.monotonic()
            if self.stopping.is_set() and not announced:
                announced = True
                self.call.screen.note(f"job {job.seq}: waiting until it ends; interrupt again to end it now", "yellow")
            if self.ending.is_set() or (timeout_s is not None and now - began > timeout_s):
                _end(process)
                return "interrupted" if self.ending.is_set() else f"timed out after {duration((now - began) * 1000)}"
            if now - extended > lease_s / 3:
                extended = now
                self._extend(server, job)

    def _extend(self, server: Server, job: Job) -> None:
        body: dict[str, Any] = {"node": self.node, "seqs": [job.seq], "lease_ids": [job.lease_id]}
        try:
            server.json(post(topic_path(self.call.args.queue, "extend"), {**body, "lease_ms": self.call.args.lease}))
        except (Unreachable, TopicsError) as error:
            self.call.screen.warn(f"job {job.seq}: the lease could not be extended: {error}")


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(data + b"\n")
        process.stdin.close()
    except OSError:
        pass  # the program does not read its input


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it started: first with SIGTERM, after two seconds with SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(2)
            return
        except subprocess.TimeoutExpired:
            continue
    process.wait()


WORK = Command(
    name="work",
    help="run a program for each job: exit status 0 finishes it, any other returns it",
    arguments=_arguments,
    request=_claim,
    run=_run,
    usage="QUEUE -- COMMAND…",
    details="The program gets the data on standard input, and TOPICS_QUEUE, TOPICS_SEQ, TOPICS_TAG and "
    "TOPICS_DELIVERIES in its environment. The lease is extended while it runs. On SIGINT or SIGTERM, running programs "
    "finish; a second signal ends them.",
    examples="""\
  topics queue work mail -- ./send-mail
  topics queue work pictures -j 4 --timeout 5m -- sh -c 'jq -r .url | xargs curl -O'
""",
)
