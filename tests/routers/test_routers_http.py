"""Routers as a client meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess, StartServer
from tests.contract.api import Api, data, eventually, succeeded

Connect = Callable[[ServerProcess], Api]


@pytest.fixture(scope="module", params=["memory", "disk"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory: Path = tmp_path_factory.mktemp("routers")
    server = ServerProcess(directory, {} if request.param == "memory" else {"data_dir": directory / "data"})
    client = Api(server.url)
    yield client
    client.close()
    server.stop()


@pytest.fixture
def connect() -> Iterator[Connect]:
    clients: list[Api] = []

    def open_client(server: ServerProcess) -> Api:
        clients.append(Api(server.url))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Topic names that belong to one test."""
    prefix = "".join(part[0] for part in request.node.originalname.split("_")) + "."
    return lambda name: prefix + name


def put(api: Api, router: str, source: str, dest: str, **fields: Any) -> Any:
    return succeeded(api.call("PUT", f"/v0/routers/{router}", {"source": source, "dest": dest} | fields))


def get(api: Api, router: str) -> Any:
    return api.get(f"/v0/routers/{router}")


def caught_up(api: Api, router: str) -> Any:
    return eventually(lambda: get(api, router), lambda seen: seen["lag"] == 0)


def test_new_router_answers_201_and_creates_both_topics(api: Api, names: Callable[[str], str]) -> None:
    source, dest = names("orders"), names("audit")
    answer = api.call("PUT", f"/v0/routers/{source}-%3E{dest}", {"source": source, "dest": dest})
    assert answer.status_code == 201
    body = answer.json()
    del body["performance"]
    assert body == {
        "router": f"{source}->{dest}", "created": True, "source": source, "dest": dest, "preserve_node": True,
        "preserve_tag": True, "filter": None, "allow_cycle": False, "guarantee": "at_least_once", "forwarded_total": 0,
        "cursor": 0, "lag": 0, "last_error": None,
    }  # fmt: skip
    assert api.state(source)["head_seq"] == api.state(dest)["head_seq"] == 0


def test_the_same_put_again_changes_nothing_and_a_changed_one_applies(api: Api, names: Callable[[str], str]) -> None:
    a, b = names("a"), names("b")
    assert put(api, names("r"), a, b)["created"]
    again = api.call("PUT", f"/v0/routers/{names('r')}", {"source": a, "dest": b})
    assert (again.status_code, again.json()["created"]) == (200, False)
    changed = put(api, names("r"), a, b, filter="x")
    assert (changed["created"], changed["filter"]) == (False, ["tag", "Eq", "x"])


def test_records_arrive_in_order_with_node_tag_and_meta(api: Api, names: Callable[[str], str]) -> None:
    a, b = names("a"), names("b")
    put(api, names("r"), a, b)
    api.append(a, [{"data": {"n": 1}, "tag": "t", "node": "n1", "meta": {"m": 1}}, {"data": [2.50]}])
    seen = caught_up(api, names("r"))
    assert (seen["forwarded_total"], seen["cursor"]) == (2, 2)
    first, second = api.diff(b, include_tags=True)["records"]
    assert (first["data"], first["$tag"], first["$node"], first["meta"]) == ({"n": 1}, "t", "n1", {"m": 1})
    assert (second["$seq"], second["data"]) == (2, [2.5])
    assert not {"$tag", "$node", "meta"} & second.keys()


def test_node_and_tag_can_be_left_behind(api: Api, names: Callable[[str], str]) -> None:
    a, b = names("a"), names("b")
    put(api, names("r"), a, b, preserve_node=False, preserve_tag=False)
    api.append(a, [{"data": 1, "tag": "t", "node": "n1", "meta": {"m": 1}}])
    caught_up(api, names("r"))
    [copy] = api.diff(b, include_tags=True, node="n1")["records"]
    assert copy["meta"] == {"m": 1}
    assert not {"$tag", "$node"} & copy.keys()


