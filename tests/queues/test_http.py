"""The queue endpoints as workers meet them: fields, clamps, codes, and waiting."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.contract.api import JSON_HEADERS, WAIT_S, Api, Background, eventually, failed, now_ms, succeeded, together


def verb(api: Api, topic: str, name: str, **body: Any) -> Any:
    return succeeded(api.call("POST", f"/v0/topics/{topic}/{name}", body))


def claim(api: Api, topic: str, node: str = "w", **body: Any) -> Any:
    return verb(api, topic, "claim", node=node, **body)


@pytest.fixture
def jobs(api: Api, topic: str) -> str:
    api.put(topic, type="queue")
    return topic


def test_a_worker_s_round(api: Api, jobs: str):
    api.append(jobs, [{"data": {"n": 1}, "tag": "t", "meta": {"trace": "z"}, "node": "producer"}, {"data": 2}])
    answer = claim(api, jobs, max=5, lease_ms=2000)
    first, second = answer["claimed"]
    assert first.keys() == {"$seq", "lease_id", "deadline", "deliveries", "$ts", "$tag", "$node", "data", "meta"}
    assert second.keys() == {"$seq", "lease_id", "deadline", "deliveries", "$ts", "data"}
    assert first["lease_id"].startswith("lease_")
    int(first["lease_id"][6:], 16)
    assert abs(first["deadline"] - now_ms() - 2000) < 1500
    assert (answer["topic"], answer["count"], answer["ready"]) == (jobs, 2, 0)
    state = api.state(jobs)
    assert state["type"] == "queue"
    assert state["queue"] == {"ready": 0, "in_flight": 2, "dead_lettered": 0, "delayed": 0}

    longer = verb(api, jobs, "extend", node="w", seqs=[1, 2], lease_ms=90_000, lease_ids=[first["lease_id"], "lease_0"])
    assert (longer["extended"], longer["skipped"]) == (1, [2])
    assert longer["deadlines"]["1"] > first["deadline"]

    back = verb(api, jobs, "nack", node="w", seqs=[2], delay_ms=0)
    assert (back["nacked"], back["skipped"], back["ready"], back["in_flight"]) == (1, [], 1, 1)

    done = verb(api, jobs, "ack", node="w", seqs=[1, 2, 99])
    assert (done["acked"], done["skipped"], done["ready"], done["in_flight"]) == (1, [2, 99], 1, 0)
    assert [record["data"] for record in api.read_all(jobs)] == [2]
    assert verb(api, jobs, "ack", node="w", seqs=[1])["acked"] == 0


def test_an_ack_on_a_durable_queue_is_synced(api: Api, topic: str):
    api.put(topic, type="queue", durability="fsync", leases_durable=True)
    api.write(topic, 1)
    assert claim(api, topic)["count"] == 1
    assert verb(api, topic, "ack", node="w", seqs=[1])["acked"] == 1
    assert api.state(topic)["count"] == 0


@pytest.mark.parametrize("name", ["claim", "ack", "nack", "extend", "redrive"])
def test_only_queues_take_queue_verbs(api: Api, topic: str, name: str):
    body = {"seqs": [1]} if name == "redrive" else {"node": "w", "seqs": [1], "lease_ms": 100}
    api.refused(404, "topic_not_found", "POST", f"/v0/topics/{topic}/{name}", body)
    api.put(topic)
    api.refused(409, "not_a_queue", "POST", f"/v0/topics/{topic}/{name}", body)


@pytest.mark.parametrize("path", ["jobs", "work?node=w"])
def test_only_queues_have_jobs_to_show(api: Api, topic: str, path: str):
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}/{path}")
    api.put(topic)
    api.refused(409, "not_a_queue", "GET", f"/v0/topics/{topic}/{path}")


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("claim", {}, "node"),
        ("claim", {"node": ""}, "node"),
        ("claim", {"node": "x" * 129}, "node"),
        ("claim", {"node": 7}, "node"),
        ("claim", {"node": "w", "max": "all"}, "max"),
        ("claim", {"node": "w", "max": -1}, "max"),
        ("claim", {"node": "w", "max": 2**64}, "max"),
        ("claim", {"node": "w", "lease_ms": 1.5}, "lease_ms"),
        ("ack", {"seqs": [1]}, "node"),
        ("ack", {"node": "w"}, "seqs"),
        ("ack", {"node": "w", "seqs": []}, "seqs"),
        ("ack", {"node": "w", "seqs": ["1"]}, "seqs[0]"),
        ("ack", {"node": "w", "seqs": [2**64]}, "seqs"),
        ("ack", {"node": "w", "seqs": [1], "lease_ids": []}, "lease_ids"),
        ("nack", {"node": "w", "seqs": [1], "delay_ms": -1}, "delay_ms"),
        ("extend", {"node": "w", "seqs": [1]}, "lease_ms"),
        ("extend", {"node": "w", "seqs": [1], "progress": {"share": 1.1}}, "progress.share"),
        ("extend", {"node": "w", "seqs": [1], "progress": {"share": -0.1}}, "progress.share"),
        ("extend", {"node": "w", "seqs": [1], "progress": {"share": 1, "text": "é" * 129}}, "progress.text"),
        ("redrive", {}, "dead_letter"),
        ("redrive", {"dead_letter": "no/name"}, "dead_letter"),
    ],
)
def test_bad_requests_name_the_field(api: Api, jobs: str, name: str, body: dict[str, Any], field: str):
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{jobs}/{name}", body)
    assert error["detail"]["field"] == field


@pytest.mark.parametrize("name", ["ack", "nack", "extend"])
def test_more_seqs_than_a_claim_can_give_are_refused(api: Api, jobs: str, name: str):
    body = {"node": "w", "seqs": list(range(1001)), "lease_ms": 100}
    api.refused(400, "batch_too_large", "POST", f"/v0/topics/{jobs}/{name}", body)


def test_claims_and_leases_are_clamped(api: Api, jobs: str):
    api.append(jobs, [{"data": 1}] * 1001, disable_backpressure=True)
    answer = claim(api, jobs, max=4_000_000_000, lease_ms=0)
    assert (answer["count"], answer["ready"]) == (1000, 1)
    assert answer["claimed"][0]["deadline"] - now_ms() <= 100
    assert claim(api, jobs, max=0)["count"] == 1
    far = verb(api, jobs, "extend", node="w", seqs=[1001], lease_ms=10**15)["deadlines"].get("1001")
    assert far is None or far <= now_ms() + 86_400_000


def test_job_terms_are_checked(api: Api, jobs: str):
    for record in ({"priority": 10}, {"priority": "high"}, {"delay_ms": -1}, {"deliver_at": 2**60}):
        api.refused(400, "invalid_request", "POST", f"/v0/topics/{jobs}", {"records": [{"data": 1} | record]})
    both = {"records": [{"data": 1, "delay_ms": 1, "deliver_at": 1}]}
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{jobs}", both)


def test_waiting_claim_is_answered_as_soon_as_a_job_arrives(api: Api, jobs: str):
    waiting = Background(lambda: claim(api, jobs, wait_ms=20_000))
    api.write(jobs, "now")
    assert [job["data"] for job in waiting.result()["claimed"]] == ["now"]


def test_a_claim_that_waits_sees_what_time_and_others_give_back(api: Api, jobs: str):
    api.append(jobs, [{"data": "late", "delay_ms": 150}, {"data": "short"}, {"data": "nacked"}])
    claim(api, jobs, node="short", lease_ms=100)
    claim(api, jobs, node="nacker")
    first, second = together(
        lambda: claim(api, jobs, wait_ms=20_000, lease_ms=60_000),
        lambda: claim(api, jobs, wait_ms=20_000, lease_ms=60_000),
    )
    got = {job["data"] for answer in (first, second) for job in answer["claimed"]}
    assert got == {"late", "short"}
    third = Background(lambda: claim(api, jobs, wait_ms=20_000))
    verb(api, jobs, "nack", node="nacker", seqs=[3])
    assert [job["data"] for job in third.result()["claimed"]] == ["nacked"]


def test_a_claim_that_waited_in_vain_is_answered_with_nothing(api: Api, jobs: str):
    began = time.monotonic()
    answer = claim(api, jobs, wait_ms=60)
    assert (answer["claimed"], answer["count"]) == ([], 0)
    assert time.monotonic() - began >= 0.05


def test_waiting_claim_at_a_deleted_queue_is_refused(api: Api, jobs: str):
    path = f"/v0/topics/{jobs}/claim"
    waiting = Background(lambda: api.call("POST", path, {"node": "w", "wait_ms": 20_000}))
    time.sleep(0.05)
    api.drop(jobs)
    failed(waiting.result(), 404, "topic_not_found")


def _in_one_moment(api: Api, calls: list[tuple[str, Any]]) -> list[Any]:
    """Send requests on open connections, one right after the other. Then return their answers."""
    with ExitStack() as opened:
        url = api.http.base_url
        connections = [
            opened.enter_context(closing(HTTPConnection(url.host, url.port or 80, timeout=WAIT_S))) for _ in calls
        ]
        for connection in connections:
            connection.connect()
        for connection, (path, body) in zip(connections, calls, strict=True):
            connection.request("POST", path, json.dumps(body), JSON_HEADERS)
        return [json.load(connection.getresponse()) for connection in connections]


def test_claims_within_the_window_share_evenly(api: Api, topic: str):
    api.put(topic, type="queue", claim_jitter_ms=300)
    api.append(topic, [{"data": n} for n in range(9)])
    answers = _in_one_moment(api, [(f"/v0/topics/{topic}/claim", {"node": node, "max": 9}) for node in "abc"])
    assert [answer["count"] for answer in answers] == [3, 3, 3]
    seqs = [job["$seq"] for answer in answers for job in answer["claimed"]]
    assert sorted(seqs) == list(range(1, 10))


def test_progress_is_shown_while_the_lease_lasts(api: Api, jobs: str):
    api.append(jobs, [{"data": 1}, {"data": 2}])
    first, _ = claim(api, jobs, max=2, lease_ms=60_000)["claimed"]
    progress = {"share": 0.4, "text": "page 4 of 10"}
    answer = verb(api, jobs, "extend", node="w", seqs=[1, 9], progress=progress)
    assert (answer["extended"], answer["skipped"]) == (1, [9])
    assert answer["deadlines"] == {"1": first["deadline"]}, "the lease stays as it is"
    listed = api.get(f"/v0/topics/{jobs}/jobs")["jobs"]
    assert [job.get("progress") for job in listed] == [progress, None]
    verb(api, jobs, "nack", node="w", seqs=[1])
    claim(api, jobs)
    assert all("progress" not in job for job in api.get(f"/v0/topics/{jobs}/jobs")["jobs"]), "it is another lease"


def test_jobs_are_listed_page_by_page(api: Api, jobs: str):
    api.append(jobs, [{"data": n, "tag": f"t{n}"} for n in range(5)] + [{"data": 5, "delay_ms": 60_000}])
    claim(api, jobs, max=2)
    path = f"/v0/topics/{jobs}/jobs"
    page = api.get(path, page_size=2)
    assert [job["state"] for job in page["jobs"]] == ["in_flight", "in_flight"]
    assert (page["ready"], page["in_flight"], page["delayed"]) == (3, 2, 1)
    ready: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.get(path, state="ready", page_size=2, **cursor)
        ready += page["jobs"]
        if "next_cursor" not in page:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert [job["$tag"] for job in ready] == ["t2", "t3", "t4"]
    assert [job["data"] for job in api.get(path, state="delayed")["jobs"]] == [5]
    api.refused(400, "invalid_request", "GET", path, params={"state": "lost"})
    api.refused(400, "invalid_request", "GET", path, params={"cursor": "eyJhZnRlciI6ImEifQ=="})


def test_dead_letters_go_and_come_back_over_http(api: Api, topic: str):
    dead = f"{topic}.dead"
    api.put(topic, type="queue", max_deliveries=1, dead_letter=dead)
    api.write(topic, "bad", tag="x")
    claim(api, topic)
    verb(api, topic, "nack", node="w", seqs=[1])
    assert claim(api, topic)["count"] == 0
    assert eventually(lambda: api.state(topic)["queue"]["dead_lettered"], lambda n: n == 1)
    [letter] = api.diff(dead)["records"]
    assert letter["meta"]["$dead_letter_from"] == topic
    seen = verb(api, topic, "redrive", match=["tag", "Glob", "x*"], dry_run=True)
    assert (seen["redriven"], seen["dry_run"], seen["dead_letter"]) == (1, True, dead)
    assert verb(api, topic, "redrive")["redriven"] == 1
    [again] = claim(api, topic)["claimed"]
    assert (again["data"], again["deliveries"]) == ("bad", 1)


def test_many_workers_at_once_get_every_job_exactly_once(api: Api, jobs: str):
    api.append(jobs, [{"data": n} for n in range(200)])
    done: list[int] = []
    lock = threading.Lock()

    def work(node: str) -> None:
        while got := claim(api, jobs, node=node, max=7, lease_ms=60_000)["claimed"]:
            seqs = [job["$seq"] for job in got]
            assert verb(api, jobs, "ack", node=node, seqs=seqs)["acked"] == len(seqs)
            with lock:
                done.extend(seqs)

    together(*(lambda node=node: work(node) for node in "abcdef"))
    assert sorted(done) == list(range(1, 201))
    assert api.state(jobs)["queue"] == {"ready": 0, "in_flight": 0, "dead_lettered": 0, "delayed": 0}


def test_half_a_surrogate_pair_survives_dead_letters_and_redrive(api: Api, topic: str):
    """Legal JSON, which records keep token for token, though it denotes no text."""
    dead = f"{topic}.dead"
    api.put(topic, type="queue", max_deliveries=1, dead_letter=dead)
    record = rb'{"data":"cut \ud83d here","meta":{"k\ud83d":"\udc00"}}'
    succeeded(api.call("POST", f"/v0/topics/{topic}", raw=b'{"records":[%b]}' % record))

    def text(name: str) -> bytes:
        return api.call("POST", f"/v0/topics/{name}/diff", {"from_seq": 0}).content

    verb(api, topic, "nack", node="w", seqs=[claim(api, topic)["claimed"][0]["$seq"]])
    assert claim(api, topic)["claimed"] == []
    letter = text(dead)
    assert rb'"data":"cut \ud83d here"' in letter
    assert rb'"k\ud83d":"\udc00"' in letter
    assert b'"$dead_letter_src_seq":1' in letter
    assert verb(api, topic, "redrive")["redriven"] == 1
    assert rb'"data":"cut \ud83d here","meta":{"k\ud83d":"\udc00"}}' in text(topic)


def test_redrive_from_past_the_head_answers_and_the_server_goes_on(api: Api, topic: str):
    api.put(topic, type="queue", dead_letter=f"{topic}.dead")
    api.put(f"{topic}.dead")
    answer = verb(api, topic, "redrive", from_seq=1)
    assert (answer["redriven"], answer["next_from_seq"], answer["caught_up"]) == (0, 0, True)
    api.write(f"{topic}.dead", 1, 2)
    answer = verb(api, topic, "redrive", from_seq=2**64 - 1)
    assert (answer["redriven"], answer["next_from_seq"], answer["caught_up"]) == (0, 2, True)
    api.write(topic, 1)
    assert claim(api, topic)["count"] == 1


def test_retry_policy_delays_a_nack_without_a_delay(api: Api, topic: str):
    answer = api.put(topic, type="queue", retry={"min_ms": 60_000, "jitter": 0, "max_ms": 90_000})
    assert answer["config"]["retry"] == {"min_ms": 60_000, "max_ms": 90_000, "factor": 2.0, "jitter": 0.0}
    api.write(topic, 1, 2, 3)
    claim(api, topic, max=3)
    for body in ({"seqs": [1]}, {"seqs": [2], "delay_ms": 0}):
        verb(api, topic, "nack", node="w", **body)
    [again] = claim(api, topic)["claimed"]
    assert (again["$seq"], again["deliveries"]) == (2, 2)
    verb(api, topic, "nack", node="w", seqs=[2, 3])
    due = [job["deliver_at"] for job in api.get(f"/v0/topics/{topic}/jobs", state="delayed")["jobs"]]
    assert 29_000 <= due[1] - due[2] <= 30_000
    assert api.put(topic, retry=None)["config"]["retry"] is None


@pytest.mark.parametrize(("asks", "delayed"), [({}, 0), ({"retry": True}, 1)])
def test_worker_may_ask_for_the_default_policy(api: Api, jobs: str, asks: dict[str, Any], delayed: int):
    api.write(jobs, 1)
    claim(api, jobs)
    verb(api, jobs, "nack", node="w", seqs=[1], **asks)
    assert api.state(jobs)["queue"]["delayed"] == delayed


@pytest.mark.parametrize(
    ("retry", "field"),
    [
        ({"factor": 0.5}, "retry.factor"),
        ({"jitter": 2}, "retry.jitter"),
        ({"min_ms": 5_000, "max_ms": 1_000}, "retry.max_ms"),
        ({"max_ms": 86_400_001}, "retry.max_ms"),
    ],
)
def test_invalid_retry_policy_names_the_field(api: Api, topic: str, retry: dict[str, Any], field: str):
    refused = api.call("PUT", f"/v0/topics/{topic}", {"type": "queue", "retry": retry})
    assert failed(refused, 400, "invalid_request")["detail"]["field"] == field


def test_reason_of_a_nack_may_come_from_its_error(api: Api, jobs: str):
    api.write(jobs, 1)
    claim(api, jobs)
    verb(api, jobs, "nack", node="w", seqs=[1], error={"type": "KeyError", "message": "'to'"})
    [again] = claim(api, jobs)["claimed"]
    [reason] = again["reasons"]
    assert (reason["reason"], reason["delivery"], reason["node"]) == ("KeyError: 'to'", 1, "w")


@pytest.mark.parametrize(
    ("more", "field"), [({"reason": "ä" * 2049}, "reason"), ({"error": {"message": "x", "stack": "y" * 8192}}, "error")]
)
def test_reason_that_is_too_long_is_refused(api: Api, jobs: str, more: dict[str, Any], field: str):
    api.write(jobs, 1)
    claim(api, jobs)
    refused = api.call("POST", f"/v0/topics/{jobs}/nack", {"node": "w", "seqs": [1], **more})
    assert failed(refused, 400, "invalid_request")["detail"]["field"] == field
    assert api.state(jobs)["queue"]["in_flight"] == 1


def test_new_queue_with_safe_defaults_rejects_and_keeps_its_leases(api: Api, topic: str):
    assert (answer := api.put(topic, type="queue", defaults="safe", cap_records=5))["created"]
    assert (answer["config"]["discard"], answer["config"]["leases_durable"]) == ("reject", True)
    assert "warnings" not in answer
    assert api.put(topic, defaults="safe", discard="old")["config"]["discard"] == "old"
    assert api.put(topic, defaults="safe")["config"]["discard"] == "old"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_deliveries": 3}, "max_deliveries has no effect"),
        ({"dead_letter": "dead"}, "dead_letter has no effect"),
        ({"cap_bytes": 1000}, "also leased ones"),
        ({"retry": {}}, "a restart forgets"),
        ({"max_deliveries": 3, "dead_letter": "dead"}, "a restart forgets"),
    ],
)
def test_answer_warns_of_what_a_configuration_does_not_do(api: Api, topic: str, config: dict[str, Any], words: str):
    [warning] = api.put(topic, type="queue", **config)["warnings"]
    assert words in warning


def test_logs_and_plain_queues_get_no_warnings_and_no_safe_defaults(api: Api, topic: str):
    plain = api.put(f"{topic}.queue", type="queue")
    log = api.put(topic, defaults="safe", cap_records=5)
    assert ("warnings" in plain, plain["config"]["discard"], plain["config"]["leases_durable"]) == (False, "old", False)
    assert ("warnings" in log, log["config"]["discard"]) == (False, "old")


def test_claim_that_waits_at_a_paused_queue_is_served_when_it_resumes(api: Api, jobs: str):
    api.put(jobs, paused=True)
    waiting = Background(lambda: claim(api, jobs, wait_ms=20_000))
    api.write(jobs, 1)
    assert claim(api, jobs)["count"] == 0
    assert api.state(jobs)["config"]["paused"] is True
    api.put(jobs, paused=False)
    assert waiting.result()["count"] == 1


def test_claim_that_waits_gets_the_place_of_a_job_that_ends(api: Api, jobs: str):
    api.put(jobs, max_in_flight=1)
    api.write(jobs, 1, 2, 3)
    claim(api, jobs, max=3)
    waiting = Background(lambda: claim(api, jobs, node="v", wait_ms=20_000))
    assert claim(api, jobs)["count"] == 0
    verb(api, jobs, "ack", node="w", seqs=[1])
    assert [job["$seq"] for job in waiting.result()["claimed"]] == [2]
    api.call("POST", f"/v0/topics/{jobs}/delete", {"seqs": [2]})
    extended = verb(api, jobs, "extend", node="v", seqs=[2], lease_ms=1000)
    assert (extended["extended"], extended["cancelled"]) == (0, [2])
    assert verb(api, jobs, "ack", node="v", seqs=[2])["cancelled"] == [2]


def test_jobs_of_a_key_are_claimed_one_after_the_other(api: Api, jobs: str):
    api.append(jobs, [{"data": 1, "key": "a"}, {"data": 2, "key": "a"}, {"data": 3}])
    assert [job.get("$key") for job in claim(api, jobs, max=9)["claimed"]] == ["a", None]
    assert api.state(jobs)["queue"] == {"ready": 1, "in_flight": 2, "dead_lettered": 0, "delayed": 0, "blocked": 1}
    waiting = Background(lambda: claim(api, jobs, node="v", wait_ms=20_000))
    verb(api, jobs, "ack", node="w", seqs=[1])
    assert [job["data"] for job in waiting.result()["claimed"]] == [2]
    listed = succeeded(api.call("POST", f"/v0/topics/{jobs}/diff", {"include_tags": True}))["records"]
    assert [record.get("$key") for record in listed] == ["a", None]


def test_second_unique_job_gets_the_seq_of_the_first(api: Api, jobs: str):
    record = {"data": 1, "unique": {"key": "k"}}
    assert api.append(jobs, [record])["deduped"] is False
    again = api.append(jobs, [{"data": 2, "unique": {"key": "k", "for": 60_000}}])
    assert (again["first_seq"], again["last_seq"], again["deduped"]) == (1, 1, True)
    for wrong, field in (([record, record], "records"), ([{"data": 1, "unique": {"key": "k", "for": "ever"}}], None)):
        error = failed(api.call("POST", f"/v0/topics/{jobs}", {"records": wrong}), 400, "invalid_request")
        assert field is None or error["detail"]["field"] == field


def test_claim_that_waits_is_served_when_there_is_a_token(api: Api, jobs: str):
    api.put(jobs, rate={"per_s": 5})
    api.write(jobs, 1, 2, 3)
    claim(api, jobs)
    began = time.monotonic()
    waiting = [Background(lambda: claim(api, jobs, node="v", wait_ms=20_000)) for _ in range(2)]
    assert [one.result()["count"] for one in waiting] == [1, 1]
    assert 0.3 < time.monotonic() - began < 10
    refused = failed(api.call("PUT", f"/v0/topics/{jobs}", {"rate": {"per_s": 0}}), 400, "invalid_request")
    assert refused["detail"]["field"] == "rate"
