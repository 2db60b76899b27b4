"""Requests of browsers: checks for a server without keys, and which pages of other origins may call the API. Pure.

Such a server trusts every client that can connect, and a browser on the same machine connects for every page it shows.
Some header fields that a page cannot forge show where a request comes from:

    Host            A name that is not the server's own belongs to a page whose own name was made to point here (DNS
                    rebinding). The browser does not see a foreign origin in that case.
    Origin          The page behind a request to another site. The browser hides the answer from the page, but the
                    request has been carried out by then, and the data of a WebSocket is not hidden at all.
    Sec-Fetch-Site  Where a request comes from that has no `Origin`: images, scripts, frames, links. It is checked for
                    GETs with effects (`protected`). `same-site` is refused like `cross-site`: it means another
                    origin on this host. Browsers send the field to loopback addresses and over TLS. Elsewhere the
                    `Accept` of an image, a script or a medium shows what the request is for.
"""

import ipaddress
import re
from collections.abc import Callable, Set
from functools import partial

from topics.config import Settings
from topics.errors import Code, TopicsError
from topics.server.http.messages import Answer, App, Header, Request, Response, Upgrade, changed

EVENT_STREAM = b"text/event-stream"
PAGE_MEDIA = (b"text/html", b"application/xhtml+xml")
PART_MEDIA = (  # parts of pages, which browsers request for an element
    b"image/", b"video/", b"audio/", b"font/", b"text/css", b"text/javascript", b"application/javascript",
)  # fmt: skip

_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::[0-9]*)?")


class Pages:
    def __init__(self, *, hosts: frozenset[str] | None, origins: tuple[str, ...], has_keys: bool = False) -> None:
        self._hosts = hosts  # names of the server besides loopback addresses; None: not known
        self._or_keys = "" if has_keys else ", or set TOPICS_API_KEYS"
        self._any_origin = "*" in origins
        self._origins = frozenset(origin.lower() for origin in origins)

    @classmethod
    def of(cls, settings: "Settings") -> "Pages | None":
        """Return the checks that the settings ask for; None if every request needs a key.

        The names of a server that other machines can reach are not known, so its `Host` is not checked.
        """
        if settings.key_rules():
            return None
        hosts = frozenset(("localhost", settings.host.lower().strip("[]"))) if settings.is_loopback() else None
        return cls(hosts=hosts, origins=settings.cors_origins)

    def check(self, headers: dict[bytes, bytes]) -> None:
        """Raise `forbidden` for a request of a page that may not call this server."""
        host = headers.get(b"host")
        if host is not None and self._hosts is not None and not self._is_ours(host.decode("latin-1")):
            raise TopicsError(
                Code.FORBIDDEN,
                "the Host header names another server; without API keys this one answers to loopback names only; "
                "call it by localhost, or set TOPICS_API_KEYS to serve it under other names",
                detail={"host": host[:256].decode("latin-1")},
            )
        origin = headers.get(b"origin")
        if origin is not None and not self._any_origin and not may_call(origin.decode("latin-1"), host, self._origins):
            raise TopicsError(
                Code.FORBIDDEN,
                f"pages of this origin may not call this server; add the origin to TOPICS_CORS_ORIGINS{self._or_keys}",
                detail={"origin": origin[:256].decode("latin-1")},
            )

    def is_foreign(self, headers: dict[bytes, bytes]) -> bool:
        """Return whether an element of a page of another origin made the browser send this.

        A request with an `Origin` is not from an element: `check` has allowed or refused it.
        """
        if self._any_origin or b"origin" in headers:
            return False
        site = headers.get(b"sec-fetch-site")
        if site is None:
            accept = headers.get(b"accept", b"").lower()
            return bool(accept) and names_any(accept, PART_MEDIA) and not names_any(accept, (*PAGE_MEDIA, EVENT_STREAM))
        return site.strip().lower() not in (b"same-origin", b"none")

    def _is_ours(self, authority: str) -> bool:
        match = _AUTHORITY.fullmatch(authority)
        if match is None or self._hosts is None:
            return False
        name = match[1].lower().strip("[]").removesuffix(".")
        if name in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def names_any(accept: bytes, media: tuple[bytes, ...]) -> bool:
    """Return whether an `Accept` field (lower case) names a media type that begins with one of `media`."""
    return any(part.strip().startswith(media) for part in accept.split(b","))