def test_a_filter_lets_only_its_tags_through(api: Api, names: Callable[[str], str]) -> None:
    a, b = names("a"), names("b")
    put(api, names("r"), a, b, filter=["tag", "Glob", "public:*"])
    api.append(
        a, [{"data": 1, "tag": "public:1"}, {"data": 2, "tag": "private"}, {"data": 3}, {"data": 4, "tag": "public:2"}]
    )
    assert caught_up(api, names("r"))["forwarded_total"] == 2
    assert data(api.diff(b)) == [1, 4]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"dest": "b"}, "source"),
        ({"source": "a"}, "dest"),
        ({"source": "a", "dest": "a"}, "dest"),
        ({"source": "a/b", "dest": "b"}, "source"),
        ({"source": "a", "dest": "b", "filter": ["node", "Eq", "x"]}, "filter"),
        ({"source": "a", "dest": "b", "filter": ["tag", "Glob", "x"]}, "filter"),
        ({"source": "a", "dest": "b", "guarantee": "twice"}, "guarantee"),
        ({"source": "a", "dest": "b", "from_seq": -1}, "from_seq"),
        ({"source": "a", "dest": "b", "from_seq": 1, "from_ts": 1}, "from_ts"),
        ({"source": "a", "dest": "b", "from_seq": 2**64}, "from_seq"),
    ],
)
def test_a_bad_router_is_refused_with_the_field_at_fault(api: Api, body: dict[str, Any], field: str) -> None:
    assert api.refused(400, "invalid_request", "PUT", "/v0/routers/bad", body)["detail"]["field"] == field


def test_a_bad_name_is_refused(api: Api) -> None:
    api.refused(400, "invalid_request", "PUT", "/v0/routers/-x", {"source": "a", "dest": "b"})


def test_missing_destination_without_create_dest_is_404(api: Api, names: Callable[[str], str]) -> None:
    body = {"source": names("a"), "dest": names("b"), "create_dest": False}
    api.refused(404, "topic_not_found", "PUT", f"/v0/routers/{names('r')}", body)
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{names('a')}")


def test_a_second_source_into_one_destination_is_refused(api: Api, names: Callable[[str], str]) -> None:
    a, b, c = names("a"), names("b"), names("c")
    put(api, names("r1"), a, c)
    error = api.refused(409, "topic_exists_incompatible", "PUT", f"/v0/routers/{names('r2')}", {"source": b, "dest": c})
    assert error["detail"]["reason"] == "router_dest_fan_in"
    assert put(api, names("r2"), a, c, filter="x")["created"]


def test_a_cycle_is_refused_and_shown(api: Api, names: Callable[[str], str]) -> None:
    a, b, c = names("a"), names("b"), names("c")
    put(api, names("ab"), a, b)
    put(api, names("bc"), b, c)
    body = {"source": c, "dest": a}
    assert api.refused(409, "router_cycle", "PUT", f"/v0/routers/{names('ca')}", body)["detail"]["cycle"] == [
        c,
        a,
        b,
        c,
    ]
    assert put(api, names("ca"), c, a, allow_cycle=True)["created"]
    error = api.refused(409, "router_cycle", "PUT", f"/v0/routers/{names('ca')}", body)
    assert error["detail"]["cycle"] == [c, a, b, c], "taking the permission back would leave a cycle"


def test_three_nodes_see_each_other_and_never_themselves(api: Api, names: Callable[[str], str]) -> None:
    topics = [names("a"), names("b"), names("c")]
    ring = list(zip(topics, [*topics[1:], topics[0]], strict=True))
    for source, dest in ring:
        put(api, f"{source}-{dest}", source, dest, allow_cycle=True)
    for number in range(5):
        for topic in topics:
            api.write(topic, f"{topic} {number}", node=topic)
    for topic in topics:
        wanted = sorted(f"{other} {number}" for other in topics if other != topic for number in range(5))

        def heard(topic: str = topic) -> list[str]:
            return sorted(data(api.diff(topic, node=topic)))

        eventually(heard, lambda seen, wanted=wanted: len(seen) >= len(wanted))  # type: ignore[misc]
        assert heard() == wanted
    for source, dest in ring:
        caught_up(api, f"{source}-{dest}")
    assert [api.state(topic)["head_seq"] for topic in topics] == [15, 15, 15], "every record passes every topic once"


