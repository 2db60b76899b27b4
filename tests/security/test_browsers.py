"""Pages in a browser: what a server without keys on the reader's own machine does not do for them."""

from collections.abc import Callable

import pytest

from tests.security.conftest import Caller
from tests.security.test_matrix import SOCKET
from topics.config import Settings
from topics.errors import TopicsError
from topics.server.pages import Pages

Start = Callable[..., Caller]
PATH = "/v0/topics"


def lets_in(pages: Pages | None, **headers: str) -> bool:
    if pages is not None:
        try:
            pages.check({name.encode(): value.encode("latin-1") for name, value in headers.items()})
        except TopicsError:
            return False
    return True


def pages(**flags: str) -> Pages | None:
    return Pages.of(Settings.load({}, flags))


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:4000", "localhost.", "127.0.0.1", "127.0.0.1:4000", "127.8.9.10:1", "[::1]", "[::1]:4000"],
)
def test_loopback_names_are_ours(host: str):
    assert lets_in(pages(), host=host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:4000", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "0.0.0.0",
     "[::2]", "[::ffff:10.0.0.1]", "1270.0.0.1", "", "[::1", "localhost:4000:1"],
)  # fmt: skip
def test_a_name_that_was_made_to_point_here_is_refused(host: str):
    assert not lets_in(pages(), host=host)


def test_a_server_with_keys_or_beyond_loopback_answers_to_any_name():
    assert lets_in(pages(api_keys="k"), host="topics.example", origin="https://evil.example")
    assert lets_in(pages(host="0.0.0.0", allow_insecure_no_auth="1"), host="topics.example")


@pytest.mark.parametrize("origin", ["http://localhost:4000", "https://localhost:4000", "HTTP://LOCALHOST:4000"])
def test_the_servers_own_pages_may_call(origin: str):
    assert lets_in(pages(), host="localhost:4000", origin=origin)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "", "file://"])
def test_pages_of_another_origin_may_not_call_unless_they_are_listed(origin: str):
    assert not lets_in(pages(), host="localhost:4000", origin=origin)
    assert not lets_in(pages(host="0.0.0.0", allow_insecure_no_auth="1"), host="a:4000", origin=origin)
    assert lets_in(pages(cors_origins="*"), host="localhost:4000", origin=origin)
    assert lets_in(pages(cors_origins="http://localhost:5000"), host="localhost", origin="http://localhost:5000")


def test_the_server_refuses_them_for_every_kind_of_request_and_after_good_ones_too(call: Start):
    server = call()
    for _ in range(3):
        assert server.send("GET", PATH).status == 200
        assert server.send("GET", PATH, fields=("host: localhost",)).status == 200
        reply = server.send("GET", PATH, fields=("host: evil.example",))
        assert (reply.status, reply.json["error"]["code"]) == (403, "forbidden")
        assert server.send("GET", "/v0/ws", fields=("origin: https://evil.example", *SOCKET)).status == 403
        assert server.send("POST", f"{PATH}/t/diff", {}, fields=("origin: https://evil.example",)).status == 403


@pytest.mark.parametrize("keys", ["", "k"])
def test_answers_are_neither_sniffed_nor_stored(call: Start, keys: str):
    server = call(api_keys=keys)
    asked = [("GET", PATH), ("GET", "/v0/health"), ("GET", "/v0/nothing"), ("PUT", f"{PATH}/t"), ("POST", f"{PATH}/t")]
    for method, path in asked * 2:
        for key in (None, "k"):
            reply = server.send(method, path, key=key)
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert reply.headers["cache-control"] == "no-store"
    assert server.send("GET", "/v0/metrics", key="k").headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("origins", ["", "https://app.example", "*"])
def test_no_page_is_ever_told_that_credentials_count(call: Start, origins: str):
    """A browser adds cookies and the like by itself, and only they need leave to; a key is put in by the page's script,
    which must know it."""
    server = call(api_keys="k", cors_origins=origins)
    origin = "origin: https://app.example"
    preflight = ("access-control-request-method: PUT", "access-control-request-headers: authorization")
    for reply in (
        server.send("GET", PATH, key="k", fields=(origin,)),
        server.send("GET", PATH, fields=(origin,)),
        server.send("OPTIONS", PATH, fields=(origin, *preflight)),
    ):
        assert "access-control-allow-credentials" not in reply.headers
        told = reply.headers.get("access-control-allow-origin")
        assert told in ({None} if not origins else {origins})
        assert "set-cookie" not in reply.headers
    other = server.send("GET", PATH, key="k", fields=("origin: https://other.example",))
    assert other.headers.get("access-control-allow-origin") in (None, "*")


@pytest.mark.parametrize("keys", ["", "k"])
@pytest.mark.parametrize("origin", ["http://[", "http://]", "http://[::1", "//", "http://[v1.]", "http://\u0130"])
def test_an_origin_that_is_no_address_is_refused(call: Start, keys: str, origin: str):
    server = call(api_keys=keys)
    reply = server.send("GET", "/v0/ws", key="k" if keys else None, fields=(f"origin: {origin}", *SOCKET))
    assert (reply.status, reply.json["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize("keys", ["", "k"])
def test_the_servers_own_pages_may_open_a_socket_with_and_without_keys(call: Start, keys: str):
    server = call(api_keys=keys, cors_origins="https://App.example")
    for origin in (f"http://LOCALHOST:{server.port}", "https://app.example"):
        host = f"host: localhost:{server.port}"
        reply = server.send("GET", "/v0/ws", key="k" if keys else None, fields=(f"origin: {origin}", host, *SOCKET))
        assert reply.status == 101, origin
