"""Contexts: the named servers of a user, the server of a client without an address, and of a request by its names.

They are in `$XDG_CONFIG_HOME/topics/contexts.json` (`~/.config/topics/contexts.json`). The file never holds a key, only
the path of the file that does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct

from topics.client.call import with_schemes
from topics.client.errors import BadContext, InvalidRequest
from topics.errors import Code

DEFAULT_PORT = 4000
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
T = TypeVar("T")


class Context(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    url: str  # with routes, of all names that no prefix begins; "" if these have no server
    token_file: str | None = None
    routes: dict[str, str] | None = None  # the servers of names, by prefix

    @property
    def by_prefix(self) -> dict[str, str]:
        """The address for each prefix of names."""
        return {prefix: url for prefix, url in {"": self.url, **(self.routes or {})}.items() if url}


class Contexts(Struct, kw_only=True, rename={"by_name": "contexts"}):
    """The contexts of a user. `current` is the one that is used if none is named."""

    current: str | None = None
    by_name: dict[str, Context]


def default_target(env: Mapping[str, str]) -> tuple[str | dict[str, str], str | None]:
    """Return the address and the key of a client without an address, by the rules of the command line.

    The address, or one per prefix of names, is the first of: `TOPICS_URL`, `TOPICS_CONTEXT`, the current context, this
    machine. The key is in the file of the context that gave the address, or else in `TOPICS_TOKEN_FILE`.
    Raise `BadContext`.
    """
    url, token_file, routes = env.get("TOPICS_URL"), None, None
    if not url:
        known = load_contexts(env)
        name = env.get("TOPICS_CONTEXT") or known.current
        if name is not None and name not in known.by_name:
            raise BadContext(f"there is no context {name!r}: `topics context ls` lists the contexts")
        context = Context(DEFAULT_URL) if name is None else known.by_name[name]
        url, token_file, routes = context.url, context.token_file, context.routes and context.by_prefix
    token_file = token_file or env.get("TOPICS_TOKEN_FILE")
    try:
        token = Path(token_file).expanduser().read_text(encoding="utf-8").strip() if token_file else None
    except (OSError, UnicodeDecodeError) as error:
        raise BadContext(f"the key file {token_file} cannot be read: {error}") from None
    return {prefix: with_schemes(one) for prefix, one in routes.items()} if routes else with_schemes(url), token


def _path(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "topics" / "contexts.json"


def load_contexts(env: Mapping[str, str]) -> Contexts:
    """Return the contexts of the user. Raise `BadContext` if the file is damaged."""
    path = _path(env)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts(by_name={})
    except (OSError, msgspec.MsgspecError) as error:
        raise BadContext(f"{path} cannot be read: {error}: repair or remove it, and add the contexts again") from None


def save_contexts(contexts: Contexts, env: Mapping[str, str]) -> None:
    """Write the contexts by rename, so that another process never reads half a file."""
    path = _path(env)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
    temporary.chmod(0o600)
    temporary.replace(path)


# --- several servers, each with the names that begin with its prefixes


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
            raise InvalidRequest(
                Code.INVALID_REQUEST, f"no server has {name!r}: the prefixes are {', '.join(map(repr, self.by_prefix))}"
            )
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
            raise InvalidRequest(Code.INVALID_REQUEST, f"{path} concerns one server: ask it with `server(prefix)`")
        first = self.of_name(names[0])
        for other in names[1:]:
            if self.of_name(other) is not first:
                what = "a watch" if kind == "watch" else "a router, with its source and its destination,"
                raise InvalidRequest(
                    Code.INVALID_REQUEST, f"{names[0]} and {other} are on two servers, and {what} belongs to one"
                )
        return first
