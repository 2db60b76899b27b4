"""A terminal whose text goes to a file: programs print there as they do for a person."""

import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

ROWS, COLUMNS = 50, 100


@contextmanager
def terminal_into(file: BinaryIO) -> Iterator[int]:
    """Yield the descriptor of a terminal. At the end, everything that was printed to it is in the file."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    copying = threading.Thread(target=_copy, args=(ours, file), daemon=True)
    copying.start()
    try:
        yield theirs
    finally:
        os.close(theirs)  # the copy ends when the last program has closed it, too
        copying.join()
        os.close(ours)


def _copy(descriptor: int, file: BinaryIO) -> None:
    while True:
        try:
            piece = os.read(descriptor, 65_536)
        except OSError:  # on Linux, the end of a terminal is an error
            return
        if not piece:
            return
        file.write(piece.replace(b"\r\n", b"\n"))
