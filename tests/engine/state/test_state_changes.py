"""The docstring of `engine/state/topic.py` says which modules change what a restart must find again."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import topics
from topics.engine.state.topic import Topic

# Fields of a topic that a restart rebuilds from the log and the snapshot.
KEPT = {
    "archived", "bytes", "config", "consumers", "count", "earliest", "epoch", "evict_floor", "evicted_unarchived",
    "gone", "head", "key_bytes", "keys", "last_ts", "last_write_ts", "losses", "lost_ts", "queue", "segments",
    "topic_id", "trimmed",
}  # fmt: skip
CHANGE = {"engine/write/apply.py", "engine/retention.py", "engine/write/archived.py", "engine/state/idempotency.py",
          "engine/consumers/consumer_log.py"}  # fmt: skip
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


def test_only_the_named_modules_change_what_a_restart_must_find_again() -> None:
    changed = changed_in()
    assert set(Topic.__slots__) >= KEPT
    assert {field for field in changed if field in KEPT} >= {"head", "count", "earliest", "config", "archived"}
    strangers = {field: changed[field] - CHANGE - BUILD for field in KEPT}
    assert {field: files for field, files in strangers.items() if files} == {}
