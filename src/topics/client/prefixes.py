"""Several servers, each with the names that begin with its prefixes. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, unquote

from topics.client.errors import InvalidRequest
from topics.errors import Code

T = TypeVar("T")


class Prefixes(Generic[T]):
    """What belongs to each prefix. The longest prefix of a name counts; "" is for all other names.

    A request goes by the name in its path: of a topic, a router or a schedule. A watch and a router name topics in
    their bodies, and all of these must be on one server. The rest, such as keys and metrics, is of one server.
    """

    def __init__(self, by_prefix: Mapping[str, T]) -> None:
        if not by_prefix:
            raise ValueError("the map of prefixes is empty; name at least one server")
        self.by_prefix = dict(sorted(by_prefix.items(), key=lambda item: -len(item[0])))

    def of_name(self, name: str) -> T:
        """Return what a name belongs to. Raise `InvalidRequest`."""
        found = next((one for prefix, one in self.by_prefix.items() if name.startswith(prefix)), None)
        if found is None:
            raise _refused(f"no server has {name!r}: the prefixes are {', '.join(map(repr, self.by_prefix))}")
        return found

    def of_request(self, path: str, body: Any) -> T:
        """Return what a request belongs to: a path, and its body, encoded or not. Raise `InvalidRequest`."""
        kind, _, rest = path.partition("?")[0].removeprefix("/v0/").partition("/")
        name = unquote(rest.partition("/")[0])
        if isinstance(body, bytes):
            body = json.loads(body) if kind in ("watch", "routers") else None
        names = [name] if name else []
        if kind == "watch" and not name and isinstance(body, Mapping):
            names = list(body.get("topics") or {})
        elif kind == "routers" and isinstance(body, Mapping):
            names += [body[end] for end in ("source", "dest") if end in body]
        elif not name:
            names = [value for key, value in parse_qsl(path.partition("?")[2]) if key == "prefix"]
        if not names:
            raise _refused(f"{path} concerns one server: ask it with `server(prefix)`")
        first = self.of_name(names[0])
        for other in names[1:]:
            if self.of_name(other) is not first:
                what = "a watch" if kind == "watch" else "a router, with its source and its destination,"
                raise _refused(f"{names[0]} and {other} are on two servers, and {what} belongs to one")
        return first


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(Code.INVALID_REQUEST, message)
