"""The route of a path: each row of the table is found, and nothing else."""

import re

import pytest

from topics.errors import Code, TopicsError
from topics.server.api.route import Route, RouteTable
from topics.server.api.route_table import ROUTES
from topics.server.http.messages import Request


def request(method: str, path: str) -> Request:
    return Request(method, path.encode(), b"", {}, b"", "127.0.0.1:1", 0)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
@pytest.mark.parametrize("value", ["x", "delete", "%C3%A4", "topics"])
def test_every_row_is_found_by_its_path(route: Route, value: str) -> None:
    table, names = RouteTable(ROUTES), re.findall(r"\{(\w+)\}", route.path)
    path = re.sub(r"\{\w+\}", value, route.path)
    for _ in range(2):  # the second time from the cache
        call = table.find(request(route.method, path))
        assert call.route is route
        assert call.params == dict.fromkeys(names, value.replace("%C3%A4", "ä"))


@pytest.mark.parametrize(
    "path", ["", "x", "/v0", "/v0/topics/", "/v0/topics//delete", "/v0/topics/a/b", "/v0/topics/a/delete/b"]
)
def test_other_paths_are_not_found(path: str) -> None:
    with pytest.raises(TopicsError) as refused:
        RouteTable(ROUTES).find(request("POST", path))
    assert refused.value.code is Code.NOT_FOUND
