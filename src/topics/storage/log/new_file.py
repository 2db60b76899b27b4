"""Creation of a log file: reserved in full, and durable before it has its name."""

from __future__ import annotations

from contextlib import suppress

from topics.storage.data_layout import TEMP_SUFFIX
from topics.storage.datadir import DataDir
from topics.storage.fs import File
from topics.storage.log import walfile


def create(datadir: DataDir, header: walfile.Header, *, reserve_bytes: int) -> File:
    """Create a durable file without frames. It is renamed to its name last, when it is complete."""
    path = datadir.wal_path(header.number)
    temporary = path + TEMP_SUFFIX
    file = datadir.fs.open(temporary, write=True, create=True)
    try:
        file.truncate(0)
        file.allocate(reserve_bytes)
        file.pwrite(walfile.encode_header(header), 0)
        file.sync()
        datadir.publish(path)
    except OSError:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            datadir.fs.unlink(temporary)
        raise
    file.path = path
    return file
