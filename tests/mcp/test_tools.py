"""`topics mcp`, as the client of the official SDK sees it: tools, resources and the prompt, over standard input."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")
import httpx
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.conftest import ServerProcess, StartServer
from tests.contract.api import eventually
from topics.client import Topics
from topics.mcp.tools import MAX_ANSWER_BYTES, READS, WRITES, bounded

READ_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("mcp"), {})
    yield running
    running.stop()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.name)) % 10**8}"


@asynccontextmanager
async def agent(
    server: ServerProcess, *options: str, token: str = "", directory: Path | None = None
) -> AsyncIterator[Client]:
    words = ["-m", "topics", "mcp", "--url", server.url, *options]
    if directory is not None:
        (directory / "agent.key").write_text(token)
        words += ["--token-file", str(directory / "agent.key")]
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    command = StdioServerParameters(command=sys.executable, args=words, env=env)
    async with Client(command, read_timeout_seconds=READ_S) as client:
        yield client


async def use(client: Client, tool: str, **arguments: Any) -> Any:
    found = await client.call_tool(tool, arguments)
    [content] = found.content
    assert not found.is_error, content.text
    assert len(content.text.encode()) <= MAX_ANSWER_BYTES
    return json.loads(content.text)


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    found = await client.call_tool(tool, arguments)
    assert found.is_error
    text: str = found.content[0].text
    return text


def test_agent_remembers_works_and_schedules(server: ServerProcess, name: str) -> None:
    memory, work = f"{name}.memory", f"{name}.work"
    with Topics(server.url) as topics:
        topics.put_topic(work, type="queue", max_deliveries=1, dead_letter=f"{name}.dead")
        topics.append(work, {"to": "ada"})
        topics.append(work, {"to": "bob"})

    async def run() -> None:
        async with agent(server) as client:
            offered = {tool.name for tool in (await client.list_tools()).tools}
            assert offered == {*READS, *WRITES}
            missing = await refused(client, "append_record", topic=memory, data=1)
            assert missing.startswith("Error executing tool append_record: topic_not_found: ")
            assert missing.endswith("; create=true makes it")
            first = await use(client, "append_record", topic=memory, data={"fact": "x"}, tag="fact", create=True)
            assert (first["first_seq"], first["created"]) == (1, True)
            await use(client, "append_record", topic=memory, data="other", tag="step")
            page = await use(client, "read_records", topic=memory, tag="fact*")
            assert [record["data"] for record in page["records"]] == [{"fact": "x"}]
            for where in ({"where": "fact = 'x'"}, {"where": "fact = 'x'", "tag": "fact"}):
                assert len((await use(client, "read_records", topic=memory, **where))["records"]) == 1
            assert not (await use(client, "read_records", topic=memory, where="fact = 'y'"))["records"]
            assert page["to_continue"] == "wait_for_records with from_seq=2"
            assert [r["$seq"] for r in (await use(client, "read_records", topic=memory, last=1))["records"]] == [2]
            waiting = asyncio.create_task(use(client, "wait_for_records", topic=memory, from_seq=2, wait_s=30))
            await use(client, "append_record", topic=memory, data=3)
            assert (await waiting)["records"][0]["data"] == 3

            done, failed = (await use(client, "claim_jobs", topic=work, worker="w", max_jobs=2))["jobs"]
            assert (await use(client, "finish_jobs", topic=work, seqs=[done["seq"]], worker="w"))["acked"] == 1
            listed = await use(client, "list_jobs", topic=work, state="in_flight")
            assert [job["$seq"] for job in listed["rows"]] == [failed["seq"]]
            await use(client, "return_jobs", topic=work, seqs=[failed["seq"]], worker="w", reason="no such address")
            dead = (await use(client, "read_records", topic=f"{name}.dead"))["records"]
            assert dead[0]["meta"]["$dead_letter_reason"] == "no such address"
            prompt = await client.get_prompt("investigate_dead_letter", {"topic": f"{name}.dead", "seq": "1"})
            assert f"{name}.dead with from_seq=0" in prompt.messages[0].content.text
            assert (await use(client, "redrive_jobs", topic=work, seqs=[1]))["redriven"] == 1

            put = await use(client, "schedule_record", name=f"{name}.daily", topic=memory, data=1, cron="0 6 * * *")
            assert put["created"] is True
            assert (await use(client, "describe_topic", topic=work))["type"] == "queue"
            [content] = (await client.read_resource(f"topics://{memory}")).contents
            assert json.loads(content.text)["topic"] == memory

    asyncio.run(run())


def test_agent_queries_with_sql(start_server: StartServer, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    server = start_server(api_keys="root")
    with Topics(server.url, token="root") as topics:
        topics.append_many("orders", [{"data": {"sku": f"s{n % 2}", "qty": n}} for n in range(10)])

    async def run() -> None:
        async with agent(server, token="root", directory=tmp_path) as client:
            query = "select data.sku as sku, sum(data.qty) as sold from orders group by 1 order by 1"
            found = await use(client, "query_sql", query=query)
            assert [(row["sku"], float(row["sold"])) for row in found["rows"]] == [("s0", 20), ("s1", 25)]
            assert len((await use(client, "query_sql", query="select * from orders", limit=3))["rows"]) == 3
            assert "nothing" in await refused(client, "query_sql", query="select nothing from orders")
            secret = tmp_path / "agent.key"
            for query in (
                f"select * from read_text('{secret}')",
                f"select * from '{secret}'",
                f"copy (select 1) to '{tmp_path}/made.csv'",
                "set enable_external_access = true; select 1",
            ):
                assert "root" not in (await refused(client, "query_sql", query=query)).replace(str(secret), "")
            assert not (tmp_path / "made.csv").exists()

    asyncio.run(run())


def test_answers_are_bounded_and_say_how_to_continue(server: ServerProcess, name: str) -> None:
    with Topics(server.url) as topics:
        topics.append_many(name, [{"data": {"n": n, "text": "ä" * 3000}} for n in range(60)])
        topics.append(name, {"text": "x" * 900_000})
        for n in range(30):
            topics.put_topic(f"{name}.{n:02}")

    async def run() -> None:
        async with agent(server) as client:
            numbers, seq, pages = [], 0, 0
            while True:
                page = await use(client, "read_records", topic=name, from_seq=seq, limit=200)
                numbers += [record["data"].get("n") for record in page["records"]]
                seq, pages = page["next_from_seq"], pages + 1
                if page["caught_up"]:
                    break
                assert page["to_continue"] == f"read_records with from_seq={seq}"
            assert numbers == [*range(60), None]
            assert pages > 2
            assert "cut: 900000 characters" in page["records"][-1]["data"]["text"]
            first = await use(client, "list_topics", prefix=f"{name}.", limit=20)
            assert first["to_continue"] == f"list_topics with after={name}.19"
            rest = await use(client, "list_topics", prefix=f"{name}.", limit=20, after=f"{name}.19")
            assert [len(first["rows"]), len(rest["rows"]), rest["to_continue"]] == [20, 10, None]

    asyncio.run(run())


@pytest.mark.parametrize("value", [{"a": list(range(100_000))}, {"a": [{"b": "x" * 500}] * 1000}, "x" * 200_000])
def test_answer_of_any_shape_is_bounded(value: Any) -> None:
    text = bounded(value)
    assert len(text.encode()) <= MAX_ANSWER_BYTES
    assert "cut:" in text
    json.loads(text)


def test_tools_have_the_rights_of_the_key(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(api_keys="root,agent-key:read:public.")
    with Topics(server.url, token="root") as topics:
        topics.append("public.news", 1)
        topics.append("secret.plans", 1)

    async def run() -> None:
        async with agent(server, "--destructive", token="agent-key", directory=tmp_path) as client:
            offered = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert offered["delete_topic"].annotations.destructive_hint
            assert offered["read_records"].annotations.read_only_hint
            assert [row["topic"] for row in (await use(client, "list_topics"))["rows"]] == ["public.news"]
            for tool, arguments in {
                "read_records": {"topic": "secret.plans"},
                "append_record": {"topic": "public.news", "data": 1},
                "delete_topic": {"topic": "public.news"},
            }.items():
                assert "forbidden" in await refused(client, tool, **arguments)
            assert "did you mean public.news" in await refused(client, "read_records", topic="public.new")

    asyncio.run(run())


def test_destructive_tools_delete_only_what_they_are_asked_for(server: ServerProcess, name: str) -> None:
    with Topics(server.url) as topics:
        topics.append_many(name, [{"data": n, "tag": f"t{n}"} for n in range(4)])

    async def run() -> None:
        async with agent(server, "--destructive") as client:
            counted = await use(client, "delete_records", topic=name, tag="t1")
            assert (counted["deleted"], counted["dry_run"]) == (1, True)
            await use(client, "delete_records", topic=name, tag="t1", dry_run=False)
            left = (await use(client, "read_records", topic=name))["records"]
            assert [record["data"] for record in left] == [0, 2, 3]
            assert (await use(client, "delete_topic", topic=name))["deleted"] is True

    asyncio.run(run())


@asynccontextmanager
async def over_http(server: ServerProcess, key: str | None = None) -> AsyncIterator[Client]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=READ_S) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http), read_timeout_seconds=READ_S) as client,
    ):
        yield client


def test_server_offers_the_tools_over_http_with_the_rights_of_the_key(start_server: StartServer) -> None:
    server = start_server(api_keys="root,agent-key:read+write:public.")
    with Topics(server.url, token="root") as topics:
        topics.append("public.news", 1)
        topics.append("secret.plans", 1)

    async def run() -> None:
        async with over_http(server, "agent-key") as client:
            offered = {tool.name for tool in (await client.list_tools()).tools}
            assert offered == {*READS, *WRITES}
            assert [row["topic"] for row in (await use(client, "list_topics"))["rows"]] == ["public.news"]
            sql = 'select data as d from "public.news"'
            assert [row["d"] for row in (await use(client, "query_sql", query=sql))["rows"]] == ["1"]
            for query in ('select * from "secret.plans"', "select * from read_text('/etc/hostname')"):
                assert "rows" not in await refused(client, "query_sql", query=query)
            waiting = asyncio.create_task(use(client, "wait_for_records", topic="public.news", from_seq=1))
            await use(client, "append_record", topic="public.news", data={"from": "the agent"})
            assert (await waiting)["records"][0]["data"] == {"from": "the agent"}
            assert "forbidden" in await refused(client, "read_records", topic="secret.plans")
        async with over_http(server, "root") as client:
            assert (await use(client, "read_records", topic="secret.plans"))["head_seq"] == 1

    asyncio.run(run())
    for fields in ({}, {"authorization": "Bearer wrong"}):
        asked = httpx.post(
            f"{server.url}/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=fields
        )
        assert asked.status_code == 401
    assert httpx.get(f"{server.url}/mcp", headers={"authorization": "Bearer root"}).status_code == 405


def test_waiting_agents_are_independent_and_end_with_their_connection(start_server: StartServer) -> None:
    server = start_server(api_keys="one::a.,two::b.", mcp_destructive="1")

    async def run() -> None:
        async with over_http(server, "one") as one, over_http(server, "two") as two:
            for client, topic in ((one, "a.t"), (two, "b.t")):
                await use(client, "append_record", topic=topic, data=0, create=True)
            waits = [
                asyncio.create_task(use(client, "wait_for_records", topic=topic, from_seq=1))
                for client, topic in ((one, "a.t"), (two, "b.t"))
            ]
            await use(two, "append_record", topic="b.t", data="two")
            assert (await waits[1])["records"][0]["data"] == "two"
            assert not waits[0].done()
            await use(one, "append_record", topic="a.t", data="one")
            assert (await waits[0])["records"][0]["data"] == "one"
            assert (await use(one, "delete_topic", topic="a.t"))["deleted"] is True

    asyncio.run(run())


@pytest.mark.torture
def test_wait_of_an_agent_that_leaves_ends(start_server: StartServer) -> None:
    """The key may have two requests in progress: that of an agent, and that of its tool."""
    server = start_server(api_keys="root", max_inflight_per_key=2)
    with Topics(server.url, token="root") as topics:
        topics.append("t", 0)
    wait = {"topic": "t", "from_seq": 1, "wait_s": 50}
    asked = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "wait_for_records", "arguments": wait},
    }
    headers = {"authorization": "Bearer root", "accept": "application/json, text/event-stream"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/mcp", json=asked, headers=headers, timeout=3)
    asked["params"] = {"name": "read_records", "arguments": {"topic": "t"}}

    def read() -> str:
        return httpx.post(f"{server.url}/mcp", json=asked, headers=headers, timeout=READ_S).text

    eventually(read, lambda text: "caught_up" in text)
