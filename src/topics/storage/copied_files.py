"""The single files of a backup: read and write one, the marks of a segment, and the parts of a tails file."""

from topics.errors import Corrupt
from topics.storage.check import examine
from topics.storage.fs import File, Fs, read_whole
from topics.storage.segments import codec
from topics.storage.segments.marks import DELETED, LIVE, LOST
from topics.storage.snapshot import TopicSnapshot


def read_marks(file: File, footer: codec.Footer) -> bytearray:
    """Return the marks of a segment file, and close the file. A flag that is damaged or missing gives no mark."""
    try:
        flags = file.pread(footer.count, footer.flags_at).ljust(footer.count, b"\0")
        marks = codec.decode_flags(flags) or bytearray(footer.count)
        for at in codec.damaged_flags(flags):
            marks[at] = LIVE if marks[at] == LOST else marks[at]
        return marks
    finally:
        file.close()


def save_marks(fs: Fs, path: str, footer: codec.Footer, marks: list[tuple[int, int]]) -> None:
    """Write marks, with their positions, to a segment file and sync it."""
    file = fs.open(path, write=True)
    try:
        for at, mark in marks:
            file.pwrite(bytes([codec.DELETED if mark == DELETED else codec.LOST]), footer.flags_at + at)
        file.datasync()
    finally:
        file.close()


def read_footer(fs: Fs, path: str) -> codec.Footer | None:
    """Return the footer of a segment file; None if it is damaged."""
    file = fs.open(path)
    try:
        size = file.size()
        tail = file.pread(codec.FOOTER_BYTES, max(size - codec.FOOTER_BYTES, 0))
        return codec.decode_footer(tail, path=path, file_bytes=size)
    except Corrupt:
        return None
    finally:
        file.close()


def has_tails(fs: Fs, path: str, topics: list[TopicSnapshot]) -> bool:
    """Return whether there is a tails file with the last records of these topics, undamaged."""
    if not fs.exists(path):
        return False
    data = read_whole(fs, path)
    return not any(tail_problems(path, topic, data) for topic in topics)


def tail_problems(path: str, topic: TopicSnapshot, data: bytes) -> list[str]:
    """Return what is wrong with the last records of a topic in the tails file with these bytes."""
    ref = topic.tail
    if ref is None:
        return []
    part = data[ref.offset : ref.offset + ref.size]
    examined = examine(lambda size, at: part[at : at + size], len(part), path=path, taken=lambda at, data: None)
    return [
        f"{path} at byte {ref.offset + problem.offset}: {problem.what}; last records of topic {topic.name}"
        for problem in examined.problems
    ]
