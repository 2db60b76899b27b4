"""docs/recipes/agent-log.md: an agent that is killed again and again does every step once, and its log stays short."""

from __future__ import annotations

import sys

import pytest

from tests.docs.recipes.conftest import Kitchen
from topics.client import Topics

NUMBERS = [str(number) for number in range(1, 41)]


def test_killed_agent_continues_with_its_next_step(kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("agent-log")
    calls: list[str] = []
    for stop_after in (1, 8):  # tool calls: the second run is killed after a compaction
        with programs.start("agent.py", "s1", *NUMBERS) as agent:
            calls += [agent.line() for _ in range(stop_after)]
            agent.kill()
            calls += agent.rest()
    kitchen.kill_server()
    *rest, answer = programs.run("agent.py", "s1", *NUMBERS)
    calls += rest

    assert answer == "the sum is 820"
    assert len(set(calls)) == 40, "each number was added once"
    assert len(calls) <= 42, "a tool call is repeated only where the agent was killed"
    records = list(topics.read("agent:s1"))
    assert records[0].data["type"] == "summary"  # type: ignore[union-attr]
    assert len(records) <= 12, "the log has the last summary and what follows it"
    steps = [item.data["step"] for item in records]  # type: ignore[union-attr]
    assert steps == list(range(steps[0], steps[0] + len(steps))), "no step is missing, and none is there twice"
    assert programs.run("agent.py", "s1") == ["the sum is 820"], "a task that is done stays done"
    topics.put_topic("agent:s1", cap_records=1)
    [message] = programs.run("agent.py", "s1", status=1)
    assert message.startswith("events 1 to "), "an agent does not continue without a part of its log"
    assert "(cap)" in message


def test_second_process_takes_the_steps_of_the_first(kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("agent-log")
    with (
        programs.start("agent.py", "s2", *NUMBERS) as one,
        programs.start("agent.py", "s2", *NUMBERS) as other,
    ):
        assert one.rest()[-1] == other.rest()[-1] == "the sum is 820"
    steps = [item.data["step"] for item in topics.read("agent:s2")]  # type: ignore[union-attr]
    assert steps == list(range(steps[0], steps[0] + len(steps)))


def test_assistant_answers_once_remembers_and_gives_up(kitchen: Kitchen, topics: Topics) -> None:
    """The page itself runs in the long suite. Here the assistant is killed between a claim and its answer."""
    pytest.importorskip("mcp")
    module = {'command="topics", args=["mcp"': f'command={sys.executable!r}, args=["-m", "topics", "mcp"'}
    programs = kitchen.programs("agent-log", {"lease_s=60": "lease_s=1"} | module)
    topics.put_topic("agent.questions", type="queue", max_deliveries=2, dead_letter="agent.unanswered")
    topics.put_topic("agent.memory", durability="fsync")
    topics.append("agent.questions", {"text": "how many words?"}, tag="words")
    topics.claim("agent.questions", node="assistant-0", lease_ms=1)  # of an assistant that was killed
    topics.append("agent.questions", {"text": "again?"}, tag="words")
    topics.append("agent.questions", {"text": "nonsense"}, tag="none")
    lines = programs.run("assistant.py")
    assert lines[0] == "the model gets the tools"
    assert sorted(lines[1:]) == ["again? (from memory) 3 words", "how many words? 3 words"]
    [fact] = topics.read("agent.memory")
    assert fact.data == {"question": "how many words?", "answer": "3 words"}  # type: ignore[union-attr]
    [dead] = topics.read("agent.unanswered")
    assert dead.meta["$dead_letter_reason"] == "this is not a question"  # type: ignore[union-attr]