def test_a_full_destination_holds_the_cursor_and_nothing_is_lost(api: Api, names: Callable[[str], str]) -> None:
    a, b = names("a"), names("b")
    api.put(b, cap_records=2, discard="reject")
    put(api, names("r"), a, b)
    api.write(a, 1, 2, 3, 4)
    held = eventually(lambda: get(api, names("r")), lambda seen: seen["last_error"])
    assert (held["cursor"], held["lag"], held["forwarded_total"]) == (2, 2, 2)
    assert held["last_error"].startswith("topic_full")
    assert f'topics_router_held{{router="{names("r")}"}} 1' in api.call("GET", "/v0/metrics").text
    api.delete(b, before_seq=3)
    assert caught_up(api, names("r"))["last_error"] is None
    assert data(api.diff(b)) == [3, 4]


def test_copy_that_is_too_large_is_a_tombstone_and_blocks_nothing(api: Api, names: Callable[[str], str]) -> None:
    a, b, c = names("a"), names("b"), names("c")
    api.put(b, cap_bytes=200)
    put(api, names("ab"), a, b)
    put(api, names("bc"), b, c)
    api.write(a, 1)
    api.write(a, "x" * 400)
    api.write(a, 2)
    caught_up(api, names("ab"))
    caught_up(api, names("bc"))
    for topic, reason in ((b, "cap"), (c, "source_trim")):
        assert data(api.diff(topic)) == [1]
        page = api.diff(topic, from_seq=1)
        assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (2, 2)
        assert page["tombstone"]["reason"] == reason
        assert data(page) == [2]


def test_records_lost_before_forwarding_are_a_source_trim_tombstone(api: Api, names: Callable[[str], str]) -> None:
    a, b = names("a"), names("b")
    api.put(a, cap_records=2)
    api.put(b, cap_records=1, discard="reject")
    put(api, names("r"), a, b)
    api.write(a, 1)
    caught_up(api, names("r"))
    api.write(a, 2)
    api.write(a, 3)
    api.write(a, 4)
    api.write(a, 5)
    api.delete(b, before_seq=2)
    api.put(b, cap_records=0)
    caught_up(api, names("r"))
    page = api.diff(b, from_seq=1)
    assert page["tombstone"]["reason"] == "source_trim"
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (2, 3)
    assert data(page) == [4, 5]


def test_exactly_once_stamps_copies_and_a_replay_adds_none_twice(api: Api, names: Callable[[str], str]) -> None:
    a, b = names("a"), names("b")
    put(api, names("r"), a, b, guarantee="exactly_once")
    api.append(a, [{"data": 1}, {"data": 2, "meta": {"m": 1}}, {"data": 3, "meta": {}}])
    caught_up(api, names("r"))
    records = api.diff(b)["records"]
    stamp = records[1]["meta"]["_topics_router"]
    assert (stamp["router"], stamp["source"], stamp["seq"]) == (names("r"), a, 2)
    assert stamp["epoch"] == api.diff(a)["epoch"]
    assert records[1]["meta"]["m"] == 1
    assert len({record["meta"]["_topics_router"]["key"] for record in records}) == 3
    api.delete(b, before_seq=2)  # with the record goes the evidence
    succeeded(api.call("DELETE", f"/v0/routers/{names('r')}"))
    put(api, names("r"), a, b, guarantee="exactly_once", from_seq=0)
    caught_up(api, names("r"))
    assert data(api.diff(b)) == [2, 3, 1]


def test_router_begins_at_the_head_or_at_its_from_seq(api: Api, names: Callable[[str], str]) -> None:
    a = names("a")
    api.write(a, 1, 2)
    between = api.write(a, 3)
    third = api.diff(a, from_seq=between["last_seq"] - 1)["records"][0]["$ts"]
    for name, fields in {
        "head": {},
        "all": {"from_seq": 0},
        "one": {"from_seq": 1},
        "ts": {"from_ts": third + 10_000},
    }.items():
        put(api, names(name), a, names("d" + name), **fields)
    api.write(a, 4)
    seen = {
        name: (caught_up(api, names(name)), data(api.diff(names("d" + name))))[1]
        for name in ("head", "all", "one", "ts")
    }
    assert seen == {"head": [4], "all": [1, 2, 3, 4], "one": [2, 3, 4], "ts": [4]}


