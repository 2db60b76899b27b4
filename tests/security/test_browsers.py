"""Pages in a browser: what a server without keys on the reader's own machine does not do for them."""

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import ServerProcess
from tests.security.conftest import Caller
from tests.security.test_matrix import SOCKET
from topics.config import Settings
from topics.errors import TopicsError
from topics.server.http.browser_origin import Pages

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


@pytest.mark.parametrize(
    ("keys", "method", "path", "fields", "settings"),
    [
        ("", "GET", PATH, ("host: evil.example",), ("TOPICS_API_KEYS",)),
        ("", "GET", PATH, ("origin: https://evil.example",), ("TOPICS_CORS_ORIGINS", "TOPICS_API_KEYS")),
        ("", "GET", "/v0/ws", ("origin: https://evil.example", *SOCKET), ("TOPICS_CORS_ORIGINS",)),
        ("k", "GET", "/v0/ws", ("origin: https://evil.example", *SOCKET), ("TOPICS_CORS_ORIGINS",)),
        ("", "GET", f"{PATH}/t?touch=1", ("sec-fetch-site: cross-site",), ("TOPICS_CORS_ORIGINS", "TOPICS_API_KEYS")),
    ],
)
def test_refusal_names_the_settings_that_allow_the_request(
    call: Start, keys: str, method: str, path: str, fields: tuple[str, ...], settings: tuple[str, ...]
):
    server = call(api_keys=keys)
    reply = server.send(method, path, key=keys or None, fields=fields)
    assert reply.status == 403
    for setting in settings:
        assert setting in reply.json["error"]["message"]


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
        answer = reply.headers.get("access-control-allow-origin")
        assert answer in ({None} if not origins else {origins})
        assert "set-cookie" not in reply.headers
    other = server.send("GET", PATH, key="k", fields=("origin: https://other.example",))
    assert other.headers.get("access-control-allow-origin") in (None, "*")


@pytest.mark.parametrize("keys", ["", "k"])
def test_an_origin_that_is_no_address_is_refused(call: Start, keys: str):
    server = call(api_keys=keys)
    for origin in ("http://[", "http://]", "http://[::1", "//", "http://[v1.]", "http://\u0130"):
        reply = server.send("GET", "/v0/ws", key="k" if keys else None, fields=(f"origin: {origin}", *SOCKET))
        assert (reply.status, reply.json["error"]["code"]) == (403, "forbidden"), origin


@pytest.mark.parametrize("keys", ["", "k"])
def test_the_servers_own_pages_may_open_a_socket_with_and_without_keys(call: Start, keys: str):
    server = call(api_keys=keys, cors_origins="https://App.example")
    for origin in (f"http://LOCALHOST:{server.port}", "https://app.example"):
        host = f"host: localhost:{server.port}"
        reply = server.send("GET", "/v0/ws", key="k" if keys else None, fields=(f"origin: {origin}", host, *SOCKET))
        assert reply.status == 101, origin


IMAGE = "image/avif,image/webp,image/apng,image/*,*/*;q=0.8"
NAVIGATION = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
EVENTS = "text/event-stream"


