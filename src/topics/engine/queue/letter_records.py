"""Dead letters as records: how they are stamped with their origin, and found by it."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from topics.engine.queue import pick
from topics.engine.read.read import Query, expire_and_read
from topics.engine.state import staged_deletes
from topics.engine.state.jobs.job import Job
from topics.engine.state.topic import Topic
from topics.model import surrogates
from topics.model.nesting import decode_again
from topics.model.records import MAX_BATCH_BYTES, MAX_EXAMINED, Projection, TagMatch
from topics.storage.segments.cold import Cold

MAX_FIND_EXAMINED = 5 * MAX_EXAMINED  # seqs of the dead-letter topic that one redrive examines
STAMP_FROM, STAMP_DELIVERIES, STAMP_SEQ = "$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"
_STAMPS = (STAMP_FROM, STAMP_DELIVERIES, STAMP_SEQ)

_encode_json = msgspec.json.encode


class Letter(Struct, rename={"seq": "$seq", "node": "$node", "tag": "$tag", "priority": "$priority"}):
    """A stored record, with its payload untouched."""

    seq: int
    data: Raw
    node: str | None = None
    tag: str | None = None
    meta: Raw | UnsetType = UNSET
    priority: int = 0  # not in the record: see `pick.terms_at`


class FoundLetters(Struct):
    """Dead letters of one queue, the last seq examined, and whether the search reached its end."""

    letters: list[Letter]
    upto: int
    caught_up: bool


_decode_rows = msgspec.json.Decoder(list[Letter]).decode


def stamp(meta: Raw | UnsetType, source: str, job: Job) -> Raw:
    """Return the meta of a dead letter: the meta of the job, and where the job came from."""
    stamps = b'"%b":%b,"%b":%d,"%b":%d' % (
        STAMP_FROM.encode(), _encode_json(source), STAMP_DELIVERIES.encode(), job.deliveries,
        STAMP_SEQ.encode(), job.seq,
    )  # fmt: skip
    meta = unstamp(meta)
    text = b"{}" if isinstance(meta, UnsetType) else bytes(meta).rstrip()
    return Raw(b"%b%b%b}" % (text[:-1], b"," if text[1:-1].strip() else b"", stamps))


def unstamp(meta: Raw | UnsetType) -> Raw | UnsetType:
    """Return the meta without the stamps of a dead letter; UNSET if it has nothing else."""
    if isinstance(meta, UnsetType) or b'"$dead_letter_' not in bytes(meta):
        return meta
    kept = {key: value for key, value in surrogates.members(meta).items() if key not in _STAMPS}
    return Raw(surrogates.object_of(kept)) if kept else UNSET


def decode(rows: bytes) -> list[Letter]:
    """Decode stored records with a comma between each two. A payload with half a surrogate pair stays as it is."""
    text = b"[%b]" % rows
    try:
        return decode_again(_decode_rows, text)
    except msgspec.DecodeError:
        masked = surrogates.mask(text)
        if masked is None:
            raise
    letters = decode_again(_decode_rows, masked.text)
    for letter in letters:
        letter.data = masked.restore(letter.data)
        if not isinstance(letter.meta, UnsetType):
            letter.meta = masked.restore(letter.meta)
    return letters


def find(
    source: Topic,
    origin: str,
    *,
    match: TagMatch | None,
    seqs: list[int] | None,
    from_seq: int,
    limit: int,
    now_ms: int,
) -> FoundLetters:
    """Return dead letters of `origin` that no worker holds and no staged delete takes.

    Look at all behind `from_seq`, or at those in `seqs`. Stop at `limit` letters, `MAX_BATCH_BYTES` of them, or
    `MAX_FIND_EXAMINED` seqs. A `from_seq` past the head finds
    nothing and continues at the head: the letters that arrive next have the seqs behind it.
    """
    head = source.head
    asked = None if seqs is None else sorted({seq for seq in seqs if 0 < seq <= head})
    ranges = [(min(from_seq, head), head)] if asked is None else [(seq - 1, seq) for seq in asked]
    found = FoundLetters([], ranges[0][0] if asked is None else 0, caught_up=False)
    examined = size_bytes = 0
    for at, stop in ranges:
        while at < stop:
            if len(found.letters) >= limit or size_bytes >= MAX_BATCH_BYTES or examined >= MAX_FIND_EXAMINED:
                return found
            query = Query(
                from_seq=at, limit=limit - len(found.letters), max_bytes=MAX_BATCH_BYTES - size_bytes, match=match,
                projection=Projection(tags=True), upto=stop,
            )  # fmt: skip
            try:
                reading = expire_and_read(source, query, now_ms)
            except Cold:
                if asked is not None:  # one load for all of them
                    pick.rows(source, [seq for seq in asked if seq > found.upto and source.is_live(seq)])
                elif examined:
                    return found  # with the letters so far; the next call continues behind them
                raise
            letters = [
                row
                for row in decode(b"".join(reading.body()))
                if _is_from(row, origin)
                and not (source.queue is not None and source.queue.is_out(row.seq))
                and staged_deletes.taking(source, row.seq) is None
            ]
            found.letters += letters
            size_bytes += sum(len(letter.data) for letter in letters)
            assert reading.next_from_seq > at, "a read below the head moves its cursor"
            examined += reading.next_from_seq - at
            at = found.upto = min(reading.next_from_seq, stop)
    found.caught_up = True
    return found


def _is_from(row: Letter, origin: str) -> bool:
    if row.meta is UNSET or b'"$dead_letter_from"' not in bytes(row.meta):
        return False
    return bytes(surrogates.members(row.meta).get(STAMP_FROM, Raw(b"null"))) == _encode_json(origin)
