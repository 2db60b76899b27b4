"""`topics queue …` and `topics router …` against a real server."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.terminal import Cli, Done, Terminal

Api = Callable[..., Any]


def rows(done: Done) -> list[Any]:
    return [json.loads(line) for line in done.lines]


def queue(api: Api, name: str, *jobs: Any, **config: Any) -> str:
    api("PUT", f"/v0/topics/{name}", {"type": "queue", **config})
    if jobs:
        api("POST", f"/v0/topics/{name}", {"records": [{"data": job, "tag": f"t{at}"} for at, job in enumerate(jobs)]})
    return name


def test_claimed_jobs_are_finished_returned_and_extended(cli: Cli, api: Api) -> None:
    queue(api, "mail", *"abcd")
    jobs = rows(cli.pipe("queue", "claim", "mail", "--max", "3", "--lease", "1m"))
    assert [(job["$seq"], job["data"], job["deliveries"]) for job in jobs] == [(1, "a", 1), (2, "b", 1), (3, "c", 1)]
    assert rows(cli.pipe("queue", "ack", "mail", "1", "99"))[0]["skipped"] == [99]
    assert "extended 1 job" in cli.tty("queue", "extend", "mail", "2", "--lease", "5m").out
    shown = cli.tty("queue", "nack", "mail", "3-4", "--delay", "1h")
    assert "returned 1 job" in shown.out
    assert "left alone: 4" in shown.out
    assert [(job["$seq"], job["state"]) for job in rows(cli.pipe("queue", "peek", "mail"))] == [
        (2, "in_flight"), (3, "delayed"), (4, "ready"),
    ]  # fmt: skip
    assert [job["$seq"] for job in rows(cli.pipe("queue", "peek", "mail", "--state", "ready"))] == [4]
    assert "in flight" in cli.tty("queue", "peek", "mail").out
    [row] = rows(cli.pipe("queue", "ls", "mail"))
    assert (row["ready"], row["in_flight"], row["delayed"]) == (1, 1, 1)
    assert cli.tty("queue", "ls", "mail").lines[1].split()[:5] == ["mail", "1", "0", "1", "1"]


def test_nack_takes_a_reason_and_peek_shows_it(cli: Cli, api: Api) -> None:
    queue(api, "failing", 1)
    cli.pipe("queue", "claim", "failing")
    cli.pipe("queue", "nack", "failing", "1", "--reason", "server is busy")
    [job] = rows(cli.pipe("queue", "peek", "failing"))
    assert [reason["reason"] for reason in job["reasons"]] == ["server is busy"]
    assert "server is busy" in cli.tty("queue", "peek", "failing").out


def test_claim_without_a_job_has_its_own_exit_status(cli: Cli, api: Api) -> None:
    queue(api, "idle")
    done = cli.pipe("queue", "claim", "idle", "--wait", "10ms")
    assert (done.status, done.out) == (3, "")
    assert "no job is ready" in done.err


def test_queue_commands_refuse_a_log(cli: Cli, api: Api) -> None:
    api("PUT", "/v0/topics/a-log", {})
    for words in (("claim", "a-log"), ("work", "a-log", "--", "true"), ("dead", "a-log"), ("redrive", "a-log")):
        done = cli.pipe("queue", *words)
        assert (done.status, "is a log, not a queue" in done.err, "queue ls" in done.err) == (1, True, True)


def test_dead_letters_are_listed_and_moved_back(cli: Cli, api: Api) -> None:
    queue(api, "sick", "x", "y", max_deliveries=1, dead_letter="sick.dead")
    assert cli.pipe("queue", "dead", "sick").out == ""
    cli.pipe("queue", "claim", "sick", "--max", "2")
    cli.pipe("queue", "nack", "sick", "1-2")
    cli.pipe("queue", "claim", "sick")
    assert [letter["data"] for letter in rows(cli.pipe("queue", "dead", "sick"))] == ["x", "y"]
    assert "redrive sick" in cli.tty("queue", "dead", "sick").out
    assert rows(cli.pipe("queue", "redrive", "sick", "--dry-run"))[0]["redriven"] == 2
    assert "needs a confirmation" in cli.pipe("queue", "redrive", "sick", "--tag", "t0").err
    assert "moved 1 dead letter back" in cli.tty("queue", "redrive", "sick", "--tag", "t0", typed="y\n").out
    assert rows(cli.pipe("queue", "redrive", "sick", "--yes"))[0]["redriven"] == 1
    assert rows(cli.pipe("queue", "dead", "sick")) == []


def test_dead_without_a_dead_letter_topic_says_how_to_set_one(cli: Cli, api: Api) -> None:
    queue(api, "plain-queue")
    done = cli.pipe("queue", "dead", "plain-queue")
    assert (done.status, "topics config plain-queue --dead-letter" in done.err) == (2, True)


# --- work


def test_work_acks_on_success_and_returns_failures(cli: Cli, api: Api, tmp_path: Path) -> None:
    queue(api, "jobs", {"n": 1}, "bad", {"n": 3})
    seen = tmp_path / "seen"
    program = (
        f'read -r line; echo "$TOPICS_SEQ $TOPICS_TAG $TOPICS_DELIVERIES $line" >> {seen}; test "$line" != \'"bad"\''
    )
    done = cli.pipe("queue", "work", "jobs", "--until-empty", "--", "sh", "-c", program)
    assert (done.status, rows(done)) == (1, [{"topic": "jobs", "finished": 2, "returned": 1, "dead": 0}])
    assert seen.read_text().splitlines() == ['1 t0 1 {"n": 1}', '2 t1 1 "bad"', '3 t2 1 {"n": 3}']
    assert "job 2: exit status 1" in done.err
    [left] = rows(cli.pipe("queue", "peek", "jobs"))
    assert (left["$seq"], left["deliveries"]) == (2, 1)
    assert left["state"] in ("delayed", "ready")  # ready when the delay of its return is over


def test_work_runs_programs_at_the_same_time(cli: Cli, api: Api, tmp_path: Path) -> None:
    queue(api, "parallel", 1, 2)
    # Each program waits until the other one runs, so that a single one would time out.
    program = f"touch {tmp_path}/$TOPICS_SEQ; until test -e {tmp_path}/1 && test -e {tmp_path}/2; do sleep 0.01; done"
    done = cli.pipe(
        "queue", "work", "parallel", "-j", "2", "--until-empty", "--timeout", "20s", "--", "sh", "-c", program
    )
    assert rows(done) == [{"topic": "parallel", "finished": 2, "returned": 0, "dead": 0}], done


def test_work_extends_the_lease_while_a_program_runs(cli: Cli, api: Api, tmp_path: Path) -> None:
    queue(api, "slow", 1)
    program = f"until test -e {tmp_path}/go; do sleep 0.01; done"
    with cli.start("queue", "work", "slow", "--lease", "1s", "--until-empty", "--", "sh", "-c", program) as running:
        first = wait_for(lambda: [job["deadline"] for job in jobs_of(api, "slow") if job["state"] == "in_flight"])
        wait_for(lambda: [job for job in jobs_of(api, "slow") if job.get("deadline", 0) > first[0]])
        (tmp_path / "go").touch()
        assert json.loads(running.line())["finished"] == 1


def test_progress_of_a_program_is_shown(cli: Cli, api: Api, tmp_path: Path) -> None:
    queue(api, "far", 1)
    program = f"echo '0.4 page 4 of 10' >$TOPICS_PROGRESS; until test -e {tmp_path}/go; do sleep 0.01; done"
    with cli.start("queue", "work", "far", "--until-empty", "--", "sh", "-c", program) as running:
        wait_for(lambda: [job for job in jobs_of(api, "far") if job.get("progress")])
        assert "40% page 4 of 10" in cli.tty("queue", "peek", "far").out
        (tmp_path / "go").touch()
        assert json.loads(running.line())["finished"] == 1


def test_progress_of_a_claimed_job_is_set_by_hand(cli: Cli, api: Api) -> None:
    queue(api, "hand", 1)
    cli.pipe("queue", "claim", "hand")
    assert "extended 1 job" in cli.tty("queue", "extend", "hand", "1", "--progress", "1").out
    assert [job["progress"] for job in jobs_of(api, "hand")] == [{"share": 1.0}]
    refused = cli.pipe("queue", "extend", "hand", "1", "--progress", "40%")
    assert (refused.status, "such as 0.4" in refused.err) == (2, True)
    assert "--lease (lease_ms) or progress" in cli.pipe("queue", "extend", "hand", "1").err


def test_work_ends_the_program_of_a_cancelled_job(cli: Cli, api: Api) -> None:
    queue(api, "cancelled", 1)
    with cli.start("queue", "work", "cancelled", "--lease", "1s", "--until-empty", "--", "sleep", "60") as running:
        wait_for(lambda: [job for job in jobs_of(api, "cancelled") if job["state"] == "in_flight"])
        api("POST", "/v0/topics/cancelled/delete", {"seqs": [1]})
        assert json.loads(running.line())["returned"] == 1


def test_work_times_out_a_program(cli: Cli, api: Api) -> None:
    queue(api, "stuck", 1)
    done = cli.pipe("queue", "work", "stuck", "--until-empty", "--timeout", "100ms", "--", "sleep", "60")
    assert (done.status, "job 1: timed out after" in done.err) == (1, True)


def test_signal_lets_a_running_program_finish(cli: Cli, api: Api, tmp_path: Path) -> None:
    queue(api, "polite", 1, 2)
    program = f"touch {tmp_path}/began; until test -e {tmp_path}/go; do sleep 0.01; done"
    with cli.start("queue", "work", "polite", "--", "sh", "-c", program) as running:
        wait_for((tmp_path / "began").exists)
        running.process.send_signal(signal.SIGTERM)
        assert "waiting until it ends" in running.error_line()
        (tmp_path / "go").touch()
        done = running.wait()
    assert (done.status, rows(done)) == (0, [{"topic": "polite", "finished": 1, "returned": 0, "dead": 0}])
    assert [job["$seq"] for job in jobs_of(api, "polite")] == [2]


def test_second_interrupt_ends_the_program_and_returns_its_job(cli: Cli, api: Api, tmp_path: Path) -> None:
    queue(api, "rude", 1)
    with Terminal(cli, "queue", "work", "rude", "--", "sh", "-c", f"touch {tmp_path}/began; sleep 60") as terminal:
        wait_for((tmp_path / "began").exists)
        terminal.type("\x03")
        terminal.wait_for("interrupt again to end it now")
        assert terminal.interrupt() == 0
        assert "job 1: interrupted" in terminal.seen
    assert [job["state"] for job in jobs_of(api, "rude")] == ["ready"]


def test_work_with_a_missing_program_spends_no_delivery(cli: Cli, api: Api, tmp_path: Path) -> None:
    queue(api, "no-program", 1)
    (tmp_path / "plain").write_text("")
    for program, reason in (
        ("/no/such/program", "No such file"), ("no-such-program", "No such file"),
        (str(tmp_path / "plain"), "Permission denied"),
    ):  # fmt: skip
        done = cli.pipe("queue", "work", "no-program", "--", program)
        assert (done.status, f"cannot be run: {reason}" in done.err, "next: " in done.err) == (2, True, True), done
    assert [(job["state"], job["deliveries"]) for job in jobs_of(api, "no-program")] == [("ready", 0)]


def test_work_reports_jobs_that_move_to_the_dead_letters(cli: Cli, api: Api) -> None:
    queue(api, "dying", 1, max_deliveries=1, dead_letter="dying.dead")
    done = cli.pipe("queue", "work", "dying", "--until-empty", "--", "sh", "-c", "echo no route >&2; exit 3")
    assert (done.status, rows(done)) == (1, [{"topic": "dying", "finished": 0, "returned": 0, "dead": 1}])
    assert "; moved to the dead letters (delivery 1)" in done.err
    assert "\nno route\n" in f"\n{done.err}"
    [letter] = rows(cli.pipe("queue", "dead", "dying"))
    reason = letter["meta"]["$dead_letter_reason"].splitlines()
    assert (reason[0].startswith("exit status 3 after "), reason[1:]) == (True, ["no route"])
    assert "exit status 3" in cli.tty("queue", "dead", "dying").out
    assert "dead ever" in cli.tty("queue", "ls", "dying").lines[0]
    cli.pipe("config", "dying", "--paused", "true", "--retry", '{"min_ms": 5}')
    assert "dying (paused)" in cli.tty("queue", "ls", "dying").out
    [config] = rows(cli.pipe("config", "dying", "--retry", "null", "--rate", "5"))
    assert (config["retry"], config["rate"]) == (None, {"per_s": 5.0, "burst": 1})
    assert rows(cli.pipe("config", "dying", "--rate", "null"))[0]["rate"] is None


def test_keys_and_unique_jobs_are_appended_and_shown(cli: Cli, api: Api) -> None:
    queue(api, "ordered")
    cli.pipe("config", "ordered", "--rate", '{"per_s": 100, "burst": 9}', "--max-in-flight-per-key", "2")
    assert "100" in cli.tty("config", "ordered").out
    cli.pipe("append", "ordered", "1", "--record-key", "customer-7", "--unique", "once")
    [again] = rows(cli.pipe("append", "ordered", "1", "--unique", "once", "--unique-for", "1m"))
    assert (again["first_seq"], again["deduped"]) == (1, True)
    assert [job["$key"] for job in rows(cli.pipe("queue", "peek", "ordered"))] == ["customer-7"]
    assert "customer-7" in cli.tty("queue", "peek", "ordered").out
    copied = cli.pipe("append", "copied", "-", "--records", stdin=cli.pipe("read", "ordered").out)
    assert copied.status == 0
    assert [row["$key"] for row in rows(cli.pipe("read", "copied"))] == ["customer-7"]
    assert (
        cli.pipe(
            "queue", "work", "ordered", "--until-empty", "--", "sh", "-c", "test $TOPICS_RECORD_KEY = customer-7"
        ).status
        == 0
    )


def test_claim_without_a_job_says_why(cli: Cli, api: Api) -> None:
    queue(api, "why", "a", "b")
    api("PUT", "/v0/topics/why", {"max_in_flight": 1})
    cli.pipe("queue", "claim", "why")
    assert "workers hold 1 job" in cli.pipe("queue", "claim", "why").err
    api("PUT", "/v0/topics/why", {"max_in_flight": 0, "rate": {"per_s": 0.001}})
    cli.pipe("queue", "claim", "why")
    cli.pipe("queue", "nack", "why", "1-2")
    assert "`rate` allows no further job now" in cli.pipe("queue", "claim", "why").err
    api("PUT", "/v0/topics/why", {"paused": True})
    assert "`topics queue resume why`" in cli.pipe("queue", "claim", "why").err
    queue(api, "one-key")
    for _ in range(2):
        cli.pipe("append", "one-key", "1", "--record-key", "k")
    cli.pipe("queue", "claim", "one-key")
    assert "1 in flight, 0 delayed, 1 blocked" in cli.pipe("queue", "claim", "one-key").err
    assert "blocked" in cli.tty("queue", "peek", "one-key").out


def test_queue_is_paused_and_resumed(cli: Cli, api: Api) -> None:
    queue(api, "held", 1)
    assert "is paused" in cli.tty("queue", "pause", "held").out
    assert cli.pipe("queue", "claim", "held").status == 3
    assert rows(cli.pipe("queue", "resume", "held"))[0]["config"]["paused"] is False
    assert cli.pipe("queue", "claim", "held").status == 0
    assert cli.pipe("queue", "pause", "nothing").status == 3
    assert "nothing" not in cli.pipe("ls").out


def jobs_of(api: Api, name: str) -> list[Any]:
    jobs: list[Any] = api("GET", f"/v0/topics/{name}/jobs")["jobs"]
    return jobs


def wait_for(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (seen := look()):
        assert time.monotonic() < deadline, "not seen in time"
        time.sleep(0.01)
    return seen


# --- routers


def test_routers_are_previewed_created_listed_and_removed(cli: Cli, api: Api) -> None:
    api("POST", "/v0/topics/src", {"records": [{"data": 1, "tag": "eu:1"}, {"data": 2, "tag": "us:1"}]})
    assert "would copy 1 record (" in cli.tty("router", "preview", "eu", "--from", "src", "--tag", "eu:*").out
    words = ("router", "create", "eu", "--from", "src", "--to", "src-eu", "--tag", "eu:*", "--start", "1")
    assert rows(cli.pipe(*words))[0]["created"] is True
    assert "updated eu: src → src-eu where tag eu:*" in cli.tty(*words).out
    wait_for(lambda: rows(cli.pipe("router", "ls", "eu"))[0]["forwarded_total"] == 1)
    assert [row["data"] for row in rows(cli.pipe("read", "src-eu"))] == [1]
    shown = cli.tty("router", "ls", "--source", "src")
    assert shown.lines[1].split()[:7] == ["eu", "src", "src-eu", "tag", "eu:*", "0", "1"]
    assert rows(cli.pipe("router", "ls", "eu"))[0]["filter"] == ["tag", "Glob", "eu:*"]
    assert "usage: topics router create [options] ROUTER --from TOPIC --to TOPIC\n" in cli.pipe("router", "create").err
    late = cli.pipe("router", "create", "late", "--from", "src", "--to", "src-late", "--start", "99")
    assert "99 is after the head, 2: the next record is copied first" in late.err
    cycle = cli.pipe("router", "create", "back", "--from", "src-eu", "--to", "src")
    assert (cycle.status, "--allow-cycle" in cycle.err, "allow_cycle" in cycle.err) == (1, True, False)
    assert cli.pipe("router", "rm", "eu").status == 2
    assert "removed eu" in cli.tty("router", "rm", "eu", typed="y\n").out
    assert cli.pipe("router", "rm", "eu", "--yes").status == 3


EXACT = '{"a":1.10,"b":1e400,"c":12345678901234567890,"d":-0,"a":"\\u00e9"}'


def test_jobs_and_dead_letters_are_printed_token_for_token(cli: Cli) -> None:
    cli.pipe("create", "exact", "--type", "queue", "--max-deliveries", "1", "--dead-letter", "exact.dead")
    cli.pipe("append", "exact", EXACT)
    assert EXACT in cli.pipe("queue", "peek", "exact").out
    assert EXACT in cli.tty("queue", "peek", "exact", columns=200).out
    assert "no dead letters of exact to move" in cli.tty("queue", "redrive", "exact", "--yes").out
    for verb in (("claim",), ("nack", "1"), ("claim",)):  # the second claim finds that the deliveries are used up
        cli.pipe("queue", verb[0], "exact", *verb[1:])
    assert EXACT in cli.pipe("queue", "dead", "exact").out
    assert EXACT in cli.tty("queue", "dead", "exact", columns=200).out


def test_peek_reads_further_pages(cli: Cli) -> None:
    cli.pipe("create", "long", "--type", "queue")
    cli.pipe("append", "long", "-", stdin="1\n" * 1500)
    assert len(cli.pipe("queue", "peek", "long", "-n", "1200").lines) == 1200
    assert len(cli.pipe("queue", "peek", "long").lines) == 20
