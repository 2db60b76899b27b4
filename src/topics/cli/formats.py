"""The page about file formats, made from the docstrings of the codecs: a format is described where it is used.

`python -m topics.cli.formats` prints it.
"""

import inspect
import sys
from types import ModuleType

import msgspec

from topics.engine.offline.verify import learn_all_kinds
from topics.storage import datadir, snapshot
from topics.storage.log import entry, frame, ledger, walfile
from topics.storage.segments import codec, columns

INTRODUCTION = """\
# File formats

What is in a data directory, byte by byte. This page is made by `make docs` from the docstrings of the modules that
read and write the files, so it says what they do. A program that meets a version it does not know refuses the file.

Integers are little-endian. Checksums are XXH3 of 64 bits. MessagePack arrays grow at their end only: a reader takes a
field that is not there yet for its default.
"""

SECTIONS: tuple[tuple[str, ModuleType], ...] = (
    ("The data directory", datadir),
    ("Records", columns),
    ("Segments", codec),
    ("Snapshots", snapshot),
    ("Log files", walfile),
    ("Log frames", frame),
    ("Log entries", entry),
    ("The ledger", ledger),
)


def reference() -> str:
    """docs/formats.md, whole."""
    parts = [INTRODUCTION]
    for title, module in SECTIONS:
        name = module.__name__.replace(".", "/")
        parts.append(f"## {title}\n\n{inspect.getdoc(module)}\n\nIn `src/{name}.py`.\n")
        if module is snapshot:
            parts += [_fields(kind, level=3) for kind in SNAPSHOT_PARTS]
        if module is entry:
            parts.append(_kinds())
    return "\n".join(parts)


SNAPSHOT_PARTS = (snapshot.Snapshot, snapshot.TopicSnapshot, snapshot.SegmentRef, snapshot.TailRef)


def _fields(kind: type[msgspec.Struct], *, level: int) -> str:
    lines = [f"{'#' * level} `{kind.__name__}`", "", inspect.getdoc(kind) or "", ""]
    lines += ["| at | field | type |", "|---|---|---|"]
    hints = inspect.get_annotations(kind)
    for at, name in enumerate(kind.__struct_fields__):
        lines.append(f"| {at} | `{name}` | `{str(hints[name]).replace('|', chr(92) + '|')}` |")
    return "\n".join(lines) + "\n"


def _kinds() -> str:
    """Every kind of entry that this program reads, in the order of their numbers."""
    learn_all_kinds()
    classes = {number: decoder.type for number, decoder in entry._DECODERS.items()} | {entry.APPEND: entry.Append}
    lines = ["### Kinds", "", "| kind | name | fields | meaning |", "|---|---|---|---|"]
    for number, kind in sorted(classes.items()):
        fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
        meaning = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"| {number} | `{kind.__name__}` | {fields} | {meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
