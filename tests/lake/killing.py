"""Kill a writer at its nth file call, or its nth request to an object store, for n = first, first + step, …

    python -m tests.lake.killing <place> <first> <step> <most> <lake or table>

Each n has its own process and lake, or output table: first the writer, which SIGKILL ends, then a reader and writer
that checks what is left and continues. Prints the first n that is not reached, or 0 after `most` kills. Processes are
forked before Arrow and deltalake are used, so that each costs only its own work.

File calls are counted in C, because deltalake makes them in Rust: `compile_shim` makes a library that is loaded before
the C library. Requests are counted by the proxy in `object_store`, which finds process and number in the access key.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

from tests.lake import output_rounds
from tests.lake.making import EPOCH, archive, archived_epoch_of, check_content, erase, known, merge, seen_by_others
from tests.lake.object_store import create_bucket
from topics.lake import Change, Lake
from topics.lake import delta_folder as commits

TOPICS = ("a", "b")

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static long left = 0;
static char place[4096];

void arm(const char *path, long calls) { strncpy(place, path, sizeof place - 1); left = calls; }
long unused(void) { return left; }

static void count(void) { if (left > 0 && __sync_sub_and_fetch(&left, 1) == 0) kill(getpid(), SIGKILL); }
static void named(const char *path) { if (left > 0 && path && strncmp(path, place, strlen(place)) == 0) count(); }
static void opened(int fd) {
    char link[64], path[4096];
    if (left <= 0) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size > 0) { path[size] = 0; named(path); }
}
#define REAL(name, type) static __typeof__(type) real; if (!real) real = (__typeof__(type))dlsym(RTLD_NEXT, name)
#define OPEN(name) int name(const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
    REAL(#name, int (*)(const char *, int, ...)); if (flags & (O_CREAT | O_WRONLY | O_RDWR)) named(path); \
    return real(path, flags, mode); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
    REAL(#name, int (*)(int, const char *, int, ...)); if (flags & (O_CREAT | O_WRONLY | O_RDWR)) named(path); \
    return real(at, path, flags, mode); }
#define ONE(name, type) int name(const char *path, type more) { \
    REAL(#name, int (*)(const char *, type)); named(path); return real(path, more); }
#define FD(name) int name(int fd) { REAL(#name, int (*)(int)); opened(fd); return real(fd); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)
ONE(rename, const char *) ONE(link, const char *) ONE(mkdir, mode_t)
FD(fsync) FD(fdatasync)
int unlink(const char *path) { REAL("unlink", int (*)(const char *)); named(path); return real(path); }
ssize_t write(int fd, const void *data, size_t size) {
    REAL("write", ssize_t (*)(int, const void *, size_t)); opened(fd); return real(fd, data, size); }
"""


def compile_shim(folder: Path) -> Path:
    """Compile the library that counts file calls."""
    source, library = folder / "calls.c", folder / "calls.so"
    source.write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, capture_output=True)
    return library


def steps(lake: Lake) -> list[tuple[Callable[[], Any], set[tuple[str, int]]]]:
    """The steps of the writer in order, and the content of the lake after each."""

    def trim() -> None:
        lake.commit(lake.table("a").state(), [Change(op="trim", topic="a", epoch=EPOCH, trimmed_to=20)])

    a10 = {("a", seq) for seq in range(1, 11)}
    a30 = {("a", seq) for seq in range(1, 31)} - {("a", 11), ("a", 12)}
    b30 = {("b", seq) for seq in range(1, 31)} - {("b", 1)}
    full = a30 | b30 | {("a", seq) for seq in range(31, 41)}
    erased = {(topic, seq) for topic, seq in full if seq % 3 != 1}
    return [
        (lake.create, set()),
        (lambda: archive(lake, "a", 1, 10), a10),
        (lambda: archive(lake, "a", 11, 30, lost=2), a30),
        (lambda: archive(lake, "b", 1, 30, lost=1), a30 | b30),
        (lambda: archive(lake, "a", 31, 40), full),
        (lambda: merge(lake, "a", min_files=2), full),
        (trim, full),
        (
            lambda: erase(lake, "t1", topics=["a"]),
            {one for one in full if one[0] == "b"} | {e for e in erased if e[0] == "a"},
        ),
        (lambda: erase(lake, "t1", topics=["b"]), erased),
        (lambda: archive(lake, "a", 41, 41, lost=1), erased),
    ]


