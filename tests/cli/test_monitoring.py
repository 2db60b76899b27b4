"""`topics top`, `ping`, `doctor` and `consumer` against a real server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.terminal import Cli, Terminal
from tests.conftest import ServerProcess
from tests.contract.api import eventually
from topics.cli.monitoring import doctor

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


def test_top_draws_until_it_is_interrupted(cli: Cli, api: Api) -> None:
    for topic in ("zebra", "ant"):
        api("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
    with Terminal(cli, "top", "--every", "100ms", "--filter", "zeb") as terminal:
        terminal.wait_for("Ctrl-C quits")
        terminal.type("\x03")
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


def test_doctor_finds_nothing_wrong_with_a_healthy_server(cli: Cli, api: Api, tmp_path: Path) -> None:
    done = cli.pipe("doctor", "--data-dir", str(tmp_path))
    found = {row["check"]: row for row in map(json.loads, done.lines)}
    assert done.status == 0
    assert {"settings", "descriptors", "disk", "address", "server", "version", "clock", "ready"} <= set(found)
    assert not [row for row in found.values() if row["level"] == "problem"]
    assert found["server"]["level"] == found["clock"]["level"] == "ok"


def test_doctor_warns_of_losses_and_idle_queues(cli: Cli, api: Api) -> None:
    api("PUT", "/v0/topics/leaking", {"cap_records": 1})
    api("POST", "/v0/topics/leaking", {"records": [{"data": n} for n in range(9)]})
    api("PUT", "/v0/topics/unworked", {"type": "queue"})
    api("POST", "/v0/topics/unworked", {"records": [{"data": 1}]})
    shown = cli.tty("doctor")
    assert "leaking (8)" in shown.out
    assert "unworked: 1 job ready, and no worker holds one" in shown.out
    assert "→ start a worker: `topics queue work unworked -- COMMAND`" in shown.out


def test_doctor_says_what_damage_means_and_how_to_repair_it() -> None:
    found = [*doctor._check_losses({"topics_topic_lost_records": {"orders/corrupt": 7, "orders/cap": 3, "a/b/cap": 1}})]
    assert [(row.level, row.text) for row in found] == [
        ("problem", "damaged files lost records of orders (7)"),
        ("ok", "caps evicted records of orders (3), a/b (1)"),
    ]
    assert "topics verify" in found[0].fix
    assert [row.level for row in doctor._check_losses({})] == ["ok"]


def test_ping_as_a_probe(cli: Cli, tmp_path: Path) -> None:
    for what in ("read", "write", "any"):
        done = cli.pipe("ping", "--ready", what)
        assert (done.status, json.loads(done.out)) == (0, {"ready": True, "reason": None})
    done = cli.pipe("ping", "--ready", "read", "--url", "http://127.0.0.1:1")
    assert (done.status, json.loads(done.out)["ready"]) == (1, False)
    assert "does not answer" in json.loads(done.out)["reason"]
    certs = Path(__file__).parents[1] / "server" / "http" / "certs"
    server = ServerProcess(tmp_path, {"tls_cert": certs / "one.pem", "tls_key": certs / "one.key"}, wait_ready=False)
    try:
        for scheme in ("https", "http"):  # a probe need not know
            url = f"{scheme}://127.0.0.1:{server.port}"
            assert eventually(lambda url=url: cli.pipe("ping", "--ready", "any", "--url", url).status == 0, bool)
    finally:
        server.kill()


def test_doctor_names_damage_that_no_reader_has_met() -> None:
    found = doctor._check_damage({"topics_damaged_places": 2, "topics_damaged_records": {"orders": 7}})
    assert (found.level, found.text) == ("problem", "2 damaged places in files; records at risk: orders (7)")
    assert "topics repair" in found.fix
    assert doctor._check_damage({"topics_damaged_places": 0}).level == "ok"


def test_doctor_reports_problems_with_fixes(home: Cli) -> None:
    done = home.pipe(
        "doctor", "--url", "http://127.0.0.1:1", "--data-dir", "/no/such", TOPICS_PORT="70000", TOPICS_PROT="1"
    )
    found = [json.loads(line) for line in done.lines]
    problems = {row["check"]: row for row in found if row["level"] == "problem"}
    assert (done.status, set(problems)) == (1, {"settings", "disk", "server"})
    assert all(row["fix"] for row in found if row["level"] != "ok")
    assert any("TOPICS_PROT is not a setting; did you mean TOPICS_PORT?" in row["text"] for row in found)


def test_consumers_are_set_listed_and_removed(cli: Cli, api: Api) -> None:
    api("POST", "/v0/topics/read-by", {"records": [{"data": n} for n in range(5)]})
    assert (
        "created billing of read-by at 2, 3 before the head"
        in cli.tty("consumer", "set", "read-by", "billing", "--seq", "2").out
    )
    assert json.loads(cli.pipe("consumer", "set", "read-by", "search", "--to-head", "--expire", "7d").out)["seq"] == 5
    rows = [json.loads(line) for line in cli.pipe("consumer", "ls", "read-by").lines]
    assert [(row["consumer"], row["seq"], row["lag_records"]) for row in rows] == [("billing", 2, 3), ("search", 5, 0)]
    assert cli.tty("consumer", "ls").lines[1].split()[:5] == ["read-by", "billing", "2", "5", "3"]
    assert json.loads(cli.pipe("ls", "read-by").out)["lag"] == 3
    assert cli.pipe("consumer", "set", "read-by", "billing").status == 2
    assert cli.pipe("consumer", "rm", "read-by", "billing").status == 2
    assert "is at 2" in cli.tty("consumer", "rm", "read-by", "billing", typed="y\n").out
    assert cli.pipe("consumer", "rm", "read-by", "billing", "--yes").status == 3
    assert cli.pipe("consumer", "ls", "nowhere").status == 3
