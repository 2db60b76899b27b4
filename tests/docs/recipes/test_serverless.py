"""docs/recipes/serverless.md: one invocation is one bounded read, and a killed one is repeated."""

from __future__ import annotations

from pathlib import Path

from tests.docs.recipes.conftest import Kitchen
from topics.client import NewRecord, Topics

# In front of the function: `process` waits in a file for the test.
SLOW = """

def process(record, _print=process):
    import pathlib

    _print(record)
    while record.seq == 3 and not pathlib.Path("go").exists():
        time.sleep(0.01)


if __name__"""


def fill(topics: Topics, count: int) -> None:
    topics.append_many("orders", [NewRecord(data={"id": number}) for number in range(1, count + 1)])


def mails(lines: list[str]) -> list[int]:
    return [int(line.split()[3].rstrip(":")) for line in lines if line.startswith("mail for order ")]


def test_invocations_continue_and_report_lost_records_once(kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("serverless", {"limit=100": "limit=2"})
    fill(topics, 5)
    assert mails(programs.run("function.py")) == [1, 2, 3, 4, 5]
    assert topics.consumer("orders", "mailer").lag_records == 0
    topics.put_topic("orders", cap_records=1)
    for number in (6, 7, 8):
        topics.append("orders", {"id": number})
    lost, *rest = programs.run("function.py")
    assert (lost, mails(rest)) == ("lost: orders 6 to 7 (cap)", [8])
    assert programs.run("function.py") == [], "a loss is reported once"


def test_killed_invocation_is_repeated(kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("serverless", {"\n\nif __name__": SLOW})
    fill(topics, 4)
    with programs.start("function.py") as killed:
        assert mails([killed.line() for _ in range(3)]) == [1, 2, 3]
    assert topics.consumer("orders", "mailer").seq == 0
    Path(kitchen.here / "go").touch()
    assert mails(programs.run("function.py")) == [1, 2, 3, 4]


def test_failing_record_keeps_the_position_before_it(kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("serverless", {"{record.data}": "{1 / (record.seq - 3)}"})
    fill(topics, 4)
    assert mails(programs.run("function.py", status=1)) == [1, 2]
    assert topics.consumer("orders", "mailer").seq == 2


def test_overlapping_invocation_is_detected(kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("serverless", {"\n\nif __name__": SLOW})
    fill(topics, 4)
    with programs.start("function.py") as first:
        [first.line() for _ in range(3)]
        topics.put_consumer("orders", "mailer", seq=4)  # another invocation was faster
        Path(kitchen.here / "go").touch()
        assert first.rest()[-1] == "another invocation has processed the same orders, up to 4"
    assert topics.consumer("orders", "mailer").seq == 4