def write(lake: Lake, done: int) -> None:
    """All steps; `done` is a descriptor to which one byte is written after each."""
    commits.CHECKPOINT_EVERY = 3
    for step, _ in steps(lake):
        step()
        os.write(done, b".")


def check(lake: Lake, done: int) -> None:
    """Either the interrupted step was done, or it was not; and the next writer finds all in order."""
    states = [state for _, state in steps(lake)]
    possible = [states[done - 1] if done else set()] + ([states[done]] if done < len(states) else [])
    lake.create()
    found = known(lake)
    assert set(found) in possible, "neither before nor after"
    assert len(found) == len(set(found))
    for topic in lake.topics():
        if lake.table(topic).state().version >= 0:
            check_topic(lake, topic, [seq for name, seq in found if name == topic])
    if found:
        erase(lake, "t1")
        at = archived_epoch_of(lake).archived_to
        seqs = [*(seq for topic, seq in found if topic == "a"), *range(at - 4, at + 1)]
        assert seen_by_others(lake, "a") == [seq for seq in seqs if seq % 3 != 1]
        assert lake.table("a").strays() == [], "an erase leaves no file of a killed run"


def check_topic(lake: Lake, topic: str, seqs: list[int]) -> None:
    """Records, gaps and progress belong together, and the next run continues after them."""
    assert seen_by_others(lake, topic) == seqs
    check_content(lake, topic)
    archived = archived_epoch_of(lake, topic)
    lost = {seq for gap in archived.gaps for seq in range(gap.first, gap.last + 1)}
    whole = set(range(1, archived.archived_to + 1))
    is_erased = bool(lake.table(topic).state().erasures)
    assert lost | set(seqs) | ({seq for seq in whole if seq % 3 == 1} if is_erased else set()) == whole
    assert not lost & set(seqs)
    at = archived.archived_to
    archive(lake, topic, at + 1, at + 5)
    assert seen_by_others(lake, topic) == [*seqs, *range(at + 1, at + 6)]


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


def write_lake(where: str, done: int) -> None:
    write(Lake(where), done)


def check_lake(where: str, done: int) -> None:
    check(Lake(where), done)


WRITERS = {"lake": (write_lake, check_lake), "table": (output_rounds.write, output_rounds.check)}


def main() -> None:
    place, (first, step, most), kind = sys.argv[1], map(int, sys.argv[2:5]), sys.argv[5]
    write, check = WRITERS[kind]
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"]) if "LD_PRELOAD" in os.environ else None
    for number in islice(count(first, step), most):
        where = f"{place}/{kind}{number}"
        if place.startswith("s3://"):
            bucket, _, inside = place.removeprefix("s3://").partition("/")
            where = f"s3://{bucket}-{kind}{number}/{inside}"
            create_bucket(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]), f"{bucket}-{kind}{number}")
        reader, writer = os.pipe()

        def work(where: str = where, number: int = number, writer: int = writer) -> None:
            if shim is not None:
                shim.arm(where.encode(), ctypes.c_long(number))
            else:
                os.environ["AWS_ACCESS_KEY_ID"] = f"kill-{os.getpid()}-{number}"
            write(where, writer)

        status = in_child(work)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            done = len(pipe.read())
        assert status in (0, signal.SIGKILL), f"kill at {number}: status {status}"
        assert in_child(lambda where=where, done=done: check(where, done)) == 0, f"kill at {number}, after {done} steps"  # type: ignore[misc]
        if status == 0:  # it came through
            print(number)
            return
    print(0)


if __name__ == "__main__":
    main()
