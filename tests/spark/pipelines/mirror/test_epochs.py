"""A mirror whose topics were deleted, recreated or set back, on either side."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.pipelines.mirror.pairs import Pair, die, run
from topics.client.request import Record
from topics.spark.pipelines.run.tasks import Tasks


def test_recreated_topic_is_copied_from_its_first_seq(
    here: Any, pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch
):
    """Even where the run that noticed it dies before it has done anything."""
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(here, pair, topic)
    pair.one.client.drop_topic(topic)
    pair.one.client.append(topic, [{"data": 100 + n} for n in range(3)])
    with monkeypatch.context() as patch:
        patch.setattr(Tasks, "run", die)
        with pytest.raises(MemoryError):
            run(here, pair, topic)

    report = run(here, pair, topic)

    values = [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)]
    assert values[:5] == list(range(5))
    assert values[5]["reason"] == "recreated"
    assert values[6:] == [100, 101, 102]
    assert [gap.reason for gap in report.topics[0].gaps] == ["recreated"]


def test_empty_recreated_topic_is_reported_once(here: Any, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": 1}])
    run(here, pair, topic)
    pair.one.client.drop_topic(topic)
    pair.one.client.put_topic(topic)
    for _ in range(2):
        run(here, pair, topic)
    assert pair.other.client.topic(topic).head_seq == 2


def test_emptied_target_is_filled_again(here: Any, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(here, pair, topic)
    pair.one.client.append(topic, [{"data": 5}])
    run(here, pair, topic)
    pair.other.client.drop_topic(topic)

    report = run(here, pair, topic)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == list(range(6))
    assert any("copied again" in text for text in report.warnings)


@pytest.mark.parametrize("steps", [1, 2])
def test_deleted_target_is_filled_again_without_new_records(here: Any, pair: Pair, topic: str, steps: int):
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(here, pair, topic, step_seqs=5 // steps)
    pair.other.client.drop_topic(topic)

    report = run(here, pair, topic)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == list(range(5))
    assert any("copied again" in text for text in report.warnings)
    assert run(here, pair, topic).records == 0


def test_target_recreated_by_another_writer_is_filled_again(here: Any, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(here, pair, topic)
    pair.other.client.drop_topic(topic)
    pair.other.client.append(topic, [{"data": "own"}] * 30)
    pair.one.client.append(topic, [{"data": 5}])

    for _ in range(2):
        run(here, pair, topic)

    found = [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)]
    assert found == ["own"] * 30 + list(range(6))


def test_target_with_copies_under_another_epoch_is_not_copied_twice(here: Any, pair: Pair, topic: str):
    """As one that came back from a backup does."""
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(here, pair, topic)
    copies = [item for item in pair.other.client.read(topic) if isinstance(item, Record)]
    pair.other.client.drop_topic(topic)
    pair.other.client.append(topic, [{"data": copy.data, "meta": copy.meta} for copy in copies])
    pair.one.client.append(topic, [{"data": 5}])

    report = run(here, pair, topic)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == list(range(6))
    assert (report.records, report.warnings) == (1, [])


def test_records_deleted_at_the_target_stay_deleted(here: Any, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(here, pair, topic)
    pair.other.client.delete(topic, before_seq=6)
    pair.one.client.append(topic, [{"data": 5}])

    run(here, pair, topic)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == [5]
