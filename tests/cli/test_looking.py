"""`topics top` and `topics ping` against a real server."""

import json
from collections.abc import Callable
from typing import Any

from tests.cli.terminal import Cli, Terminal

Api = Callable[..., Any]


def test_top_prints_a_line_for_each_look_in_a_pipe(cli: Cli, api: Api) -> None:
    api("PUT", "/v0/topics/lossy", {"cap_records": 1})
    api("POST", "/v0/topics/lossy", {"records": [{"data": n} for n in range(5)]})
    done = cli.pipe("top", "--count", "2", "--every", "20ms", "--filter", "lossy")
    looks = [json.loads(line) for line in done.lines]
    assert (done.status, len(looks)) == (0, 2)
    [row] = looks[1]["by_topic"]
    assert (row["topic"], row["head"], row["records"], row["lost"]) == ("lossy", 5, 1, 4)
    assert looks[1]["connections"] >= 1


def test_top_sorts_and_filters_by_keys(cli: Cli, api: Api) -> None:
    for topic in ("zebra", "ant"):
        api("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
    with Terminal(cli, "top", "--every", "100ms") as terminal:
        terminal.wait_for("s sort (rate)")
        terminal.type("s")
        terminal.wait_for("s sort (topic)")
        terminal.type("/zeb")
        terminal.wait_for("filter: zeb")
        terminal.type("\r")
        terminal.wait_for("/ filter (zeb)")
        terminal.type("q")
        assert terminal.wait() == 0
    last = terminal.seen.rpartition("topics top")[2]
    assert "zebra" in last
    assert "ant" not in last


def test_top_draws_once_and_stays_on_the_terminal(cli: Cli) -> None:
    shown = cli.tty("top", "--count", "1")
    assert (shown.status, "topics top  http" in shown.out, "log sync" in shown.out) == (0, True, True)


def test_ping_measures_and_leaves_no_topic(cli: Cli) -> None:
    done = cli.pipe("ping", "--count", "3", "--every", "1ms")
    answer = json.loads(done.out)
    assert (done.status, answer["count"]) == (0, 3)
    assert 0 < answer["ack"]["p50_ms"] <= answer["ack"]["p99_ms"] <= answer["ack"]["max_ms"]
    assert 0 < answer["delivery"]["p50_ms"] <= answer["delivery"]["max_ms"]
    assert cli.pipe("ls", "ping-").out == ""
    assert "delivered" in cli.tty("ping", "--count", "1", "--durability", "fsync").out