def test_preview_counts_without_forwarding(api: Api, names: Callable[[str], str]) -> None:
    a, b = names("a"), names("b")
    put(api, names("r"), a, b, filter="none")
    api.append(a, [{"data": n, "tag": tag} for n, tag in enumerate(["x:1", "y", "x:2", "x:3"])])
    api.delete(a, match="x:3")
    path = f"/v0/routers/{names('r')}/preview"
    seen = succeeded(api.call("POST", path, {"filter": ["tag", "Glob", "x:*"]}))
    assert (seen["matched"], seen["scanned"], seen["first_seq"], seen["last_seq"]) == (2, 3, 1, 3)
    assert succeeded(api.call("POST", path, {}))["matched"] == 0
    unborn = succeeded(api.call("POST", "/v0/routers/unborn/preview", {"source": a, "from_seq": 1}))
    assert (unborn["matched"], unborn["first_seq"]) == (2, 2)
    api.refused(404, "router_not_found", "POST", "/v0/routers/unborn/preview", {})
    api.refused(404, "topic_not_found", "POST", "/v0/routers/unborn/preview", {"source": names("nobody")})
    api.refused(400, "invalid_request", "POST", path, {"filter": 1})
    assert api.state(b)["head_seq"] == 0


def test_lists_are_filtered_and_paged(api: Api, names: Callable[[str], str]) -> None:
    for dest in ("b", "c", "d"):
        put(api, names("r" + dest), names("a"), names(dest))
    put(api, names("x"), names("q"), names("z"))
    page = api.get("/v0/routers", prefix=names("r"), page_size=2)
    assert [row["router"] for row in page["routers"]] == [names("rb"), names("rc")]
    rest = api.get("/v0/routers", prefix=names("r"), page_size=2, cursor=page["next_cursor"])
    assert [row["router"] for row in rest["routers"]] == [names("rd")]
    assert "next_cursor" not in rest
    assert [row["dest"] for row in api.get("/v0/routers", source=names("q"))["routers"]] == [names("z")]
    assert [row["router"] for row in api.get("/v0/routers", dest=names("c"))["routers"]] == [names("rc")]
    api.refused(400, "invalid_request", "GET", "/v0/routers", params={"cursor": "%%%"})


def test_a_dropped_router_stops_and_leaves_its_copies(api: Api, names: Callable[[str], str]) -> None:
    a, b = names("a"), names("b")
    put(api, names("r"), a, b)
    api.write(a, 1)
    caught_up(api, names("r"))
    path = f"/v0/routers/{names('r')}"
    assert succeeded(api.call("DELETE", path))["deleted"] is True
    assert succeeded(api.call("DELETE", path))["deleted"] is False
    api.refused(404, "router_not_found", "GET", path)
    api.write(a, 2)
    assert data(api.diff(b)) == [1]


def test_a_topic_takes_its_routers_with_it(api: Api, names: Callable[[str], str]) -> None:
    a, b, c = names("a"), names("b"), names("c")
    put(api, names("ab"), a, b)
    put(api, names("bc"), b, c)
    put(api, names("ad"), a, names("d"))
    assert api.drop(b)["routers_removed"] == [names("ab"), names("bc")]
    assert api.drop(c)["routers_removed"] == []
    api.refused(404, "router_not_found", "GET", f"/v0/routers/{names('ab')}")
    api.write(a, 1)
    caught_up(api, names("ad"))
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{b}")


def test_past_max_routers_none_is_made_and_no_topic_either(start_server: StartServer, connect: Connect) -> None:
    api = connect(start_server(max_routers=1))
    put(api, "r", "a", "b")
    error = api.refused(429, "throttled", "PUT", "/v0/routers/s", {"source": "c", "dest": "d"})
    assert error["detail"]["limit"] == "max_routers"
    assert [row["topic"] for row in api.get("/v0/topics")["topics"]] == ["a", "b"]
    assert put(api, "r", "a", "b", filter="x")["created"] is False


