"""Cross-origin requests: which pages in a browser may call the API.

`CorsApp` wraps the application only if origins are configured. It answers preflights before authentication, because
browsers send them without credentials.
"""

from collections.abc import Callable, Set

from topics.server.http.messages import Answer, App, Deferred, Header, Request, Response, Stream, Upgrade

METHODS = b"GET, POST, PUT, DELETE"
WARNINGS = b"topics-warnings"  # warnings of an answer that is no JSON object
EXPOSED = b"retry-after, " + WARNINGS
MAX_AGE_S = b"600"
ALLOW_ORIGIN = b"access-control-allow-origin"
VARY: Header = (b"vary", b"origin")


class CorsApp(App):
    """An application whose answers carry the fields that let pages of the allowed origins read them."""

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
        return None if refused is None else self._marked(refused, request)

    def handle(self, request: Request) -> Answer:
        answer = self._app.handle(request)
        if isinstance(answer, Response):
            return self._marked(answer, request)
        if isinstance(answer, Deferred):
            return answer.mapped(lambda response: self._marked(response, request))
        if isinstance(answer, Stream) and not isinstance(answer, Upgrade):
            answer.head = self._marked(answer.head, request)
        return answer

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

    def _marked(self, response: Response, request: Request) -> Response:
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
