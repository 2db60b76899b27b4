"""Pages in a browser that reach for a server without keys. Pure.

Such a server trusts whoever can connect, and a browser on the same machine connects on behalf of any page it shows. Two
header fields that a page cannot forge tell its requests apart. `Host` is the name that the page's address had: one that
is not ours belongs to a page whose own name was made to point here (DNS rebinding), for which the browser sees no
foreign origin at all. `Origin` names the page behind a request to another site; the browser keeps the answer from it,
but the request has been carried out by then, and a WebSocket is not even kept from it.

A server with keys needs none of this: a page does not know the key, and nothing sends it by itself.
"""

import ipaddress
import re
from typing import TYPE_CHECKING

from topics.errors import Code, TopicsError

if TYPE_CHECKING:
    from topics.config import Settings

_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::[0-9]*)?")


class Pages:
    """Which requests of browsers are let in."""

    __slots__ = ("_any_origin", "_hosts", "_origins")

    def __init__(self, *, hosts: frozenset[str] | None, origins: tuple[str, ...]) -> None:
        self._hosts = hosts  # names that are ours besides loopback addresses; None: any name may be
        self._any_origin = "*" in origins
        self._origins = frozenset(origin.lower() for origin in origins)

    @classmethod
    def of(cls, settings: "Settings") -> "Pages | None":
        """None where every request needs a key. Beyond loopback nobody knows by what names the server is called."""
        if settings.key_rules():
            return None
        hosts = frozenset(("localhost", settings.host.lower().strip("[]"))) if settings.is_loopback() else None
        return cls(hosts=hosts, origins=settings.cors_origins)

    def check(self, headers: dict[bytes, bytes]) -> None:
        """`forbidden` for a request that a page of somebody else's is behind."""
        host = headers.get(b"host")
        if host is not None and self._hosts is not None and not self._is_ours(host.decode("latin-1")):
            raise TopicsError(
                Code.FORBIDDEN,
                "the Host header names another server than this one, which without keys answers to loopback names only",
            )
        origin = headers.get(b"origin")
        if origin is not None and not self._any_origin and not may_call(origin.decode("latin-1"), host, self._origins):
            raise TopicsError(
                Code.FORBIDDEN, "pages of this origin may not call a server without keys; see TOPICS_CORS_ORIGINS"
            )

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


def may_call(origin: str, host: bytes | None, allowed: frozenset[str]) -> bool:
    """Return whether pages of `origin` may call the server: its own pages, and those of `allowed` origins (lower case).

    A page that this server gave out itself has the server's own name, the `Host` of its requests, in its origin.
    """
    origin = origin.lower()
    own = "" if host is None else host.decode("latin-1").lower()
    return origin in allowed or bool(own and origin in (f"http://{own}", f"https://{own}"))
