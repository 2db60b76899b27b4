"""The start of a writer: whether its directory and the replica belong together, and the restore of an empty directory.

    directory  replica               what happens
    empty      empty                 a new replica
    empty      has a checkpoint      the directory is restored
    data       empty                 a new replica, unless the directory belongs to one
    data       the same, ours        the server continues
    any other                        the start is refused; nothing is written

The file REPLICA in the directory has the id of its replica, and the term and the instance of its last writer. It is
written before the term: so a term of this directory is known to be its own, whatever happens in between.

The directory of a standby (`follows`) is a copy: a start restores it again. It becomes that of a writer once a takeover
has recovered it.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Callable
from contextlib import closing
from functools import partial

import msgspec
from msgspec import Struct

from topics import logs
from topics.storage.backup import is_vacant
from topics.storage.datadir import UNFINISHED, DataDir
from topics.storage.fs import Fs, read_whole
from topics.storage.log import walfile
from topics.storage.replica import objects
from topics.storage.replica.bucket import Bucket
from topics.storage.replica.history import History
from topics.storage.replica.objects import REPLICA, FileRef, Head, ReplicaError
from topics.storage.replica.restore import Progress, restore
from topics.storage.replica.sequence import NOWHERE, End, Sequence, Server, State, Upload

log = logs.Log("replica")

MAX_SKEW_MS = 900_000  # of the clocks of two writers; S3 accepts as much


class NotOurs(ReplicaError):
    """The directory and the replica do not belong together. The text has the reason, and after `; ` the way out."""


class Owner(Struct, frozen=True):
    """The file REPLICA of a directory."""

    replica: str
    term: int = 0
    instance: str = ""
    follows: bool = False  # it is a copy, which a standby keeps


class Opened(Struct):
    """A replica that this directory may continue."""

    sequence: Sequence  # its term is in the bucket already if the directory was restored
    known: list[FileRef]  # files of the last checkpoint
    is_new: bool  # there is no checkpoint yet


def prepare(
    bucket: Bucket, fs: Fs, path: str, server: Server, *, now_ms: int, progress: Progress = lambda done, total: None
) -> Opened:
    """Check that the directory may continue the replica, and restore an empty one. Blocks.

    The directory is not open yet. A restore takes over: a server that still writes the replica is fenced. Raise
    `NotOurs`, `Damaged`, `BucketError`, `DataDirError` or OSError.
    """
    url, history = server.url, History.open(bucket)
    end = End() if history is None else history.end()
    if end.at_ms > now_ms + MAX_SKEW_MS:
        raise NotOurs(
            f"the last object of {url} is of {objects.shown_time(end.at_ms)}, and the clock of this machine shows "
            f"{objects.shown_time(now_ms)}; set the clock, or choose another prefix"
        )
    instance = secrets.token_hex(8)
    if history is not None and end.number and is_vacant(fs, path):
        begin = partial(Sequence, history.replica_id, instance, server=server)
        return _restore(history, end, fs, path, begin, now_ms, progress)
    if not is_vacant(fs, path):
        _check(fs, path, read_owner(fs, path), history, end, url)
    if history is None:
        if not begin_replica(bucket) or (history := History.open(bucket)) is None or history.log:
            raise NotOurs(f"{url} is being used by another server; choose another prefix, or start again")
    known = history.state(end.number).checkpoint.files if end.base else []
    return Opened(Sequence(history.replica_id, instance, end, server), known, is_new=not end.base)


def begin_replica(bucket: Bucket) -> bool:
    """Let this server begin the replica in an empty bucket. Return False if another one does."""
    identity = objects.encode_identity(secrets.token_hex(8))
    return bucket.create(REPLICA, identity) or bucket.get(REPLICA) == identity


def claim(datadir: DataDir, sequence: Sequence, *, follows: bool = False) -> None:
    """Write down that this directory begins the next term, before that is in the bucket, or has begun it."""
    term = sequence.term + (sequence.state is State.STARTING)
    write_owner(datadir, Owner(sequence.replica, term, sequence.instance, follows))


def read_owner(fs: Fs, path: str) -> Owner | None:
    """Return the content of REPLICA; None if there is none."""
    file = posixpath.join(path, "REPLICA")
    if not fs.exists(file):
        return None
    try:
        return msgspec.json.decode(read_whole(fs, file), type=Owner)
    except msgspec.MsgspecError as error:
        raise NotOurs(f"{file} is damaged ({error}); move the directory away: an empty one is restored") from error


def write_owner(datadir: DataDir, owner: Owner) -> None:
    datadir.write_file(posixpath.join(datadir.root, "REPLICA"), [msgspec.json.encode(owner) + b"\n"])


def _restore(
    history: History, end: End, fs: Fs, path: str, begin: Callable[[End], Sequence], now_ms: int, progress: Progress
) -> Opened:
    if not end.base:
        raise NotOurs(
            f"the replica has no checkpoint yet: {end.host or 'another server'} began it "
            f"{objects.shown_time(end.at_ms)}; wait until it has one, choose another prefix, or remove its objects"
        )
    sequence = begin(end)

    def seal(datadir: DataDir) -> int:
        """Begin a term behind the last object, whatever number that has by now. Return the number of the last one."""
        nonlocal sequence
        # Bound: each round finds an object that another server wrote in between.
        while True:
            history.refresh()
            sequence = begin(history.end())
            upload = sequence.next(0, now_ms)
            assert upload is not None, "a sequence starts with its term"
            if _begin_term(history, sequence, upload, partial(claim, datadir, sequence)):
                return upload.head.number - 1

    done = restore(history, fs, path, seal=seal, progress=progress)
    log.info("restored", object=done.object, snapshot=done.snapshot, bytes=done.bytes, took_over_from=end.host)
    return Opened(sequence, history.state(sequence.last_number - 1).checkpoint.files, is_new=False)


# --- standbys


class Loaded(Struct):
    """A directory that has the state at an object, for a standby."""

    history: History
    last: Head  # of the object
    term: int  # of the checkpoint that the state began with


class NothingToFollow(ReplicaError):
    """The replica has no checkpoint yet. If it `is_empty`, it has no object of the sequence either."""

    is_empty = False


def load(bucket: Bucket, fs: Fs, path: str, *, progress: Progress = lambda done, total: None) -> Loaded | None:
    """Restore the directory of a standby. Return None if it is that of the last writer, which goes on. Blocks.

    Raise `NothingToFollow`, `NotOurs`, `Damaged`, `BucketError`, `DataDirError` or OSError.
    """
    history = History.open(bucket)
    end = End() if history is None else history.end()
    if history is None or not end.base:
        nothing = NothingToFollow("the replica has no checkpoint yet; start its writer")
        nothing.is_empty = not end.number
        raise nothing
    if not is_vacant(fs, path):
        owner = read_owner(fs, path)
        if owner is None or owner.replica != history.replica_id:
            raise NotOurs(f"{path} has data that is not from this replica; start a standby with an empty directory")
        if not owner.follows and owner.instance == end.instance:
            return None
        if not owner.follows:
            raise NotOurs(
                f"{path} is that of an earlier writer (term {owner.term}), and may have writes that the replica lacks; "
                "move it away: an empty directory is restored"
            )
        _clear(fs, path)

    def seal(datadir: DataDir) -> int:
        write_owner(datadir, Owner(history.replica_id, follows=True))
        return end.number

    restore(history, fs, path, number=end.number, seal=seal, progress=progress)
    state = history.state(end.number)
    return Loaded(history, state.last, state.head.term)


def succeed(
    loaded: Loaded, number: int, server: Server, datadir: DataDir, instance: str, *, now_ms: int
) -> Opened | None:
    """Begin a term behind object `number`, which the directory has. Return None if there is a later object. Blocks.

    Raise `BucketError` if it is unknown whether the term has begun. Another one may begin then.
    """
    history = loaded.history
    if history.last_number != number:
        return None
    sequence = Sequence(history.replica_id, instance, history.end(), server)
    sequence.reason = "takeover"
    upload = sequence.next(0, now_ms)
    if upload is None or not _begin_term(history, sequence, upload, lambda: claim(datadir, sequence, follows=True)):
        return None
    return Opened(sequence, history.state(number).checkpoint.files, is_new=False)


def _begin_term(history: History, sequence: Sequence, upload: Upload, claim: Callable[[], None]) -> bool:
    """Create the object that begins a term. Return False if another one has its number."""
    claim()
    name, data = objects.log_name(upload.head.number), objects.encode(upload.head)
    if not history.bucket.create(name, data) and history.bucket.get(name) != data:
        return False
    sequence.created(upload, 0)
    return True


def _clear(fs: Fs, path: str) -> None:
    """Remove a copy. What is left after a crash is an unfinished copy."""
    with closing(DataDir(fs, path)) as datadir:
        datadir.open()
        fs.open(posixpath.join(path, UNFINISHED), create=True).close()
        fs.unlink(posixpath.join(path, "FORMAT"))
        fs.sync_dir(path)
        topics = [datadir.topic_dir(topic_id) for topic_id in datadir.topic_ids()]
        for folder in (datadir.wal_dir, datadir.snapshots_dir, datadir.ledger_dir, *topics):
            for name in fs.listdir(folder):
                fs.unlink(posixpath.join(folder, name))


def _check(fs: Fs, path: str, owner: Owner | None, history: History | None, end: End, url: str) -> None:
    """Raise `NotOurs` unless a directory with data may continue the replica."""
    if history is None or not end.number:
        if owner is not None and (history is None or history.replica_id != owner.replica) and owner.term:
            raise NotOurs(
                f"{path} belongs to replica {owner.replica}, which is not at {url}; correct TOPICS_REPLICA, or remove "
                f"{path}/REPLICA to begin a new replica"
            )
        return
    since = f"since {objects.shown_time(end.at_ms)}"
    if owner is not None and owner.follows:
        raise NotOurs(f"{path} is the copy of a standby; start it with --standby, or with an empty directory")
    if owner is None or owner.replica != history.replica_id:
        raise NotOurs(
            f"{path} has data, and {url} is the replica of another directory; choose another prefix, or an empty "
            "directory to continue that replica"
        )
    if end.term >= owner.term and end.instance != owner.instance:  # after a gap, a server has a later term itself
        raise NotOurs(
            f"{url} belongs to {end.host or 'another server'} {since} (term {end.term}), and {path} ends before that; "
            "start with an empty directory to follow it"
        )
    if not _reaches(fs, path, end):
        raise NotOurs(
            f"{path} is behind {url}: it lacks log file {end.upto[0]} up to byte {end.upto[1]}; move it away: an empty "
            "directory is restored"
        )


def _reaches(fs: Fs, path: str, end: End) -> bool:
    """Return whether the directory has the log as far as the replica has it."""
    datadir, (number, offset) = DataDir(fs, path), end.upto
    if end.upto == NOWHERE or not offset or max(datadir.snapshot_numbers(), default=0) > number:
        return True
    file = datadir.wal_path(number)
    return fs.exists(file) and walfile.written_end(read_whole(fs, file)) >= offset
