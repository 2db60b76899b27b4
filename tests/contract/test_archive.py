"""Archives: reported positions are kept, and a topic with `hold` respects them."""

from typing import Any

import pytest

from tests.contract.api import Api


def report(api: Api, topic: str, seq: int) -> Any:
    answer = api.call("POST", f"/v0/topics/{topic}/archived", {"seq": seq, "epoch": api.state(topic)["epoch"]})
    assert answer.status_code == 200
    return answer.json()


def test_archived_position_never_moves_back(api: Api, topic: str):
    api.write(topic, *range(10))
    assert "archived_seq" not in api.state(topic)
    reported = report(api, topic, 7)
    assert (reported["topic"], reported["archived_seq"], reported["head_seq"], reported["moved"]) == (
        topic,
        7,
        10,
        True,
    )
    again = report(api, topic, 3)
    assert (again["archived_seq"], again["moved"]) == (7, False)
    state = api.state(topic)
    assert state["archived_seq"] == 7
    assert state["archive"] == {"unarchived": 3, "overdue": 0, "evicted": 0}


def test_archive_reports_its_trimmed_position(api: Api, topic: str):
    api.write(topic, *range(10))
    path, epoch = f"/v0/topics/{topic}/archived", api.state(topic)["epoch"]
    report(api, topic, 7)
    assert "trimmed_seq" not in api.state(topic)
    error = api.refused(400, "invalid_request", "POST", path, {"seq": 7, "epoch": epoch, "trimmed_seq": 8})
    assert error["detail"] == {"field": "trimmed_seq"}
    for seq, moved in ((5, True), (5, False), (4, False)):
        reported = api.call("POST", path, {"seq": 7, "epoch": epoch, "trimmed_seq": seq}).json()
        assert (reported["archived_seq"], reported["moved"]) == (7, moved)
    assert report(api, topic, 8)["moved"]  # a report without a trim does not undo one
    state = api.state(topic)
    assert (state["archived_seq"], state["trimmed_seq"], state["count"]) == (8, 5, 10)


@pytest.mark.parametrize("body", [{}, {"seq": 1}, {"epoch": 1}, {"seq": -1, "epoch": 1}, {"seq": "1", "epoch": 1}])
def test_report_names_seq_and_epoch(api: Api, topic: str, body: dict[str, Any]):
    api.write(topic, 1)
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/archived", body)
    assert error["detail"]["field"] in ("seq", "epoch")


def test_archived_position_beyond_the_head_is_refused(api: Api, topic: str):
    api.write(topic, 1)
    body = {"seq": 2, "epoch": api.state(topic)["epoch"]}
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/archived", body)
    assert error["detail"] == {"field": "seq"}


def test_archived_report_of_another_epoch_is_refused(api: Api, topic: str):
    path = f"/v0/topics/{topic}/archived"
    api.refused(404, "topic_not_found", "POST", path, {"seq": 0, "epoch": 1})
    api.write(topic, 1)
    before = api.state(topic)["epoch"]
    api.drop(topic)
    api.write(topic, 1)
    error = api.refused(409, "epoch_mismatch", "POST", path, {"seq": 1, "epoch": before})
    assert error["detail"] == {"topic": topic, "epoch": api.state(topic)["epoch"]}


def test_full_held_topic_accepts_writes_after_archiving(api: Api, topic: str):
    api.put(topic, cap_records=3, discard="reject", archive={"hold": True})
    api.write(topic, 1, 2, 3)
    api.refused(422, "topic_full", "POST", f"/v0/topics/{topic}", {"records": [{"data": 4}]})
    report(api, topic, 1)
    api.write(topic, 4)
    page = api.diff(topic)
    assert [record["$seq"] for record in page["records"]] == [2, 3, 4]
    assert (page["tombstone"]["gap_to"], page["tombstone"]["reason"]) == (1, "cap")


def test_hold_shows_in_the_metrics(api: Api, topic: str):
    api.put(topic, cap_records=3, archive={"hold": True})
    api.write(topic, *range(5))
    report(api, topic, 3)
    rows = api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json()
    shown = [
        rows[f"topics_topic_{name}"][topic]
        for name in ("archived_seq", "archive_unarchived", "archive_overdue", "archive_evicted_total")
    ]
    assert shown == [3, 2, 0, 2]


def test_records_can_be_deleted_by_seqs(api: Api, topic: str):
    api.write(topic, *range(6))
    path = f"/v0/topics/{topic}/delete"
    assert api.call("POST", path, {"seqs": [2, 4, 4, 99], "dry_run": True}).json()["deleted"] == 2
    assert api.delete(topic, seqs=[4, 2, 99])["deleted"] == 2
    assert api.delete(topic, seqs=[4])["deleted"] == 0
    assert api.delete(topic, seqs=[])["deleted"] == 0
    assert [record["$seq"] for record in api.read_all(topic)] == [1, 3, 5, 6]
    api.refused(400, "invalid_request", "POST", path, {"seqs": [1], "before_seq": 2})
    api.refused(400, "batch_too_large", "POST", path, {"seqs": list(range(1, 10_002))})


def test_delete_with_another_epoch_deletes_nothing(api: Api, topic: str):
    api.write(topic, 1, 2)
    epoch = api.state(topic)["epoch"]
    api.refused(409, "epoch_mismatch", "POST", f"/v0/topics/{topic}/delete", {"before_seq": 3, "epoch": epoch - 1})
    assert api.state(topic)["count"] == 2
    assert api.delete(topic, before_seq=2, epoch=epoch)["deleted"] == 1
