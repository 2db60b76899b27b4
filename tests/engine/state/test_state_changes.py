"""The docstring of `engine/state/topic.py` says which modules change what a restart must find again."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

import topics
from tests.sampling import SEED
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.state.topic import Topic
from topics.engine.write import archived
from topics.model.consumer import ConsumerRequest
from topics.model.topic import ArchiveConfig

# Fields of a topic that a restart rebuilds from the log and the snapshot.
KEPT = {
    "archived", "bytes", "config", "consumers", "count", "earliest", "epoch", "evict_floor", "evicted_unarchived",
    "gone", "head", "key_bytes", "keys", "last_ts", "last_write_ts", "losses", "lost_ts", "queue", "segments",
    "topic_id", "trimmed",
}  # fmt: skip
CHANGE = {"engine/write/apply.py", "engine/retention.py", "engine/write/archived.py", "engine/state/idempotency.py",
          "engine/consumers/consumer_log.py"}  # fmt: skip
# What a start makes anew: from the fields above, from files, from the ledger of ceilings, or not at all.
RUNNING = {
    "captured_in", "ceiling", "ceiling_raised", "ceiling_staged", "ceiling_step", "changing", "diff_start", "front_ts",
    "last_read_ts", "leader", "links", "listeners", "name", "needs_snapshot", "saved_tail", "staged_deletes",
    "staged_keys", "totals", "waits_since_ms",
}  # fmt: skip
BUILD = {"engine/state/topic.py", "engine/state/snapshot_parts.py"}
TOPICS = {"topic", "source", "dest", "self.topic", "self._topic", "ticket.topic"}  # what code calls a topic

# What only methods of `Topic` assign.
COUNTED = {"next_seq", "pending", "staged_bytes", "staged_count", "staged_times", "waiting"}


def targets(node: ast.AST) -> list[ast.expr]:
    found = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else []
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        found = [node.target]
    return [one for target in found for one in (target.elts if isinstance(target, ast.Tuple) else [target])]


def changed_in() -> dict[str, set[str]]:
    """Return the modules that assign each attribute of a topic."""
    package = Path(topics.__file__).parent
    changed: dict[str, set[str]] = defaultdict(set)
    for path in [*package.glob("engine/**/*.py"), *package.glob("server/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            for target in targets(node):
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) in TOPICS:
                    changed[target.attr].add(str(path.relative_to(package)))
    return changed


def test_only_methods_of_a_topic_count_what_is_pending_and_assign_seqs() -> None:
    assert set(Topic.__slots__) >= COUNTED
    changed = changed_in()
    assert {field: changed[field] for field in COUNTED if changed[field]} == {}


def test_every_field_is_kept_counted_or_made_anew() -> None:
    """A new field of a topic is in one of these sets: the others follow from this decision."""
    assert set(Topic.__slots__) == KEPT | COUNTED | RUNNING
    assert len(KEPT) + len(COUNTED) + len(RUNNING) == len(Topic.__slots__)


@pytest.mark.parametrize("checkpoint", [True, False], ids=["snapshot", "log"])
def test_every_kept_field_is_found_again_by_a_start(checkpoint: bool) -> None:
    """From the snapshot alone, and from the log alone. Without its `Part`, a field is lost at the first checkpoint."""
    server = SimServer.start(SimDisk(seed=SEED))
    server.put("other", durability="fsync")
    server.put("t", durability="fsync", cap_records=3, archive=ArchiveConfig(hold=True))
    fresh = server.engine.topic("other")
    server.append("t", "1", "2", "3", "4", key="k")
    server.done(archived.report(server.engine.staging, "t", seq=3, epoch=server.engine.topic("t").epoch, trimmed=1))
    server.append("t", "5", "6")
    server.append("t", "7", "8", "9")
    server.delete("t", before_seq=8)
    server.done(server.engine.consumers.put("t", "c", ConsumerRequest(seq=1)))
    topic = server.engine.topic("t")
    before = {field: shown(topic, field) for field in KEPT}
    same = {field for field in KEPT if before[field] == shown(fresh, field)}
    assert same == {"gone", "queue"}, "the test gives no other value to a field"
    if checkpoint:
        server.checkpoint()
    after = server.next(server.disk.clone().crash("keep")).engine.topic("t")
    assert {field: shown(after, field) for field in KEPT} == before


def shown(topic: Topic, field: str) -> object:
    value = getattr(topic, field)
    if field == "segments":
        return [(one.first, one.end) for one in value if one.end > one.first]
    if field == "losses":
        return list(value.runs)
    if field == "keys":
        return list(value)
    return msgspec.to_builtins(value.by_name) if field == "consumers" and value is not None else value


def test_only_the_named_modules_change_what_a_restart_must_find_again() -> None:
    changed = changed_in()
    assert set(Topic.__slots__) >= KEPT
    assert {field for field in changed if field in KEPT} >= {"head", "count", "earliest", "config", "archived"}
    strangers = {field: changed[field] - CHANGE - BUILD for field in KEPT}
    assert {field: files for field, files in strangers.items() if files} == {}
