"""Records of `memory` topics come back after a kill, but nobody waits for them."""

import httpx

from tests.conftest import StartServer


def test_memory_topics_come_back_after_a_kill_and_go_on_where_they_were(start_server: StartServer, tmp_path) -> None:
    settings = {"data_dir": tmp_path / "data"}
    server = start_server(**settings)
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        for name in ("a", "b", "c"):
            client.put(f"/v0/topics/{name}", json={"durability": "memory", "cap_records": 500})
            for first in range(0, 300, 3):
                records = [{"data": first + at, "tag": "t"} for at in range(3)]
                assert client.post(f"/v0/topics/{name}", json={"records": records}).is_success
        client.post("/v0/topics/b/delete", json={"before_seq": 101})
    server.kill()

    again = start_server(**settings)
    with httpx.Client(base_url=again.url, timeout=30, trust_env=False) as client:
        written = client.post("/v0/topics/a", json={"records": [{"data": "new"}]}).json()
        assert written["first_seq"] == 301
        state = client.get("/v0/topics/b").json()
        assert (state["head_seq"], state["count"], state["earliest_seq"]) == (300, 200, 101)
        answer = client.post("/v0/topics/c/diff", json={"limit": 1000}).json()
        assert [record["data"] for record in answer["records"]] == list(range(300))
        assert answer["tombstone"] is None
    again.kill()

    third = start_server(**settings)
    with httpx.Client(base_url=third.url, timeout=30, trust_env=False) as client:
        counts = {name: client.get(f"/v0/topics/{name}").json()["count"] for name in ("a", "b", "c")}
        assert counts == {"a": 301, "b": 200, "c": 300}
