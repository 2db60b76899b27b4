"""`topics queue work`: run a program for each job of a queue."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from topics import early_signals
from topics.cli.command import Args, Call, Command
from topics.cli.connect import Server, get, post
from topics.cli.options import QUEUE, option
from topics.cli.output.failures import EXIT_DONE, EXIT_FAILED, usage
from topics.cli.output.units import duration, parse_progress
from topics.client._sync.queues import Job, QueueCalls
from topics.client.call import Request, topic_path
from topics.errors import Code, TopicsError
from topics.plurals import counted

WAIT_MS = 1000  # of a claim; also how long a stop waits for one
PAUSE_S = 0.5
PROGRESS_S = 1.0  # between two looks at what the program has written
LAST_BYTES = 2048  # of standard error, for the reason of a nack


class Queues(Server, QueueCalls):  # type: ignore[override]  # its `_http` is the connection
    """The server with the calls of the sync client, on a connection of its own."""


def _claim(args: Args) -> Request:
    wait_ms = 0 if args.until_empty else WAIT_MS
    body = {"node": args.node, "max": 1, "lease_ms": args.lease, "wait_ms": wait_ms}
    return post(topic_path(args.queue, "claim"), body, safe=False, wait_ms=wait_ms)


def queue_state(call: Call) -> dict[str, Any]:
    """Return the state of the queue that the arguments name. Raise `TopicsError` if the topic is a log."""
    state: dict[str, Any] = call.server.json(get(topic_path(call.args.queue, touch=False)))
    if state["type"] != "queue":
        raise TopicsError(Code.NOT_A_QUEUE, f'topic "{call.args.queue}" is a log, not a queue')
    return state


def _add_node(parser: argparse.ArgumentParser) -> None:
    option("--node NODE", "name of the worker [a new one for each run]", default=f"work-{os.urandom(4).hex()}")(parser)


@Command(
    "work",
    "run a program for each job: exit status 0 finishes it, any other returns it",
    (
        QUEUE,
        option("COMMAND…", "program and its arguments, after --"),
        option("-j --concurrency N", "programs at the same time [1]", default=1),
        option("--lease DURATION", "lease of a job [30s]", default=30_000),
        option("--timeout DURATION", "end a program after this time"),
        option(
            "--until-empty",
            "end when no job is ready; exit status 1 if a job failed. A failed job comes back as the retry policy of "
            "the queue says, and the command does not wait for delayed jobs",
        ),
        _add_node,
    ),
    request=_claim,
    usage="QUEUE -- COMMAND…",
    details="The program gets the data on standard input, and TOPICS_QUEUE, TOPICS_SEQ, TOPICS_TAG, TOPICS_RECORD_KEY "
    "and TOPICS_DELIVERIES in its environment. The lease is extended while it runs. What it writes to the file "
    "TOPICS_PROGRESS, such as `0.4 page 4 of 10`, is its progress in `queue peek` and the console. On SIGINT or "
    "SIGTERM, running programs finish; a second signal ends them.",
    examples="""\
  topics queue work mail -- ./send-mail
  topics queue work pictures -j 4 --timeout 5m -- sh -c 'jq -r .url | xargs curl -O'
