"""Checks, copies and damage of data directories."""

from pathlib import Path
from typing import Any

from topics.engine.offline.verify import Report, verify
from topics.storage.backup import copy
from topics.storage.fs import Fs


def check(directory: Path, **options: Any) -> Report:
    return verify(Fs(), str(directory), **options)


def duplicate(source: Path, target: Path, **options: Any) -> Any:
    return copy(Fs(), str(source), str(target), **options)


def flip(path: Path, at: int, mask: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def segment_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("segments/*/*.seg"))


def records_in(report: Report) -> dict[str, int]:
    return {topic.topic: topic.live for topic in report.topics}