def may_call(origin: str, host: bytes | None, allowed: frozenset[str]) -> bool:
    """Return whether pages of `origin` may call the server: its own pages, and those of `allowed` origins (lower case).

    A page that this server has served has the `Host` of its requests in its origin.
    """
    origin = origin.lower()
    own = "" if host is None else host.decode("latin-1").lower()
    return origin in allowed or bool(own and origin in (f"http://{own}", f"https://{own}"))


# The subprotocol of a WebSocket in a browser, which can send no other header. With the first alone, the first message
# has the key.
PROTOCOL, BEARER_PROTOCOL = b"topics", b"topics.bearer."


def protocols(headers: dict[bytes, bytes]) -> list[bytes]:
    return [one.strip() for one in headers.get(b"sec-websocket-protocol", b"").split(b",")]


def offers_protocol(headers: dict[bytes, bytes]) -> bool:
    return PROTOCOL in protocols(headers)


def bearer_protocol(headers: dict[bytes, bytes]) -> bytes | None:
    """Return the key in a subprotocol, or None."""
    found = (one.removeprefix(BEARER_PROTOCOL) for one in protocols(headers) if one.startswith(BEARER_PROTOCOL))
    return next(found, None)


def chosen_protocol(headers: dict[bytes, bytes]) -> bytes | None:
    """Return the subprotocol of the answer: a browser refuses an answer without one that it has offered."""
    offered = protocols(headers)
    known = (one for one in offered if one == PROTOCOL or one.startswith(BEARER_PROTOCOL))
    return PROTOCOL if PROTOCOL in offered else next(known, None)


METHODS = b"GET, POST, PUT, DELETE"
WARNINGS = b"topics-warnings"  # warnings of an answer that is no JSON object
EXPOSED = b"retry-after, " + WARNINGS
MAX_AGE_S = b"600"
ALLOW_ORIGIN = b"access-control-allow-origin"
VARY: Header = (b"vary", b"origin")


class CorsApp(App):
    """An application whose answers carry the fields that let pages of the allowed origins read them.

    It wraps the application only if origins are configured. It answers preflights before authentication, because
    browsers send them without credentials.
    """

    def __init__(self, app: App, origins: tuple[str, ...], of_keys: Callable[[], Set[bytes]] = frozenset) -> None:
        """`of_keys` returns the origins that keys allow besides, which change while the server runs."""
        self._app = app
        self._of_keys = of_keys
        self._any = "*" in origins
        self._origins = frozenset(origin.encode("ascii", "ignore").lower() for origin in origins)

    def admit(self, request: Request, content_length: int | None) -> Response | None:
        if self._allows_some and request.method == "OPTIONS" and b"access-control-request-method" in request.headers:
            fields = self._fields(request)
            if fields and fields[0] is not VARY:
                wanted = request.headers.get(b"access-control-request-headers", b"authorization, content-type")
                fields += (
                    (b"access-control-allow-methods", METHODS),
                    (b"access-control-allow-headers", wanted),
                    (b"access-control-max-age", MAX_AGE_S),
                )
            return Response(204, headers=fields)
        refused = self._app.admit(request, content_length)
        return None if refused is None else self._marked(request, refused)

    def handle(self, request: Request) -> Answer:
        answer = self._app.handle(request)
        return answer if isinstance(answer, Upgrade) else changed(answer, partial(self._marked, request))

    def answer(self, request: Request) -> Answer:
        """Leave a POST of a program to the application: no cache keeps its answer, so it needs no `Vary`."""
        if request.method == "POST" and b"origin" not in request.headers:
            return self._app.answer(request)
        return super().answer(request)

    def abandon(self, request: Request) -> None:
        self._app.abandon(request)

    @property
    def _allows_some(self) -> bool:
        return self._any or bool(self._origins or self._of_keys())

    def _marked(self, request: Request, response: Response) -> Response:
        """Return a copy with the CORS fields. The application may keep the answer and return it again.

        An answer for pages of any origin has its own field, and a browser refuses two.
        """
        if any(name == ALLOW_ORIGIN for name, _ in response.headers):
            return response
        fields = self._fields(request)
        return response.with_fields(*fields) if fields else response

    def _fields(self, request: Request) -> tuple[Header, ...]:
        """Return the CORS fields for a request. Without `*`, every answer says that it depends on the origin."""
        if self._any:
            return (ALLOW_ORIGIN, b"*"), (b"access-control-expose-headers", EXPOSED)
        origin = request.headers.get(b"origin", b"")
        if origin.lower() not in self._origins and origin.lower() not in self._of_keys():
            return (VARY,) if self._allows_some else ()
        return (ALLOW_ORIGIN, origin), (b"access-control-expose-headers", EXPOSED), VARY
