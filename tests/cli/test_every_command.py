"""Every command of the tree runs against a real server, in a pipe and on a terminal. A command without a row fails."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.conftest import call
from tests.cli.terminal import Cli, Done, Running, Terminal
from tests.conftest import ServerProcess
from topics.cli.options import build_parser

TEXT = "text"  # prints text also in a pipe


class Row(NamedTuple):
    """Arguments that work in the world of this module. `WAY` stands for pipe or terminal, `DIR` for a directory."""

    arguments: str
    shows: str = ""  # part of the output on a terminal
    form: str = "json"


ROWS: dict[str, Row] = {
    "serve": Row("--dev --json", "urls"),
    "demo": Row("--time 1ms", "A shop is open at"),
    "settings": Row("--port 7", "TOPICS_PORT", form=TEXT),
    "ls": Row("", "orders"),
    "create": Row("made-WAY --cap-records 5", "created made-WAY"),
    "config": Row("orders --ttl 7d", "7 d"),
    "schema show": Row("typed", "version 1 of 1, mode reject"),
    "schema set": Row("typed --mode reject", "version 1, mode reject"),
    "schema rm": Row("untyped-WAY", "not checked any more"),
    "schema types": Row("typed", "export interface Typed {", form=TEXT),
    "schema infer": Row("orders", '"type": "integer"', form=TEXT),
    "state": Row("orders", "records"),
    "rm": Row("old-WAY --yes", "removed old-WAY"),
    "append": Row("orders 1 --tag t 2", "appended 2 records"),
    "read": Row("capped", "lost seqs"),
    "get": Row("orders 1", "     1  "),
    "watch": Row("orders --from-start --limit 1", "orders"),
    "delete": Row("orders --tag none --yes", "0 records"),
    "queue ls": Row("", "mail"),
    "queue claim": Row("mail --node claimer-WAY", "finish with"),
    "queue ack": Row("mail 1 --node acker-WAY", "finished"),
    "queue nack": Row("mail 1 --node other", "returned"),
    "queue extend": Row("mail 1 --node other --lease 1m", "extended"),
    "queue peek": Row("mail", "ready"),
    "queue dead": Row("mail", "dead letters"),
    "queue pause": Row("idle-WAY", "is paused"),
    "queue resume": Row("idle-WAY", "is not paused"),
    "queue redrive": Row("mail --yes", "dead letters"),
    "queue work": Row("work-WAY --until-empty -- cat", "finished 1 job"),
    "deliver": Row("idle-WAY --to https://a.example --secret-file DIR/none --curl", "/claim", form=TEXT),
    "schedule ls": Row("", "nightly"),
    "schedule put": Row("made-WAY orders 1 --every 30m --jitter 1m", "created made-WAY"),
    "schedule get": Row("nightly", "orders"),
    "schedule rm": Row("old-WAY --yes", "removed old-WAY"),
    "schedule run": Row("nightly", "seq"),
    "schedule pause": Row("paused-WAY", "is paused"),
    "schedule resume": Row("paused-WAY", "is not paused; next tick"),
    "schedule preview": Row("nightly --after 2026-01-01T00:00:00Z", "2026-01-01T02:30:00+01:00"),
    "router ls": Row("", "audit"),
    "router create": Row("made-WAY --from orders --to copies-WAY", "created made-WAY"),
    "router rm": Row("old-WAY --yes", "removed old-WAY"),
    "router preview": Row("audit", "orders"),
    "consumer ls": Row("orders", "billing"),
    "consumer set": Row("orders made-WAY --seq 1", "created made-WAY"),
    "consumer rm": Row("orders old-WAY --yes", "removed old-WAY"),
    "top": Row("--count 1 --every 20ms", "topics top"),
    "doctor": Row("", "server"),
    "ping": Row("--count 1", "delivered"),
    "context add": Row("made-WAY --url http://127.0.0.1:1", "added made-WAY"),
    "context use": Row("here", "commands now use here"),
    "context rm": Row("old-WAY", "removed old-WAY"),
    "context ls": Row("", "here"),
    # A server with keys: tests/cli/test_keys.py.
    **{f"key {name}": Row("--help", form=TEXT) for name in ("create", "ls", "rotate", "revoke")},
    "verify": Row("DIR/saved", "topics", form=TEXT),
    "repair": Row("DIR/saved --from DIR/saved-copy", "0 not found", form=TEXT),
    "backup": Row("DIR/data DIR/backup-WAY", "topics", form=TEXT),
    "restore": Row("DIR/saved DIR/restored-WAY", "topics", form=TEXT),
    "replica ls": Row("file://DIR/replica", "kind"),
    "replica status": Row("file://DIR/replica", "restorable from", form=TEXT),
    "replica verify": Row("file://DIR/replica", "clean", form=TEXT),
    "replica promote": Row("--help", form=TEXT),  # a world with a standby: tests/faults/test_standby_processes.py
    "replica prune": Row("file://DIR/replica", "removed 0 objects", form=TEXT),
    "completion": Row("bash", "complete-names", form=TEXT),
    "version": Row("", form=TEXT),
    "mcp": Row("--help", "--destructive", form=TEXT),  # tests/mcp run it
    # Spark takes seconds to start: tests/spark and tests/cli/test_pipeline_* run these.
    "spark start": Row("--help", "--idle", form=TEXT),  # tests/spark/test_warm.py runs them
    "spark stop": Row("--help", form=TEXT),
    "spark status": Row("--help", form=TEXT),
    "sql": Row("--help", "examples:", form=TEXT),
    **{
        f"pipeline {name}": Row("--help", "options of all pipelines", form=TEXT)
        for name in ("archive", "audit", "compact", "erase", "maintain", "mirror", "replay", "rollup")
    },
}


def leaves(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the commands below a parser that have no commands themselves."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield " ".join(path), parser
    for name, below in groups[0].choices.items() if groups else ():
        yield from leaves(below, (*path, name))


def test_every_command_has_a_row_and_takes_json() -> None:
    found = dict(leaves(build_parser()))
    assert set(found) == set(ROWS)
    without = [name for name, parser in found.items() if "--json" not in parser._option_string_actions]
    assert without == ["mcp"], "its output is that of a protocol"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("every-command")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    running = ServerProcess(directory, {"data_dir": directory / "data", "replica": f"file://{directory}/replica"})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def world(server: ServerProcess, cli: Cli, directory: Path) -> Path:
    """Fill the server, with one thing of each kind for the pipe and for the terminal. Return a directory with data."""

    def send(method: str, path: str, body: object = None) -> None:
        assert "error" not in call(server.port, method, f"/v0/{path}", body), path

    def append(topic: str, count: int) -> None:
        send("POST", f"topics/{topic}", {"records": [{"data": n} for n in range(count)]})

    append("orders", 3)
    send("PUT", "topics/typed", {"schema": {"properties": {"sku": {"type": "string"}}}})
    send("PUT", "topics/capped", {"cap_records": 2})
    append("capped", 5)
    send("PUT", "topics/mail", {"type": "queue", "max_deliveries": 9, "dead_letter": "mail.dead"})
    append("mail", 9)
    send("PUT", "routers/audit", {"source": "orders", "dest": "orders.audit"})
    nightly = {"topic": "orders", "record": {"data": 1}, "cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    send("PUT", "schedules/nightly", nightly)
    send("PUT", "topics/orders/consumers/billing", {"seq": 1})
    cli.pipe("context", "add", "here", "--url", server.url)
    for way in ("pipe", "terminal"):
        append(f"old-{way}", 1)
        send("PUT", f"topics/untyped-{way}", {"schema": {}})
        send("PUT", f"topics/work-{way}", {"type": "queue"})
        append(f"work-{way}", 1)
        send("PUT", f"topics/idle-{way}", {"type": "queue"})
        send("PUT", f"schedules/old-{way}", nightly)
        send("PUT", f"schedules/paused-{way}", nightly)
        send("PUT", f"routers/old-{way}", {"source": "orders", "dest": f"copies-{way}"})
        send("PUT", f"topics/orders/consumers/old-{way}", {"seq": 1})
        cli.pipe("context", "add", f"old-{way}", "--url", server.url)
    assert cli.pipe("backup", str(directory / "data"), str(directory / "saved")).status == 0
    assert cli.pipe("backup", str(directory / "data"), str(directory / "saved-copy")).status == 0
    return directory


def words_of(name: str, way: str, world: Path) -> list[str]:
    text = f"{name} {ROWS[name].arguments}".replace("WAY", way).replace("DIR", str(world))
    return text.split()


@pytest.mark.parametrize("name", ROWS)
def test_command_prints_json_lines_in_a_pipe(name: str, cli: Cli, world: Path) -> None:
    row, words = ROWS[name], words_of(name, "pipe", world)
    done = _stopped(cli.start(*words)) if name == "serve" else cli.real(*words)
    assert (done.status, "Traceback" in done.err) == (0, False), done
    if row.form == "json":
        assert [json.loads(line) for line in done.lines] or name == "queue dead", done
    else:
        assert done.out, done


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.arguments != "--help"])
def test_command_speaks_to_a_person_on_a_terminal(name: str, cli: Cli, world: Path) -> None:
    words = words_of(name, "terminal", world)
    if name == "serve":
        with Terminal(cli, *words) as terminal:
            terminal.wait_for('"urls"')
            done = Done(terminal.interrupt(), terminal.seen, "")
    else:
        done = cli.tty(*words)
    assert (done.status, "Traceback" in done.out) == (0, False), done
    assert ROWS[name].shows.replace("WAY", "terminal") in done.out, done


def _stopped(running: Running) -> Done:
    """Wait until a server is ready, and stop it."""
    with running:
        line = running.line()  # where it listens
        done = running.interrupt()
    return Done(done.status, "\n".join([line, done.out]), done.err)