def asked(server: Caller, path: str, *, accept: str = "*/*", **fields: str) -> int:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return server.send("GET", path, fields=(f"accept: {accept}", "host: localhost:4000", *lines)).status


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A server without keys that has a queue `q` and one allowed origin."""
    running = ServerProcess(tmp_path_factory.mktemp("queue"), {"cors_origins": "https://app.example"})
    server = Caller(running.port)
    assert server.send("PUT", "/v0/topics/q", {"type": "queue"}).status == 201
    yield server
    server.close()
    running.stop()


WORK, STATE, LIST = "/v0/topics/q/work?node=w", "/v0/topics/q", "/v0/topics?touch=1"


@pytest.mark.parametrize("path", [WORK, STATE, LIST, f"{WORK}&token=x"])
@pytest.mark.parametrize("site", ["cross-site", "same-site", "CROSS-SITE", "none, cross-site", "new-word", ""])
@pytest.mark.parametrize("accept", ["*/*", EVENTS, IMAGE])
def test_gets_with_effects_are_kept_from_other_sites(queue: Caller, path: str, site: str, accept: str):
    assert asked(queue, path, accept=accept, sec_fetch_site=site) == 403


@pytest.mark.parametrize("path", ["/v0/topics/q?touch=false", "/v0/topics", "/v0/metrics", "/v0/health", "/v0/routers"])
@pytest.mark.parametrize("accept", ["*/*", IMAGE, NAVIGATION])
def test_gets_without_effects_answer_links_from_other_sites(queue: Caller, path: str, accept: str):
    assert asked(queue, path, accept=accept, sec_fetch_site="cross-site") == 200


@pytest.mark.parametrize("accept", [IMAGE, "text/css,*/*;q=0.1", "video/*,*/*", "audio/*;q=0.9,*/*", "font/woff2,*/*"])
def test_browsers_without_fetch_metadata_are_known_by_what_they_accept(queue: Caller, accept: str):
    for path, status in ((WORK, 406), (STATE, 403), (LIST, 403)):
        assert asked(queue, path, accept=accept) == status
    assert asked(queue, "/v0/topics", accept=accept) == 200


def test_an_address_that_a_person_opens_is_shown_but_is_no_event_stream(queue: Caller):
    for fields in ({}, {"sec_fetch_site": "none"}, {"sec_fetch_site": "same-origin"}):
        assert asked(queue, STATE, accept=NAVIGATION, **fields) == 200
        assert asked(queue, WORK, accept=NAVIGATION, **fields) == 406


@pytest.mark.parametrize("accept", ["", "*/*", EVENTS, "text/*", "application/json, */*", f"{NAVIGATION}, {EVENTS}"])
def test_programs_and_own_pages_open_the_stream(queue: Caller, accept: str):
    for fields in ({}, {"sec_fetch_site": "same-origin"}, {"sec_fetch_site": "none"}):
        assert asked(queue, WORK, accept=accept, **fields) == 200
    assert asked(queue, WORK, accept=EVENTS, origin="https://app.example", sec_fetch_site="cross-site") == 200
    assert asked(queue, WORK, accept=EVENTS, origin="https://evil.example", sec_fetch_site="cross-site") == 403


def test_a_watch_stream_is_not_taken_over_by_another_site(queue: Caller):
    url = queue.send("POST", "/v0/watch", {"topics": {"q": {}}}).json["stream_url"]
    assert asked(queue, url, sec_fetch_site="cross-site") == 403
    assert asked(queue, url, accept=IMAGE) == 406
    assert asked(queue, url) == 200


@pytest.mark.parametrize("settings", [{"api_keys": "k"}, {"cors_origins": "*"}])
def test_a_key_or_any_origin_allowed_makes_fetch_metadata_mean_nothing(call: Start, settings: dict[str, str]):
    server = call(**settings)
    key = settings.get("api_keys")
    server.send("PUT", "/v0/topics/q", {"type": "queue"}, key=key)
    fields = (f"accept: {EVENTS}", "sec-fetch-site: cross-site")
    assert server.send("GET", f"{WORK}&token=k", fields=fields).status == 200
    assert server.send("GET", STATE, key=key, fields=fields).status == 200


def test_a_head_request_from_another_site_counts_as_no_interest(queue: Caller):
    assert queue.send("PUT", "/v0/topics/head").status == 201
    path = "/v0/topics/head"
    for site, interest in (("cross-site", False), ("same-origin", True)):
        with queue.connect() as sock:
            head = f"HEAD {path} HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: {site}\r\nconnection: close\r\n\r\n"
            sock.sendall(head.encode())
            assert sock.recv(4096)
        state = queue.send("GET", f"{path}?touch=false").json
        assert (state["last_read_ts"] is not None) == interest
