"""Generate the sync client from the async one: `python tools/unasync.py`, with `--check` to compare only."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "src" / "topics" / "client"
BY_HAND = {CLIENT / "_async" / "tools.py", CLIENT / "_async" / "__init__.py"}
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
    (r"\bwebsockets\.asyncio\b", "websockets.sync"),
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


def formatted(texts: dict[Path, str]) -> dict[Path, str]:
    """Return the texts as ruff would have them: replaced names change the order of imports and the length of lines."""
    out = {}
    for path, text in texts.items():
        for command in (["check", "--fix-only", "--quiet"], ["format"]):
            ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
            text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
        out[path] = text
    return out


def main() -> int:
    folder, target = CLIENT / "_async", CLIENT / "_sync"
    sources = [path for path in sorted(folder.rglob("*.py")) if path not in BY_HAND]
    texts = formatted({target / source.relative_to(folder): sync_text(source) for source in sources})
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path} is not what tools/unasync.py makes of the async client: run it", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(texts[path])
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
