"""Kill a writer at its nth file system call, for n = 1, 1 + step, 1 + 2 * step …

    python -m tests.lake.killing <directory> <step>

Each n has its own process and lake: first the writer, which SIGKILL ends, then a reader and writer that checks what is
left and continues. Prints the first n that is not reached. The processes are forked before Arrow is used, so that each
costs only its own work.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from tests.lake.making import EPOCH, archive, check_content, known, listed
from topics.lake import Change, Lake, commits

ASKED = ("open", "link", "rename", "replace", "unlink", "mkdir", "fsync", "rmdir")
TOPICS = ("a", "b")


def steps(lake: Lake) -> list[tuple[Callable[[], Any], set[tuple[str, int]]]]:
    """The steps of the writer in order, and the content of the lake after each."""
    from topics.lake import Staging

    staging: list[Staging] = []

    def enter() -> None:
        staging.append(lake.stage())
        staging[0].__enter__()

    def both() -> None:
        base = lake.snapshot()
        changes = []
        for topic in TOPICS:
            from tests.lake.making import staged

            files = staged(lake, staging[0], topic, 31, 40)
            changes.append(Change(op="archive", topic=topic, epoch=EPOCH, adds=files, covered=(31, 40)))
        staging[0].commit(base, changes)

    def trim() -> None:
        staging[0].commit(lake.snapshot(), [Change(op="trim", topic="a", epoch=EPOCH, trimmed_to=20)])

    def erase() -> None:
        lake.erase(TOPICS, lambda topic, epoch, batch: pc.not_equal(batch.column("tag"), "t1"))

    a10 = {("a", seq) for seq in range(1, 11)}
    a30 = {("a", seq) for seq in range(1, 31)} - {("a", 11), ("a", 12)}
    b30 = {("b", seq) for seq in range(1, 31)} - {("b", 1)}
    full = a30 | b30 | {(topic, seq) for topic in TOPICS for seq in range(31, 41)}
    return [
        (enter, set()),
        (lambda: archive(lake, staging[0], "a", 1, 10), a10),
        (lambda: archive(lake, staging[0], "a", 11, 30, lost=2), a30),
        (lambda: archive(lake, staging[0], "b", 1, 30, lost=1), a30 | b30),
        (both, full),
        (lambda: lake.merge(staging[0], "a", EPOCH, min_files=2), full),
        (trim, full),
        (erase, {(topic, seq) for topic, seq in full if seq % 3 != 1}),
        (lambda: staging[0].__exit__(None, None, None), {(topic, seq) for topic, seq in full if seq % 3 != 1}),
    ]


def write(lake: Lake, kill_at: int, done: int) -> None:
    """All steps; `done` is a descriptor to which one byte is written after each."""
    left = kill_at

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for name in ASKED:
        setattr(os, name, counted(getattr(os, name)))
    commits.CHECKPOINT_EVERY = 3
    from topics.lake import staging

    staging.CHECKPOINT_EVERY = 3
    for step, _ in steps(lake):
        step()
        os.write(done, b".")


def check(lake: Lake, done: int) -> None:
    """Either the step that was under way was done, or it was not; and the next writer finds all in order."""
    states = [state for _, state in steps(lake)]
    possible = [states[done - 1] if done else set()] + ([states[done]] if done < len(states) else [])
    found = known(lake)
    assert set(found) in possible, "neither before nor after"
    assert len(found) == len(set(found))
    seen = listed(lake)
    assert set(seen) <= possible[0] | possible[-1], "a directory listing finds a file that is in no version"
    with lake.stage() as staging:
        assert listed(lake) == found, "after the lake is opened for writing, the listing equals the manifest"
        assert os.listdir(Path(lake.path) / "_lake" / "staging") == [staging.token]
        for topic in TOPICS:
            check_content(lake, topic)
        archived = lake.snapshot().archived("a", EPOCH)
        at = 0 if archived is None else archived.archived_to
        archive(lake, staging, "a", at + 1, at + 5)
    assert listed(lake) == known(lake) == sorted([*found, *(("a", seq) for seq in range(at + 1, at + 6))])
    gaps = lake.ledger().to_pylist()
    from pyarrow import dataset

    reported = dataset.dataset(f"{lake.path}/_gaps").to_table().to_pylist()
    assert sorted(map(str, reported)) == sorted(map(str, gaps))


def in_child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def main() -> None:
    root, step = Path(sys.argv[1]), int(sys.argv[2])
    for number in count(1, step):
        lake = Lake(str(root / f"lake{number}"))
        reader, writer = os.pipe()

        def work(lake: Lake = lake, number: int = number, writer: int = writer) -> None:
            lake.create()
            write(lake, number, writer)

        status = in_child(work)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            done = len(pipe.read())
        assert status in (0, signal.SIGKILL), f"kill at {number}: status {status}"
        assert in_child(lambda lake=lake, done=done: check(lake, done)) == 0, f"kill at {number}, after {done} steps"  # type: ignore[misc]
        if status == 0:  # it came through
            print(number)
            return


if __name__ == "__main__":
    main()
