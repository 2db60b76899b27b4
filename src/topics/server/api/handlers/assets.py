"""Handlers of static files: the JavaScript client."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import topics
from topics.server.http.messages import Answer, Response

if TYPE_CHECKING:
    from topics.server.api.route import Call
    from topics.server.api.services import Services
    from topics.server.startup import Startup

JAVASCRIPT = b"text/javascript; charset=utf-8"
NOT_MODIFIED = 304

# A wheel holds a copy of the client; a checkout has the original.
_PACKAGE = Path(topics.__file__).parent
_PLACES = (_PACKAGE / "server" / "assets" / "client.js", _PACKAGE.parents[1] / "clients" / "js" / "topics.js")


def client_js(services: Services, call: Call) -> Answer:
    """Return the JavaScript client."""
    return client_js_while_recovering(services.startup, call)


def client_js_while_recovering(startup: Startup, call: Call) -> Answer:
    """Return the JavaScript client, before the data is recovered. A page of any origin may import it."""
    body, etag = _client()
    headers = ((b"etag", etag), (b"cache-control", b"public, max-age=300"), (b"access-control-allow-origin", b"*"))
    if etag in call.request.headers.get(b"if-none-match", b""):
        return Response(NOT_MODIFIED, b"", JAVASCRIPT, headers)
    return Response(200, body, JAVASCRIPT, headers)


@cache
def _client() -> tuple[bytes, bytes]:
    body = next(path for path in _PLACES if path.exists()).read_bytes()
    return body, b'"%b"' % sha256(body).hexdigest()[:16].encode()
