"""Handlers of static files: the index, the web console, and the JavaScript client. They answer at any time."""

from functools import cache
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

import topics
from topics import __version__
from topics.errors import Code, TopicsError
from topics.model.inspection import Index
from topics.server.api.route import Call
from topics.server.api.services import Startup
from topics.server.http.browser_origin import PAGE_MEDIA, names_any
from topics.server.http.messages import Answer, Header, Response
from topics.server.loop.answer import json_answer, performance

FOUND, NOT_MODIFIED = 302, 304

# A wheel holds a copy of the client and of its types; a checkout has the originals.
_PACKAGE = Path(topics.__file__).parent
_PLACES = (_PACKAGE / "server" / "assets" / "client.js", _PACKAGE.parents[1] / "clients" / "js" / "topics.js")
_CONSOLE = _PACKAGE / "server" / "console"
_TYPES = {
    ".html": b"text/html; charset=utf-8", ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8", ".svg": b"image/svg+xml", ".ts": b"text/typescript; charset=utf-8",
}  # fmt: skip

# A page of the console runs its own scripts and calls its own server, and nothing else. Trusted types keep its scripts
# from turning text into markup at all.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_PROTECTION: tuple[Header, ...] = (
    (b"content-security-policy", POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def get_index(startup: Startup, call: Call) -> Answer:
    """Return the addresses of the server, or send a browser to the console."""
    console = "/console" if startup.console else None
    if console is not None and names_any(call.request.headers.get(b"accept", b"").lower(), PAGE_MEDIA):
        headers = ((b"location", console.encode()), (b"vary", b"accept"), (b"cache-control", b"no-store"))
        return Response(FOUND, b"", _TYPES[".html"], headers)
    took = performance(call.request)
    return json_answer(200, Index("topics", __version__, console, "/v0/openapi.json", "/client.js", "/v0/health", took))


def get_asset(startup: Startup, call: Call) -> Answer:
    """Return a file of the package by its path, or 304 if the client has this version."""
    found = _assets().get(unquote(call.request.path.decode("latin-1")).lstrip("/"))
    if found is None:
        raise TopicsError(Code.NOT_FOUND, "the console has no such file; it begins at /console")
    body, content_type, headers = found
    if headers[0][1] in call.request.headers.get(b"if-none-match", b""):
        return Response(NOT_MODIFIED, b"", content_type, headers)
    return Response(200, body, content_type, headers)


@cache
def _assets() -> dict[str, tuple[bytes, bytes, tuple[Header, ...]]]:
    """Return the files by path, each with its type and headers. A page of any origin may import the client."""
    client = next(path for path in _PLACES if path.exists())
    shared = ((b"cache-control", b"public, max-age=300"), (b"access-control-allow-origin", b"*"))
    headers = {"client.js": shared, "client.d.ts": shared}
    paths = {f"console/{path.relative_to(_CONSOLE).as_posix()}": path for path in sorted(_CONSOLE.rglob("*.*"))}
    named = {"console": _CONSOLE / "index.html", "client.js": client, "client.d.ts": client.with_suffix(".d.ts")}
    files = {}
    for name, path in (named | paths).items():
        if path.suffix in _TYPES:
            body = path.read_bytes()
            etag = b'"%b"' % sha256(body).hexdigest()[:16].encode()
            more = headers.get(name, (*_PROTECTION, (b"cache-control", b"no-cache")))
            files[name] = body, _TYPES[path.suffix], ((b"etag", etag), *more)
    return files
