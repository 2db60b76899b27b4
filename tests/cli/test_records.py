"""`ls`, `create`, `config`, `state`, `rm`, `append`, `read`, `watch` and `delete` against a real server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.cli.terminal import Cli, Done, Terminal
from topics.cli.data.read import within

Api = Callable[..., Any]


def rows(done: Done) -> list[Any]:
    return [json.loads(line) for line in done.lines]


def only(done: Done) -> Any:
    [row] = rows(done)
    return row


# --- topics


def test_create_and_config_take_human_units(cli: Cli, api: Api) -> None:
    done = cli.pipe("create", "units", "--ttl", "1h30m", "--cap-bytes", "10MiB", "--cap-records", "5k")
    assert (done.status, only(done)["created"]) == (0, True)
    config = api("GET", "/v0/topics/units")["config"]
    assert (config["ttl_ms"], config["cap_bytes"], config["cap_records"]) == (5_400_000, 10 << 20, 5000)
    shown = cli.tty("config", "units", "--cap-records", "0", "--set", "durability=fsync")
    assert shown.status == 0
    assert {"ttl                 1.5 h", "cap-records         off", "durability          fsync"} <= set(shown.lines)
    assert only(cli.pipe("config", "units"))["durability"] == "fsync"


def test_create_of_an_existing_topic_says_whether_it_changed(cli: Cli) -> None:
    assert "created twice" in cli.tty("create", "twice", "--ttl", "1h").out
    assert cli.tty("create", "twice", "--ttl", "1h").lines[0] == "unchanged: twice"
    assert cli.tty("create", "twice", "--ttl", "2h").lines[0] == "already there; configuration updated: twice"


def test_queue_options_without_an_effect_are_warned_about(cli: Cli) -> None:
    log = cli.pipe("create", "no-queue", "--max-deliveries", "2")
    assert (log.status, "warning: no-queue is a log, so --max-deliveries has no effect" in log.err) == (0, True)
    endless = cli.pipe("create", "endless", "--type", "queue", "--max-deliveries", "2")
    assert "warning: max_deliveries has no effect without dead_letter" in endless.err
    assert cli.pipe("config", "endless", "--dead-letter", "endless.dead").err == ""
    unlimited = cli.pipe("create", "unlimited", "--type", "queue", "--dead-letter", "unlimited.dead")
    assert "dead_letter has no effect without max_deliveries: no job moves there" in unlimited.err


def test_duration_without_a_unit_is_refused_with_an_example(cli: Cli) -> None:
    done = cli.pipe("create", "units2", "--ttl", "30")
    assert done.status == 2
    assert "'30' is not a duration; use a number with a unit, such as 500ms, 30s" in done.err
    assert "next: `topics create --help`" in done.err


def test_config_does_not_create_a_topic(cli: Cli) -> None:
    done = cli.pipe("config", "never-there", "--ttl", "1h")
    assert (done.status, done.out) == (3, "")
    assert cli.pipe("state", "never-there").status == 3


def test_settings_prints_the_settings_of_the_server(cli: Cli) -> None:
    assert "TOPICS_PORT=0" in cli.pipe("settings", "--port", "0").lines
    shown = only(cli.pipe("settings", "--json", TOPICS_API_KEYS="s3cret"))
    assert (shown["TOPICS_PORT"], shown["TOPICS_API_KEYS"]) == ("4000", "(hidden)")


def test_state_shows_the_seqs_and_limits(cli: Cli) -> None:
    cli.pipe("create", "stated", "--cap-records", "2")
    cli.pipe("append", "stated", "1", "2", "3")
    shown = cli.tty("state", "stated")
    assert "seqs        2 to 3" in shown.out
    assert "cap-records 2" in shown.out
    assert "\x1b[" in shown.raw
    assert only(cli.pipe("state", "stated"))["head_seq"] == 3


def test_ls_lists_sizes_jobs_and_lag(cli: Cli, api: Api) -> None:
    cli.pipe("append", "list-a", "1", "2")
    cli.pipe("create", "list-q", "--type", "queue")
    cli.pipe("append", "list-q", "job")
    api("PUT", "/v0/routers/list-r", {"source": "list-a", "dest": "list-copy"})
    found = {row["topic"]: row for row in rows(cli.pipe("ls", "list-"))}
    assert (found["list-a"]["count"], found["list-a"]["lag"]) == (2, 0)
    assert (found["list-q"]["ready"], found["list-q"]["in_flight"]) == (1, 0)
    shown = cli.tty("ls", "list-*")
    assert shown.lines[0].split() == ["topic", "type", "records", "size", "head", "lag", "jobs"]
    assert "1 ready, 0 in flight" in shown.out
    assert "3 topics, 3 records" in shown.out
    assert next(row["topic"] for row in rows(cli.pipe("ls", "list-*", "--sort", "records"))) == "list-a"


def test_ls_measures_rates(cli: Cli) -> None:
    cli.pipe("append", "rates", "1")
    assert only(cli.pipe("ls", "rates", "--rates", "50ms"))["rate"] == 0


def test_rm_asks_on_a_terminal_and_needs_yes_in_a_pipe(cli: Cli) -> None:
    cli.pipe("append", "doomed", "1", "2")
    refused = cli.pipe("rm", "doomed")
    assert (refused.status, "pass --yes" in refused.err) == (2, True)
    kept = cli.tty("rm", "doomed", typed="n\n")
    assert "remove doomed and everything in it?" in kept.out
    assert (kept.status, "2 records" in kept.out, "nothing was changed" in kept.out) == (2, True, True)
    gone = cli.tty("rm", "doomed", typed="y\n")
    assert (gone.status, "[y/N] " in gone.out, gone.lines[-1].endswith("removed doomed")) == (0, True, True)
    again = cli.pipe("rm", "doomed", "--yes")
    assert (again.status, only(again)["deleted"]) == (3, False)


# --- append


def test_append_takes_json_and_text(cli: Cli) -> None:
    done = cli.pipe(
        "append", "mixed", '{"a": 1}', "two words", "42", "--tag", "t", "--node", "me", "--meta", '{"m": 1}'
    )
    assert only(done)["count"] == 3
    found = rows(cli.pipe("read", "mixed"))
    assert [row["data"] for row in found] == [{"a": 1}, "two words", 42]
    assert (found[0]["$tag"], found[0]["$node"], found[0]["meta"]) == ("t", "me", {"m": 1})
    assert "appended 1 record to mixed: seq 4" in cli.tty("append", "mixed", "42", "--text").out
    assert rows(cli.pipe("read", "mixed", "--from", "4"))[0]["data"] == "42"


def test_append_of_a_file_name_notes_how_to_append_its_lines(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "new events.jsonl"
    file.write_text("1\n2\n")
    done = cli.pipe("append", "named", str(file))
    assert only(done)["count"] == 1
    assert f"to append the lines of the file: topics append named - < '{file}'" in done.err
    assert cli.pipe("append", "named", str(file), "--text").err == ""


def test_append_keeps_the_text_of_json(cli: Cli) -> None:
    text = r'{"n": 1.0, "big": 12345678901234567890.10, "half": "\ud83d"}'
    assert cli.pipe("append", "tokens", text, "NaN", "--meta", r'{"half": "\ud83d"}').status == 0
    first, second = cli.pipe("read", "tokens").lines
    assert f'"data":{text}' in first
    assert json.loads(second)["data"] == "NaN"
    assert r'"half": "\ud83d"' in cli.tty("read", "tokens").out
    with cli.start("read", "tokens", "--from", "1", "-f") as running:
        assert json.loads(running.line())["data"]["half"] == "\ud83d"


def test_append_refuses_broken_json(cli: Cli) -> None:
    done = cli.pipe("append", "broken", '{"a": ')
    assert (done.status, done.out) == (2, "")
    assert "is not valid JSON" in done.err
    assert "--text" in done.err


def test_append_with_a_key_is_stored_once(cli: Cli) -> None:
    first = only(cli.pipe("append", "once", "1", "--key", "k"))
    again = cli.tty("append", "once", "1", "--key", "k")
    assert first["deduped"] is False
    assert "written before with this key" in again.out
    assert len(rows(cli.pipe("read", "once"))) == 1


def test_append_no_create_refuses_an_unknown_topic(cli: Cli) -> None:
    cli.pipe("append", "orders-eu", "1")
    done = cli.pipe("append", "orders-ue", "1", "--no-create")
    assert done.status == 3
    assert "did you mean orders-eu?" in done.err


def test_append_from_a_pipe_keeps_order_and_text(cli: Cli) -> None:
    lines = "".join(f'{{"n": {n}, "x":1.0}}\n' for n in range(5000))
    done = only(cli.pipe("append", "piped", "-", "--tag", "bulk", stdin=lines))
    assert (done["count"], done["first_seq"], done["last_seq"]) == (5000, 1, 5000)
    assert done["batches"] >= 3
    found = cli.pipe("read", "piped")
    assert [row["data"]["n"] for row in rows(found)] == list(range(5000))
    assert '"data":{"n": 7, "x":1.0}' in found.lines[7]
    assert '"$tag":"bulk"' in found.lines[0]


def test_append_from_a_pipe_names_the_bad_line(cli: Cli) -> None:
    done = cli.pipe("append", "bad-line", "-", stdin='1\n2\n{"a": \n4\n')
    assert (done.status, done.out) == (2, "")
    assert "line 3 of the input is not JSON" in done.err
    injected = cli.pipe("append", "bad-line", "-", stdin='1},{"data":2\n')
    assert injected.status == 2


def test_read_output_can_be_appended_as_records(cli: Cli) -> None:
    cli.pipe("append", "from-here", "1", "2", "--tag", "t", "--node", "n")
    copied = cli.pipe("append", "to-there", "-", "--records", stdin=cli.pipe("read", "from-here").out)
    assert only(copied)["count"] == 2
    assert [(row["data"], row["$tag"], row["$node"]) for row in rows(cli.pipe("read", "to-there"))] == [
        (1, "t", "n"),
        (2, "t", "n"),
    ]


@pytest.mark.parametrize("piped", [True, False])
def test_append_keeps_the_text_of_records(cli: Cli, piped: bool) -> None:
    text = '{"n": 1.10, "big": 12345678901234567890.10, "more": 1e999}'
    line = f'{{"data": {text}, "$tag": "t", "meta": {text}}}'
    topic = f"record-tokens-{piped}"
    given = {"stdin": f"{line}\n{line}\n"} if piped else {}
    done = cli.pipe("append", topic, "--records", *(["-"] if piped else [line, line]), **given)
    assert only(done)["count"] == 2
    for row in cli.pipe("read", topic).lines:
        assert f'"data":{text}' in row
        assert f'"meta":{text}' in row


@pytest.mark.parametrize("piped", [True, False])
def test_append_refuses_meta_that_is_not_json_and_keeps_its_text(cli: Cli, piped: bool) -> None:
    data, given = ([], {"stdin": "1\n"}) if piped else (["1"], {})
    topic = f"meta-tokens-{piped}"
    for bad in ('{"a": NaN}', '{"a": -Infinity}', "[1]", "1"):
        done = cli.pipe("append", topic, *data, "--meta", bad, **given)
        assert (done.status, f"{bad!r} is not a JSON object" in done.err) == (2, True)
    assert cli.pipe("append", topic, *data, "--meta", '{"a": 1e999}', **given).status == 0
    assert '"meta":{"a": 1e999}' in cli.pipe("read", topic).out


def test_append_without_data_reads_the_pipe(cli: Cli) -> None:
    assert only(cli.pipe("append", "implied", stdin="1\n2\n"))["count"] == 2
    refused = cli.tty("append", "implied")
    assert (refused.status, "there is nothing to append" in refused.out) == (2, True)


def test_append_of_an_empty_pipe_appends_nothing(cli: Cli) -> None:
    assert only(cli.pipe("append", "empty-pipe", "-", stdin="\n\n"))["count"] == 0


# --- read


@pytest.fixture(scope="module")
def capped(cli: Cli) -> str:
    """A topic that lost its first records, with a tag on every second one."""
    cli.pipe("create", "capped", "--cap-records", "10")
    for n in range(1, 15, 2):
        records = [{"data": n, "tag": "odd:x"}, {"data": n + 1, "tag": "even:x"}]
        cli.pipe("append", "capped", *map(json.dumps, records), "--records")
    return "capped"


def seqs(done: Done) -> list[int]:
    return [row["$seq"] for row in rows(done) if "$seq" in row]


def test_read_shows_gaps_between_records(cli: Cli, capped: str) -> None:
    first, *rest = rows(cli.pipe("read", capped))
    assert (first["tombstone"]["gap_from"], first["tombstone"]["gap_to"], first["tombstone"]["reason"]) == (1, 4, "cap")
    assert [row["$seq"] for row in rest] == list(range(5, 15))
    shown = cli.tty("read", capped)
    assert "lost seqs 1 to 4 (cap, 4 records)" in shown.lines[0]
    assert "\x1b[31m" in shown.raw.splitlines()[0]
    assert [line.split()[0] for line in shown.lines[1:]] == [str(n) for n in range(5, 15)]


def test_read_selects_by_seq_time_tag_and_count(cli: Cli, capped: str) -> None:
    assert seqs(cli.pipe("read", capped, "--from", "7", "--to", "9")) == [7, 8, 9]
    assert seqs(cli.pipe("read", capped, "--from", "7", "--limit", "2")) == [7, 8]
    assert seqs(cli.pipe("read", capped, "--last", "3")) == [12, 13, 14]
    assert seqs(cli.pipe("read", capped, "-n", "3")) == [12, 13, 14]
    assert seqs(cli.pipe("read", capped, "--last", "3", "--tag", "odd:*")) == [9, 11, 13]
    assert seqs(cli.pipe("read", capped, "--last", "100")) == list(range(5, 15))
    assert seqs(cli.pipe("read", capped, "--ago", "1h")) == list(range(5, 15))
    assert seqs(cli.pipe("read", capped, "--since", "2100-01-01")) == []
    assert cli.pipe("read", capped, "--last", "2", "--data").lines == ["13", "14"]


def test_read_of_an_unknown_topic_suggests_a_name(cli: Cli, capped: str) -> None:
    done = cli.pipe("read", "caped")
    assert (done.status, done.out) == (3, "")
    assert 'topics: topic "caped" does not exist' in done.err
    assert "next: did you mean capped?" in done.err


def test_read_follows_a_topic(cli: Cli) -> None:
    cli.pipe("append", "followed", "1", "2")
    with cli.start("read", "followed", "--last", "1", "-f") as running:
        assert json.loads(running.line())["data"] == 2
        cli.pipe("append", "followed", "3")
        assert json.loads(running.line())["data"] == 3
        assert running.interrupt().status == 130


def test_read_follows_on_a_terminal_and_shows_a_gap(cli: Cli) -> None:
    cli.pipe("create", "leaky", "--cap-records", "2")
    cli.pipe("append", "leaky", "1")
    with Terminal(cli, "read", "leaky", "-f") as terminal:
        terminal.wait_for("1  ")
        cli.pipe("append", "leaky", "2", "3", "4", "5", "6")
        terminal.wait_for("lost seqs")
        terminal.wait_for("6\n")
        assert terminal.interrupt() == 130


def test_read_from_after_the_head_prints_nothing_and_a_note(cli: Cli, capped: str) -> None:
    done = cli.pipe("read", capped, "--from", "4000")
    assert (done.status, done.out, done.err) == (0, "", "4,000 is after the head, 14\n")
    assert cli.pipe("read", capped, "--from", "4000", "--to", "4001").out == ""
    next_one = cli.pipe("read", capped, "--from", "15")
    assert (next_one.status, next_one.out, next_one.err) == (0, "", "")
    turned = cli.pipe("read", capped, "--from", "13", "--to", "12")
    assert (turned.status, "--from 13 is after --to 12" in turned.err) == (2, True)
    upto = cli.pipe("read", capped, "--from", "13", "--to", "99")
    assert (seqs(upto), upto.err) == ([13, 14], "99 is after the head, 14\n")


def test_read_follow_waits_for_a_seq_after_the_head(cli: Cli) -> None:
    cli.pipe("append", "later", "1", "2")
    with cli.start("read", "later", "--from", "5", "--to", "6", "-f", "--data") as running:
        assert "5 is after the head, 2; waiting for it" in running.error_line()
        cli.pipe("append", "later", "3", "4", "5", "6", "7")
        assert [running.line(), running.line()] == ["5", "6"]
        assert running.wait().status == 0


def test_range_has_everything_of_a_topic_that_was_created_again() -> None:
    pieces = [
        b'{"$seq":4}\n', Raw(b'{"gap_from":1,"gap_to":4,"reason":"cap"}'), b'{"$seq":5}\n',
        Raw(b'{"gap_from":1,"gap_to":2,"reason":"recreated"}'), b'{"$seq":1}\n{"$seq":2}\n',
    ]  # fmt: skip
    passed = [bytes(piece) for piece in within(pieces, 5, None)]
    assert [json.loads(line).get("$seq", "gap") for line in b"\n".join(passed).split()] == [5, "gap", 1, 2]


# --- watch


def test_get_prints_one_record_or_says_why_not(cli: Cli, capped: str) -> None:
    kept = json.loads(cli.pipe("read", capped, "--last", "1").lines[-1])
    seq = kept["$seq"]
    assert json.loads(cli.pipe("get", capped, str(seq)).out) == kept
    assert json.loads(cli.pipe("get", capped, str(seq), "--data").out) == kept["data"]
    lost = cli.pipe("get", capped, "1")
    assert (lost.status, lost.out) == (3, "")
    assert f"{capped} has no record 1: it was lost with 1 to " in lost.err
    assert f"has no record {seq + 1}: the head is {seq}" in cli.pipe("get", capped, str(seq + 1)).err
    cli.pipe("append", "shrinking", "1", "2")
    cli.pipe("delete", "shrinking", "--seq", "1", "--yes")
    assert "has no record 1: it was deleted" in cli.pipe("get", "shrinking", "1").err


def test_records_are_printed_by_a_template(cli: Cli) -> None:
    cli.pipe("append", "shaped", '{"sku": "V60", "tags": ["a", {"b": true}], "n": null}', "text", "--tag", "t")
    shown = cli.pipe(
        "read", "shaped", "--format", "{seq} {tag} {data.sku} {data.tags[1].b} {data.n}{data.x.y} {{{node}}}"
    )
    assert shown.lines == ["1 t V60 true  {}", "2 t    {}"]
    assert cli.tty("get", "shaped", "2", "--format", "{data}|{data.a}|{data[0]}").out.strip() == "text||"
    cli.pipe("append", "escaped", '"\\u001b[31mred"')
    assert "\x1b[31m" not in cli.tty("get", "escaped", "1", "--format", "{data}").out
    assert cli.pipe("watch", "shaped", "--from-start", "-n", "1", "--format", "{topic}").lines == ["shaped"]
    for wrong in ("{what}", "{data", "}"):
        refused = cli.pipe("read", "shaped", "--format", wrong)
        assert refused.status == 2
        assert "is not a field; use seq, ts, time" in refused.err


def test_read_starts_at_a_consumer_and_moves_it(cli: Cli) -> None:
    cli.pipe("append", "billed", *"123456")
    cli.pipe("consumer", "set", "billed", "billing", "--seq", "2")

    def position() -> int:
        return int(json.loads(cli.pipe("consumer", "ls", "billed").out)["seq"])

    assert cli.pipe("read", "billed", "--consumer", "billing", "--data").lines == ["3", "4", "5", "6"]
    assert position() == 2
    assert cli.pipe("read", "billed", "--consumer", "billing", "--commit", "--limit", "2", "--data").lines == ["3", "4"]
    assert position() == 4
    assert cli.pipe("read", "billed", "--consumer", "billing", "--commit").lines[-1].startswith('{"$seq":6')
    assert position() == 6
    assert cli.pipe("read", "billed", "--consumer", "billing", "--commit").lines == []
    assert "--commit needs --consumer" in cli.pipe("read", "billed", "--commit").err
    assert cli.pipe("read", "billed", "--consumer", "nobody").status == 3


def test_watch_follows_patterns_and_future_topics(cli: Cli) -> None:
    cli.pipe("append", "room-1", "old")
    with cli.start("watch", "room-*", "hall", "--from-start", "--limit", "3") as running:
        assert running.wait().status == 3  # `hall` does not exist
    cli.pipe("append", "hall", "old")
    with cli.start("watch", "room-*", "hall", "--from-start", "--limit", "4") as running:
        first = [json.loads(running.line()) for _ in range(2)]
        assert {(row["topic"], row["data"]) for row in first} == {("room-1", "old"), ("hall", "old")}
        cli.pipe("append", "room-2", "new", "--tag", "t")
        row = json.loads(running.line())
        assert (row["topic"], row["data"], row["$tag"]) == ("room-2", "new", "t")
        cli.pipe("append", "hall", "last")
        assert json.loads(running.line())["data"] == "last"
        assert running.wait().status == 0


def test_watch_shows_topics_on_a_terminal(cli: Cli) -> None:
    cli.pipe("append", "tv", "1")
    shown = cli.tty("watch", "tv", "--from-start", "--limit", "1")
    assert (shown.status, "tv  1" in shown.out) == (0, True)


# --- delete


def test_delete_counts_first_and_asks(cli: Cli) -> None:
    cli.pipe("append", "chat", "a", "b", "--tag", "ann:1")
    cli.pipe("append", "chat", "c", "--tag", "bob:1")
    assert only(cli.pipe("delete", "chat", "--tag", "ann:*", "--dry-run"))["deleted"] == 2
    assert "would delete 2 records; 1 record left" in cli.tty("delete", "chat", "--tag", "ann:*", "--dry-run").out
    refused = cli.pipe("delete", "chat", "--tag", "ann:*")
    assert (refused.status, "delete 2 records of chat needs a confirmation" in refused.err) == (2, True)
    shown = cli.tty("delete", "chat", "--tag", "ann:*", typed="y\n")
    assert "delete 2 records of chat?" in shown.out
    assert "deleted 2 records; 1 record left" in shown.out
    assert only(cli.pipe("delete", "chat", "--before", "100", "--yes"))["deleted"] == 1
    assert rows(cli.pipe("read", "chat")) == []


def test_delete_needs_a_condition(cli: Cli) -> None:
    done = cli.pipe("delete", "chat", "--yes")
    assert (done.status, "--tag, --before or --seq" in done.err) == (2, True)
    both = cli.pipe("delete", "chat", "--seq", "1", "--tag", "a", "--yes")
    assert (both.status, "--seq cannot be combined with --tag or --before" in both.err) == (2, True)


def test_delete_by_seq_takes_ranges(cli: Cli) -> None:
    cli.pipe("append", "seqs", *map(str, range(1, 9)))
    assert only(cli.pipe("delete", "seqs", "--seq", "1", "--seq", "3-5", "--yes"))["deleted"] == 4
    assert seqs(cli.pipe("read", "seqs")) == [2, 6, 7, 8]


def test_options_stand_between_arguments(cli: Cli) -> None:
    assert json.loads(cli.pipe("append", "between", "--tag", "a", "1", "--node", "n", "2").out)["count"] == 2
    assert json.loads(cli.pipe("append", "--tag", "b", "between", "-5").out)["last_seq"] == 3
    assert json.loads(cli.pipe("append", "between", "--records", '{"data":1,"tag":"c"}').out)["last_seq"] == 4
    tags = [json.loads(line)["$tag"] for line in cli.pipe("read", "between").lines]
    assert tags == ["a", "a", "b", "c"]
    assert "required: TOPIC\n" in cli.pipe("append", "--tag", "a").err


def test_lost_ranges_are_shown_by_state_and_ls(cli: Cli) -> None:
    cli.pipe("create", "lossy-state", "--cap-records", "3")
    cli.pipe("append", "lossy-state", *map(str, range(1, 11)))
    cli.pipe("delete", "lossy-state", "--seq", "9", "--yes")
    assert "lost        seqs 1 to 7 (cap)" in cli.tty("state", "lossy-state").out
    piped = only(cli.pipe("state", "lossy-state"))
    assert (piped["lost"], piped["lost_ranges"]) == (7, [{"from_seq": 1, "to_seq": 7, "state": "cap"}])
    ranges = [json.loads(line) for line in cli.pipe("state", "lossy-state", "--ranges").lines]
    assert [(row["from_seq"], row["to_seq"], row["state"]) for row in ranges] == [
        (1, 7, "cap"), (8, 8, "live"), (9, 9, "deleted"), (10, 10, "live"),
    ]  # fmt: skip
    shown = cli.tty("state", "lossy-state", "--ranges").lines
    assert [line.split() for line in shown[:2]] == [["from", "to", "seqs", "state"], ["1", "7", "7", "lost", "(cap)"]]
    listed = cli.tty("ls", "lossy-state").lines
    assert (listed[0].split()[6], listed[1].split()[6]) == ("lost", "7")
    assert json.loads(cli.pipe("ls", "lossy-state").out)["lost"] == 7


def test_where_grep_and_tag_select_records_together(cli: Cli) -> None:
    for total, name in ((150, "Ada"), (99, "Ada"), (3499, "Bo")):
        cli.pipe("append", "where", json.dumps({"customer": {"id": 7, "name": name}, "total": total}), "--tag", "eu:1")

    def totals(*options: str) -> list[int]:
        return [row["total"] for row in rows(cli.pipe("read", "where", "--data", *options))]

    assert totals("--where", "customer.id = 7 and total > 100") == [150, 3499]
    assert totals("--where", "total > 100", "--grep", "Ada") == [150]
    assert totals("--where", "total > 1", "--grep", "Ada", "--tag", "us:*") == []
    assert totals("--where", "total > 1", "--last", "1") == [3499]
    refused = cli.pipe("read", "where", "--where", "total > 5 annd x = 1")
    assert refused.status == 2
    assert "character 11: expected and, or, or the end\n  total > 5 annd x = 1\n            ^\n" in refused.err


def test_router_filters_by_fields(cli: Cli) -> None:
    cli.pipe("append", "wide", '{"n": 1}', '{"n": 2}')
    previewed = only(cli.pipe("router", "preview", "narrow", "--from", "wide", "--where", "n > 1"))
    assert (previewed["matched"], previewed["scanned"]) == (1, 2)
    made = cli.tty("router", "create", "narrow", "--from", "wide", "--to", "narrow", "--where", "n > 1", "--start", "1")
    assert "where n > 1" in made.out
    assert "n > 1" in cli.tty("router", "ls").out
