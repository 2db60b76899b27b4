"""Files on a simulated disk, and what is left of them after a crash."""

from random import Random

from tests.simulated.disk import SimDisk, SimFile

POWER_LOSSES = ["lose", "tear", "reorder", "zero"]
PAGE = 4096


def durable_file(disk: SimDisk, path: str = "/a", data: bytes = b"") -> SimFile:
    """Create a file whose name and first bytes are durable."""
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    file.sync()
    disk.sync_dir(path.rpartition("/")[0] or "/")
    return file


def outcomes(disk: SimDisk, mode, path: str = "/a", tries: int = 300) -> set[bytes]:
    rng = Random(1)
    return {disk.crash(mode, rng).contents(path) for _ in range(tries)}