""",
)
def work(call: Call) -> int:
    if call.args.lease < 1000:
        raise usage("--lease must be 1s or more", "the lease is renewed while the program runs")
    _check_program(call.args.command[0])
    queue_state(call)
    return Pool(call).run()


def _check_program(program: str) -> None:
    """Raise `Failure` if the program cannot be started. A claim would spend a delivery of the job."""
    if shutil.which(program) is not None:
        return
    exists = os.sep in program and os.path.exists(program)
    reason = "Permission denied" if exists else "No such file or directory"
    step = f"make it executable: `chmod +x {program}`" if exists else "correct the name of the program after --"
    raise usage(f"{program} cannot be run: {reason}; no job was claimed", step)


class Pool:
    """Runs one thread for each program that may run at a time, until a signal stops it or the queue is empty.

    The first signal lets running programs finish; the second ends them, and their jobs go back to the queue.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.stopping = threading.Event()
        self.ending = threading.Event()
        self.done = self.returned = self.dead = 0
        self.problem: Exception | None = None
        self._lock = threading.Lock()

    def run(self) -> int:
        threads = [threading.Thread(target=self._work) for _ in range(self.call.args.concurrency)]
        with early_signals.handled(self._signalled), tempfile.TemporaryDirectory(prefix="topics-work-") as self.folder:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(PAUSE_S)
        if self.problem is not None:
            raise self.problem
        queue, dead = self.call.args.queue, self.dead
        summary = {"topic": queue, "finished": self.done, "returned": self.returned, "dead": dead}
        moved = f", moved {dead:,} to the dead letters" if dead else ""
        self.call.screen.result(summary, f"finished {counted(self.done, 'job')}, returned {self.returned:,}{moved}")
        return EXIT_FAILED if (self.returned or self.dead) and self.call.args.until_empty else EXIT_DONE

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self.stopping.is_set():
            self.ending.set()
        self.stopping.set()

    def _work(self) -> None:
        """Claim and run jobs. A server that does not answer is tried again; another error stops all threads."""
        with Queues(self.call.server.target) as queues:
            while not self.stopping.is_set():
                try:
                    if not self._one(queues) and self.call.args.until_empty:
                        return
                except TopicsError as error:
                    if not error.retryable:
                        self.problem = error
                        self.stopping.set()
                        return
                    self.call.screen.warn(f"{error}; trying again")
                    self.stopping.wait(PAUSE_S)

    def _one(self, queues: Queues) -> bool:
        """Claim and run one job. Return False if none is ready."""
        args = self.call.args
        wait_ms = 0 if args.until_empty else WAIT_MS
        jobs = queues.claim(args.queue, node=args.node, lease_ms=args.lease, wait_ms=wait_ms)
        if not jobs:
            return False
        [job], began = jobs, time.monotonic()
        problem, last = self._execute(job)
        took = duration((time.monotonic() - began) * 1000)
        if problem is None:
            if not job.ack():
                self.call.screen.warn(f"job {job.seq}: the lease had expired; another worker may run it again")
            with self._lock:
                self.done += 1
                self.call.screen.note(f"job {job.seq}: finished in {took}")
        else:
            self._return(queues, job, f"{problem} after {took}", last)
        return True

    def _return(self, queues: Queues, job: Job, problem: str, last: bytes) -> None:
        """Return a failed job to the queue, with the end of what its program wrote to standard error."""
        reason = problem + ("\n" + last.decode(errors="replace").strip() if last.strip() else "")
        delay_ms = 0 if self.ending.is_set() else None
        answer = queues.nack(
            job.topic, [job.seq], node=job.node, delay_ms=delay_ms, retry=True, reason=reason, lease_ids=[job.lease_id]
        )
        is_dead = answer.dead_lettered > 0
        fate = "moved to the dead letters" if is_dead else "returned"
        if answer.skipped:  # the lease expired while the program ran, so the server returned the job by itself
            fate = "its lease had expired"
        with self._lock:
            self.dead += is_dead
            self.returned += not is_dead
            self.call.screen.note(f"job {job.seq}: {problem}; {fate} (delivery {job.deliveries})", "yellow")

    def _execute(self, job: Job) -> tuple[str | None, bytes]:
        """Run the program with the data on standard input.

        Return None if it succeeded, else what went wrong, and the end of what it wrote to standard error.
        """
        progress = Path(self.folder, job.lease_id)
        env = {
            **os.environ, "TOPICS_QUEUE": self.call.args.queue, "TOPICS_SEQ": str(job.seq),
            "TOPICS_DELIVERIES": str(job.deliveries), "TOPICS_TAG": job.tag or "", "TOPICS_RECORD_KEY": job.key or "",
            "TOPICS_PROGRESS": str(progress),
        }  # fmt: skip
        try:
            with tempfile.TemporaryFile() as data:
                data.write(bytes(job.json) + b"\n")
                data.seek(0)
                # A group of its own: Ctrl-C reaches this process, which lets the program finish.
                process = subprocess.Popen(
                    self.call.args.command, stdin=data, stderr=subprocess.PIPE, env=env, process_group=0
                )
        except OSError as error:
            self.problem = usage(f"{self.call.args.command[0]} cannot be run: {error.strerror}")
            self.stopping.set()
            return f"not started: {error.strerror}", b""
        last = bytearray()
        copying = threading.Thread(target=_copy_stderr, args=(process, last), daemon=True)
        copying.start()
        problem = self._wait(job, process, progress)
        progress.unlink(missing_ok=True)
        copying.join(PAUSE_S)  # a program that it started may keep the pipe open
        return problem, bytes(last)

    def _wait(self, job: Job, process: subprocess.Popen[bytes], progress: Path) -> str | None:
        """Wait for the program, extend the lease meanwhile, and report its progress once a second."""
        lease_s = self.call.args.lease / 1000
        began = extended = looked = time.monotonic()
        reported = b""
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
            written = reported
            if now - looked > PROGRESS_S:
                looked = now
                with suppress(OSError):
                    written = progress.read_bytes()
            if now - extended > lease_s / 3 or written != reported:
                extended, reported = now, written
                if not self._extend(job, written):
                    _end(process)
                    return "cancelled"

    def _extend(self, job: Job, written: bytes) -> bool:
        """Extend the lease, and report the progress that the program has written. Return False if it was cancelled."""
        try:
            job.extend(self.call.args.lease)
            with suppress(argparse.ArgumentTypeError):  # half a line, or none
                job.progress(**parse_progress(written.decode(errors="replace").rstrip().rpartition("\n")[2]))
        except TopicsError as error:
            self.call.screen.warn(f"job {job.seq}: the lease could not be extended: {error}")
        return not job.is_cancelled


def _copy_stderr(process: subprocess.Popen[bytes], last: bytearray) -> None:
    """Copy what the program writes to standard error to that of this process, and keep its last bytes."""
    assert process.stderr is not None
    with suppress(OSError, ValueError):
        while chunk := os.read(process.stderr.fileno(), 65536):
            last += chunk
            del last[:-LAST_BYTES]
            os.write(2, chunk)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it started: first with SIGTERM, after two seconds with SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(2)
            return
        except subprocess.TimeoutExpired:
            continue
    process.wait()
