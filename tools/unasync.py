"""Generate the sync client from the async one. Every build runs this, also that of an editable install, and `make`."""

from __future__ import annotations

import re
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "src" / "topics" / "client"
ASYNC = CLIENT / "_async"
BY_HAND = {"tools.py", "__init__.py"}  # written by hand for each client
HEADER = "# Generated from {source} by tools/unasync.py. Do not edit.\n"

REPLACED = [
    (r"\basync def\b", "def"),
    (r"\basync with\b", "with"),
    (r"\basync for\b", "for"),
    (r"\bawait ", ""),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\b__aiter__\b", "__iter__"),
    (r"\baclose\b", "close"),
    (r"\baread\b", "read"),
    (r"\baiter_raw\b", "iter_raw"),
    (r"\banext\b", "next"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncGenerator\[([^\n]*), None\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsyncExitStack\b", "ExitStack"),
    (r"\benter_async_context\b", "enter_context"),
    (r"\bAbstractAsyncContextManager\b", "AbstractContextManager"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\baclosing\b", "closing"),
    (r"\btopics\.client\._async\b", "topics.client._sync"),
    (r"\bhttpx\.AsyncClient\b", "httpx.Client"),
    (r"\bhttpx\.AsyncBaseTransport\b", "httpx.BaseTransport"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"`_async", "`_sync"),
]


def sync_text(source: Path) -> str:
    """Return the sync form of an async module."""
    text = source.read_text()
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text)
    return HEADER.format(source=source.relative_to(CLIENT).as_posix()) + text


def generate(target: Path) -> None:
    """Write the sync client to `target`. Files that are up to date are not touched, and other files are removed."""
    texts = {target / source.relative_to(ASYNC): sync_text(source) for source in sorted(ASYNC.rglob("*.py"))}
    wanted = {path: text for path, text in texts.items() if path.relative_to(target).as_posix() not in BY_HAND}
    for path in target.rglob("*.py"):
        if path not in wanted and path.relative_to(target).as_posix() not in BY_HAND:
            path.unlink()
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    generate(CLIENT / "_sync")
