"""Generate docs/formats.md from the docstrings of the codecs.

`python -m tools.docs.formats` prints the page.
"""

import inspect
import sys
from types import ModuleType

import msgspec

from topics.engine.durable.entry_kinds import KINDS
from topics.storage import data_layout, snapshot
from topics.storage.log import entry, frame, ledger, walfile
from topics.storage.replica import objects as replica_objects
from topics.storage.segments import codec, columns

INTRODUCTION = """\
# File formats

This page describes the files of a data directory, and the objects of its replica, byte by byte. `make docs` generates
it from the docstrings of the modules that read and write them. A server refuses a file with an unknown version.

Integers are little-endian. Checksums are XXH3-64. MessagePack arrays grow at their end only: a reader uses the default
for a missing field.
"""

SECTIONS: tuple[tuple[str, ModuleType], ...] = (
    ("The data directory", data_layout),
    ("Records", columns),
    ("Segments", codec),
    ("Snapshots", snapshot),
    ("Log files", walfile),
    ("Log frames", frame),
    ("Log entries", entry),
    ("The ledger", ledger),
    ("The replica", replica_objects),
)


def reference() -> str:
    """Return the text of docs/formats.md."""
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
    """Return a table of all kinds of log entries, by number."""
    classes: dict[int, type[msgspec.Struct]] = {kind.entry.kind: kind.entry for kind in KINDS}  # type: ignore[misc]
    lines = ["### Kinds", "", "| kind | name | fields | meaning |", "|---|---|---|---|"]
    for number, kind in sorted(classes.items()):
        fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
        meaning = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"| {number} | `{kind.__name__}` | {fields} | {meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