def test_copies_of_one_write_are_limited(start_server: StartServer, connect: Connect) -> None:
    api = connect(start_server(max_copies=14))
    for level in range(3):
        for twin in "xy":
            put(api, f"{level}{twin}", f"t{level}", f"t{level + 1}")
    body = {"source": "t3", "dest": "t4"}
    error = api.refused(429, "throttled", "PUT", "/v0/routers/3x", body)
    assert (error["detail"]["limit"], error["detail"]["max"]) == ("max_copies", 14)
    assert "TOPICS_MAX_COPIES" in error["message"]
    api.refused(404, "topic_not_found", "GET", "/v0/topics/t4")
    api.refused(429, "throttled", "PUT", "/v0/routers/above", {"source": "new", "dest": "t0"})
    assert put(api, "0x", "t0", "t1")["created"] is False, "an existing router can be stored again"
    api.write("t0", 1)
    eventually(lambda: api.state("t3"), lambda state: state["count"] == 8)
    api.call("DELETE", "/v0/routers/2y")
    put(api, "3x", "t3", "t4")


def test_filters_that_exclude_each_other_count_once(start_server: StartServer, connect: Connect) -> None:
    api = connect(start_server(max_copies=8))
    for level in range(3):
        for tag in "pq":
            put(api, f"{level}{tag}", f"t{level}", f"t{level + 1}", filter=tag)
    put(api, "0x", "t0", "t1", filter=["tag", "Glob", "p*"])
    for filter in (None, "p", ["tag", "Glob", "q*"]):
        body = {"source": "t1", "dest": "t2", "filter": filter}
        assert api.refused(429, "throttled", "PUT", "/v0/routers/1x", body)["detail"]["limit"] == "max_copies"
    put(api, "1x", "t1", "t2", filter="r")


def test_one_copy_per_router_is_always_allowed(start_server: StartServer, connect: Connect) -> None:
    api = connect(start_server(max_copies=2))
    for at in range(5):
        put(api, f"r{at}", "a", f"b{at}")
    put(api, "again", "a", "b0", filter="x")
    api.write("a", 1)
    caught_up(api, "r4")


@pytest.mark.parametrize("dests", [150, pytest.param(1000, marks=pytest.mark.torture)])
def test_wide_fan_out_gets_every_record_in_order(api: Api, names: Callable[[str], str], dests: int) -> None:
    source = names(f"source{dests}")
    for number in range(dests):
        put(api, names(f"r{dests}-{number}"), source, names(f"d{dests}-{number}"))
    before = metric(api, "topics_wal_frames_total")
    for number in range(20):
        api.write(source, number)
    written = metric(api, "topics_wal_frames_total") - before
    for number in range(dests):
        caught_up(api, names(f"r{dests}-{number}"))
    for number in range(0, dests, 37):
        assert data(api.diff(names(f"d{dests}-{number}"))) == list(range(20))
    most = 20 + 1  # the appends, and a ceiling of the source, which slow syncs raise
    assert written <= most
    assert metric(api, "topics_wal_frames_total") - before <= most, "copies cost no write"
    api.drop(source)


def metric(api: Api, name: str) -> float:
    lines = api.call("GET", "/v0/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


def test_copies_are_there_again_after_a_kill_with_the_same_seqs(tmp_path: Path, connect: Connect) -> None:
    server = ServerProcess(tmp_path, {"data_dir": tmp_path / "data"})
    api = connect(server)
    put(api, "ab", "a", "b")
    put(api, "bc", "b", "c", filter="x")
    for number in range(50):
        api.append("a", [{"data": number, "tag": "x" if number % 3 else "y"}])
        if number % 7 == 0:
            api.write("b", f"direct {number}")
    caught_up(api, "ab")
    caught_up(api, "bc")
    seen = {topic: api.read_all(topic, include_tags=True) for topic in ("a", "b", "c")}
    server.kill()
    again = ServerProcess(tmp_path, {"data_dir": tmp_path / "data"})
    api = connect(again)
    assert {topic: api.read_all(topic, include_tags=True) for topic in ("a", "b", "c")} == seen
    assert get(api, "bc")["forwarded_total"] == len(seen["c"])
    again.stop()
