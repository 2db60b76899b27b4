"""CORS fields of answers, with an application that accepts every request."""

from topics.server.http.browser_origin import CorsApp
from topics.server.http.messages import Answer, App, Deferred, Request, Response, Stream

PAGE = b"https://app.example"


class Plain(App):
    """Answers by path; refuses what is called /refused."""

    def __init__(self) -> None:
        self.shared = Response(200, b"{}")
        self.deferred = Deferred()

    def admit(self, request: Request, content_length: int | None) -> Response | None:
        return Response(401, b"{}") if request.path == b"/refused" else None

    def handle(self, request: Request) -> Answer:
        if request.path == b"/later":
            return self.deferred
        if request.path == b"/stream":
            return Stream(Response(200, content_type=b"text/event-stream"))
        return self.shared

    def abandon(self, request: Request) -> None:
        pass


def request(path: bytes = b"/", method: str = "GET", **headers: bytes) -> Request:
    fields = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return Request(method, path, b"", fields, b"", "127.0.0.1:1", 0)


def allowed(response: Response) -> bytes | None:
    return dict(response.headers).get(b"access-control-allow-origin")


def test_allowed_origin_is_named_and_another_is_not():
    cors = CorsApp(Plain(), ("https://app.example",))
    yes, no = (cors.handle(request(origin=origin)) for origin in (PAGE, b"https://evil.example"))
    assert isinstance(yes, Response)
    assert isinstance(no, Response)
    assert (allowed(yes), allowed(no)) == (PAGE, None)
    assert (b"vary", b"origin") in yes.headers
    assert (b"vary", b"origin") in no.headers


def test_star_allows_every_origin():
    answer = CorsApp(Plain(), ("*",)).handle(request(origin=b"https://any.example"))
    assert isinstance(answer, Response)
    assert allowed(answer) == b"*"


def test_refusal_can_be_read_by_the_page_too():
    refused = CorsApp(Plain(), ("https://app.example",)).admit(request(b"/refused", origin=PAGE), None)
    assert refused is not None
    assert (refused.status, allowed(refused)) == (401, PAGE)


def test_answer_that_the_application_keeps_is_not_changed():
    app = Plain()
    CorsApp(app, ("*",)).handle(request(origin=PAGE))
    assert app.shared.headers == ()


def test_later_answer_and_a_stream_are_marked_as_well():
    app = Plain()
    cors = CorsApp(app, ("*",))
    got: list[Response] = []
    later = cors.handle(request(b"/later", origin=PAGE))
    assert isinstance(later, Deferred)
    later.then(got.append)
    app.deferred.resolve(Response(200))
    stream = cors.handle(request(b"/stream", origin=PAGE))
    assert isinstance(stream, Stream)
    assert [allowed(got[0]), allowed(stream.head)] == [b"*", b"*"]


def test_client_that_leaves_cancels_the_answer_behind_the_wrapper():
    app = Plain()
    later = CorsApp(app, ("*",)).handle(request(b"/later"))
    assert isinstance(later, Deferred)
    later.cancel()
    assert app.deferred.cancelled


def test_preflight_is_answered_before_the_application_is_asked():
    cors = CorsApp(Plain(), ("https://app.example",))
    ask = {
        "access_control_request_method": b"PUT",
        "access_control_request_headers": b"authorization,content-type",
    }
    answer = cors.admit(request(b"/refused", "OPTIONS", origin=PAGE, **ask), None)
    assert answer is not None
    fields = dict(answer.headers)
    assert (answer.status, allowed(answer)) == (204, PAGE)
    assert b"PUT" in fields[b"access-control-allow-methods"]
    assert fields[b"access-control-allow-headers"] == b"authorization,content-type"

    other = cors.admit(request(b"/refused", "OPTIONS", origin=b"https://evil.example", **ask), None)
    assert other is not None
    assert (allowed(other), b"access-control-allow-methods" in dict(other.headers)) == (None, False)
