"""`topics serve` that runs out of memory when it applies a write whose record contains the text POISON."""

import sys
from typing import Any

from topics.cli.options import build_parser
from topics.cli.servers import serve
from topics.engine.write import apply

append, append_plain = apply.append, apply.append_plain


def fail_for_poison(entry: Any) -> None:
    if b"POISON" in bytes(entry.blob):
        raise MemoryError


def failing_append(state: Any, topic: Any, entry: Any) -> None:
    fail_for_poison(entry)
    append(state, topic, entry)


def failing_append_plain(state: Any, topic: Any, entry: Any) -> None:
    fail_for_poison(entry)
    append_plain(state, topic, entry)


if __name__ == "__main__":
    apply.append, apply.append_plain = failing_append, failing_append_plain
    sys.exit(serve.execute(build_parser().parse_args(["serve", *sys.argv[1:]])))
