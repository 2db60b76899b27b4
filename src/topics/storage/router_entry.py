"""Log entries of routers. Copies are not among them: see `engine.forward` for how they come back without.

What is logged is what a replay could not work out from the records alone: which routers there are, how far they had
come when something else happened to one of their topics (`Mark`), and what they gave up (`Trim`).
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from topics.model.router import RouterConfig
from topics.storage.entry import known


@known
class RouterPut(Struct, array_like=True):
    """A router begins, or changes. From here on it forwards what comes after `cursor`."""

    kind: ClassVar[int] = 16
    topic_id: int  # the source
    router_id: int
    name: str
    dest_id: int
    config: RouterConfig
    cursor: int
    at_ms: int


@known
class RouterDrop(Struct, array_like=True):
    """A router is gone; what it forwarded stays."""

    kind: ClassVar[int] = 17
    topic_id: int  # the source
    router_id: int


@known
class Mark(Struct, array_like=True):
    """How far the routers around a topic had come at this point of the log.

    Those that read from the topic stood at `upto`, the ones in `others` elsewhere; those that write into it are in
    `others` as well. `holds` says that the mark belongs to the entry behind it.
    """

    kind: ClassVar[int] = 18
    topic_id: int
    head: int
    upto: int
    others: list[tuple[int, int]]  # router id, cursor
    holds: bool


@known
class Trim(Struct, array_like=True):
    """A router passes source records that are lost or about to be: in the destination, `lost` seqs from `first` on."""

    kind: ClassVar[int] = 19
    topic_id: int  # the destination
    router_id: int
    upto: int
    first: int
    lost: int


@known
class Resume(Struct, array_like=True):
    """A destination that was full takes copies again; none of them is older than this."""

    kind: ClassVar[int] = 20
    topic_id: int  # the destination
    at_ms: int
