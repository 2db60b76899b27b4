"""The JavaScript client as the server delivers it."""

from pathlib import Path

import httpx
import pytest

from tests.conftest import ServerProcess, StartServer

SOURCE = Path(__file__).parents[3] / "clients" / "js" / "topics.js"


def test_client_is_served_with_caching_headers(start_server: StartServer) -> None:
    server: ServerProcess = start_server(api_keys="secret:read")
    answer = httpx.get(f"{server.url}/client.js")
    assert (answer.status_code, answer.content) == (200, SOURCE.read_bytes())
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["access-control-allow-origin"] == "*"
    again = httpx.get(f"{server.url}/client.js", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_types_are_served_beside_the_client(start_server: StartServer) -> None:
    server: ServerProcess = start_server()
    types = httpx.get(f"{server.url}/client.d.ts")
    assert types.content == SOURCE.with_suffix(".d.ts").read_bytes()
    assert types.headers["content-type"].startswith("text/typescript")
    assert types.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("origins", ["*", "http://app.example"])
def test_client_has_one_allowed_origin_whatever_the_setting(start_server: StartServer, origins: str) -> None:
    """A browser refuses an answer with two."""
    server: ServerProcess = start_server(cors_origins=origins)
    answer = httpx.get(f"{server.url}/client.js", headers={"origin": "http://app.example"})
    assert answer.headers.get_list("access-control-allow-origin") == ["*"]
