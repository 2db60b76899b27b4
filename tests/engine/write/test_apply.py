"""Entries that do not fit the state: the state differs from the log, so nothing may be applied."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.harness import append, open_engine, read, record, seqs
from topics.engine.write import apply
from topics.storage.log.entry import Append


@pytest.mark.parametrize("act", [apply.append, apply.append_plain])
@pytest.mark.parametrize("first", [2, 4])
def test_append_that_does_not_begin_at_the_next_seq_is_not_applied(act: Callable[..., None], first: int) -> None:
    engine = open_engine()
    append(engine, "t", record("1"), record("2"))
    topic, row = engine.topic("t"), b'{"$seq":%d,"$ts":0,"data":1},' % first
    with pytest.raises(apply.OutOfOrder):
        act(engine.state, topic, Append(topic.topic_id, first, topic.last_ts, [len(row)], row))
    assert (topic.head, seqs(read(engine, "t"))) == (2, [1, 2])
