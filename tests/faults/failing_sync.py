"""`topics serve` whose syncs of the log fail as long as the file of the variable SYNC_FAILS exists.

The bytes stay in the page cache and reach the disk, as after an error that the disk recovers from.
"""

import errno
import os
import sys

from topics.cli.options import build_parser
from topics.cli.servers import serve
from topics.storage.fs import File

datasync = File.datasync


def failing_datasync(self: File) -> None:
    if self.path.endswith(".wal") and os.path.exists(os.environ["SYNC_FAILS"]):
        raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
    datasync(self)


if __name__ == "__main__":
    File.datasync = failing_datasync  # type: ignore[method-assign]
    sys.exit(serve.execute(build_parser().parse_args(["serve", *sys.argv[1:]])))
