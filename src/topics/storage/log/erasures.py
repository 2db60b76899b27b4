"""Erasure of refused frames in the files of the log: the last byte of a frame takes it back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from topics import logs
from topics.storage.fs import File
from topics.storage.log.frame import Frames, ends

log = logs.Log("wal")


class Erasures:
    """The bytes that have to be written over the ends of refused frames."""

    def __init__(self) -> None:
        self.waiting: list[tuple[File, int, bytes]] = []  # file, offset and byte, in the order of the log

    def mark(self, frames: Sequence[Frames], file: File, at: int, last: bytes) -> None:
        """Note that every frame of these, which stand in `file` from `at` on, must end with the byte `last`."""
        for frame in frames:
            self.waiting += [(file, at + end - 1, last) for end in ends(frame)]
            at += len(frame)

    def write(self) -> None:
        """Write the last bytes of refused frames, the newest frame first.

        A power loss can come between two of these writes. An older frame without a newer one is a log that ends early;
        a newer one without an older one would be damage. So an error ends it here, too: the next tick goes on.
        """
        # Bound: the frames that are refused.
        while self.waiting:
            file, at, last = self.waiting[-1]
            try:
                file.pwrite(last, at)
            except OSError as error:
                log.error("cannot_erase", file=file.path, offset=at, reason=error.strerror or str(error))
                return
            self.waiting.pop()


def locate(
    frames: Sequence[Frames], number: int, starts: Sequence[tuple[int, File, int]]
) -> dict[int, tuple[File, int]]:
    """Return file and offset of frames by number; `number` is that of the first.

    Each of `starts` says that the frames from a number on are in a file from an offset on.
    """
    places: dict[int, tuple[File, int]] = {}
    waiting = deque(starts)
    for at_number, frame in enumerate(frames, number):
        while waiting and waiting[0][0] <= at_number:
            _, file, at = waiting.popleft()
        places[at_number] = file, at
        at += len(frame)
    return places
