"""Log entries of routers. Most copies are not logged: see `engine.routers.copy` for how recovery restores them.

What is logged is what a replay could not work out from the records alone: which routers there are, how far they had
come when something else happened to one of their topics (`Mark`), what they gave up (`Trim`), and every step of those
that lie on a cycle (`Copies`).
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from topics.model.router import RouterConfig
from topics.storage.log.entry import Append, known


@known
class RouterPut(Struct, array_like=True):
    """A router is created or changed. It forwards the records after `cursor`."""

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
    """A router is deleted. Its copies stay."""

    kind: ClassVar[int] = 17
    topic_id: int  # the source
    router_id: int


@known
class Mark(Struct, array_like=True):
    """The cursors of the routers of a topic at this point of the log.

    Those that read from the topic were at `upto`, the ones in `others` elsewhere; those that write into it are in
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
    """A router skips source records that are lost or about to be lost: `lost` seqs from `first` on in the destination.

    With reason `cap` the source has them, and the destination could never hold their copies.
    """

    kind: ClassVar[int] = 19
    topic_id: int  # the destination
    router_id: int
    upto: int
    first: int
    lost: int
    reason: str = "source_trim"


@known
class Resume(Struct, array_like=True):
    """A destination that was full takes copies again; none of them is older than this."""

    kind: ClassVar[int] = 20
    topic_id: int  # the destination
    at_ms: int


@known
class Copies(Struct, array_like=True):
    """A router on a cycle has examined all records up to `upto`, and these are its copies; often none.

    The fields behind `upto` are those of an `Append`.
    """

    kind: ClassVar[int] = 21
    topic_id: int  # the destination
    router_id: int
    upto: int
    first: int = 0
    ts: int = 0
    sizes: list[int] = []
    blob: bytes = b""
    tags: list[str | None] | None = None
    nodes: list[str | None] | str | None = None
    metas: list[int] | None = None
    extras: dict[int, bytes] | None = None

    @classmethod
    def of(cls, router_id: int, upto: int, made: Append) -> Copies:
        """Return the frame of a step with its copies: the log has both or neither."""
        return cls(
            made.topic_id, router_id, upto, made.first, made.ts, list(made.sizes), made.blob,
            None if made.tags is None else list(made.tags),
            made.nodes if made.nodes is None or isinstance(made.nodes, str) else list(made.nodes),
            None if made.metas is None else list(made.metas), made.extras,
        )  # fmt: skip

    def append(self) -> Append:
        return Append(
            self.topic_id, self.first, self.ts, self.sizes, self.blob, self.tags, self.nodes, self.metas, None,
            self.extras,
        )  # fmt: skip
