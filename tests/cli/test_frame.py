"""What all commands share: help, version, errors, exit statuses, `--curl`, `--json`, contexts, keys."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.terminal import TOPICS, Cli
from tests.conftest import ServerProcess, StartServer
from topics import __version__
from topics.cli import tree
from topics.cli.options import build_parser

KEY = "s3cret-key"


def test_version_is_printed_without_loading_much(home: Cli) -> None:
    for flag in ("--version", "-V", "version"):
        assert home.pipe(flag).out == f"{__version__}\n"
    program = "import sys; from topics.cli.main import main; main(['--version']); print(len(sys.modules), *sys.modules)"
    done = subprocess.run([str(Path(TOPICS).with_name("python")), "-c", program], capture_output=True, text=True)
    loaded = done.stdout.split()
    assert not {"argparse", "http.client", "msgspec", "rich", "httpx", "numpy", "asyncio"} & set(loaded)


def test_commands_in_a_pipe_start_without_slow_packages(cli: Cli) -> None:
    program = (
        "import sys; from topics.cli.main import main; status = main(['ls'])\n"
        "print(status, *sorted({'httpx', 'numpy', 'rich', 'asyncio', 'uvloop', 'topics.config'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [str(Path(TOPICS).with_name("python")), "-c", program], capture_output=True, text=True, env=cli.env
    )
    assert done.stdout.splitlines()[-1] == "0", done.stderr


def test_version_and_completion_are_printed_as_json(home: Cli) -> None:
    for word in ("--version", "-V", "version"):
        assert json.loads(home.pipe(word, "--json").out) == {"version": __version__}
    assert "usage: topics version" in home.pipe("version", "--help").out
    assert home.pipe("--version", "--jsn").status == 2
    answer = json.loads(home.pipe("completion", "bash", "--json").out)
    assert answer == {"shell": "bash", "script": home.pipe("completion", "bash").out}


def test_help_lists_every_command_and_each_explains_itself(home: Cli) -> None:
    shown = home.pipe("--help")
    assert shown.status == 0
    for name, row in tree.ROWS.items():
        assert f"  {name} " in shown.out
        assert row.help in shown.out
    assert home.pipe("help", "read").out == home.pipe("read", "--help").out
    bare = home.pipe()
    assert (bare.status, bare.out, bare.err == shown.out) == (2, "", True)


def test_every_row_of_the_tree_has_a_parser_with_the_same_help() -> None:
    parser = build_parser()
    [commands] = [action for action in parser._actions if action.choices]
    helps = {action.dest: action.help for action in commands._choices_actions}  # type: ignore[attr-defined]
    assert set(helps) == set(tree.ROWS)


def test_unknown_command_suggests_the_closest(home: Cli) -> None:
    done = home.pipe("apend", "x")
    assert (done.status, done.out) == (2, "")
    assert "there is no command 'apend'" in done.err
    assert "did you mean append?" in done.err


def test_options_before_the_command_are_put_after_it(home: Cli) -> None:
    assert home.pipe("--url=http://h:1", "read", "orders", "--curl").out.startswith("curl -sS http://h:1/")
    assert home.pipe("--url", "http://h:1", "--curl", "append", "orders", "--", "--json").out.count("http://h:1/") == 1
    assert "http://h:1/v0/topics" in home.pipe("--url", "http://h:1", "queue", "ls", "--curl").out
    assert "http://h:1/v0/keys" in home.pipe("--url", "http://h:1", "key", "ls", "--curl").out
    assert (
        "http://h:1/v0/topics/orders/schema" in home.pipe("--url=http://h:1", "schema", "show", "orders", "--curl").out
    )
    assert "there is no option '--frm'" in home.pipe("--frm", "ls").err


def test_misspelt_option_suggests_the_closest(home: Cli) -> None:
    assert "\nnext: did you mean --follow? `topics read --help` explains" in home.pipe("read", "orders", "--folow").err
    assert "did you mean --lake?" in home.pipe("pipeline", "audit", "--lake", "x", "--url", "u", "--lak=x").err
    assert "did you mean" not in home.pipe("read", "orders", "--xyz").err


def test_group_without_a_command_lists_its_commands(home: Cli) -> None:
    done = home.pipe("queue")
    assert done.status == 0
    assert "return jobs that were not done" in done.out or "nack" in done.out


def test_words_of_other_systems_lead_to_the_command(home: Cli) -> None:
    for word, name in (("publish", "append"), ("consume", "read"), ("subscribe", "watch"), ("describe", "state")):
        assert f"did you mean {name}?" in home.pipe(word, "orders").err
    assert set(tree.SYNONYMS.values()) <= set(tree.ROWS)
    assert not set(tree.SYNONYMS) & set(tree.ROWS)


def test_missing_argument_says_where_to_look(home: Cli) -> None:
    done = home.pipe("append")
    assert (done.status, done.err.splitlines()) == (
        2,
        [
            "usage: topics append [options] TOPIC [DATA…]",
            "topics: the following arguments are required: TOPIC",
            "next: `topics append --help` explains the arguments",
        ],
    )


def test_unknown_option_prints_the_usage_of_its_command(home: Cli) -> None:
    for words, usage in (
        (("read", "orders", "--frm", "3"), "usage: topics read [options] TOPIC\n"),
        (("queue", "claim", "mail", "--leese"), "usage: topics queue claim [options] QUEUE\n"),
    ):
        done = home.pipe(*words)
        assert (done.status, done.err.startswith(usage)) == (2, True), done
        assert f"`{usage[7:].partition(' [')[0]} --help` explains the arguments\n" in done.err


def test_groups_and_contexts_show_examples_in_their_help(home: Cli) -> None:
    for words in (("queue",), ("router",), ("schedule",), ("consumer",), ("context",), ("context", "add")):
        assert f"examples:\n  topics {words[0]} " in home.pipe(*words, "--help").out.replace(
            "topics create", "topics queue"
        )
    assert "the first of --context, TOPICS_URL," in home.pipe("ls", "--help", COLUMNS="200").out


def test_messages_of_the_server_name_the_options(cli: Cli) -> None:
    done = cli.pipe("create", "worded", "--type", "queue", "--dead-letter", "worded")
    assert (done.status, "--dead-letter (dead_letter) is the queue itself" in done.err) == (2, True), done


def test_no_server_is_its_own_exit_status(home: Cli) -> None:
    done = home.pipe("ls", "--url", "http://127.0.0.1:1")
    assert (done.status, done.out) == (4, "")
    assert "topics: no answer from http://127.0.0.1:1: Connection refused" in done.err
    assert "next: start a server with `topics serve --port 1`, or correct --url\n" in done.err


def test_next_step_without_a_server_names_what_gave_the_address(home: Cli) -> None:
    start = "next: start a server with `topics serve --port 1`, or "
    home.pipe("context", "add", "none", "--url", "http://127.0.0.1:1")
    assert f"{start}name another with --url or `topics context use`\n" in home.pipe("ls").err
    assert f"{start}correct --context\n" in home.pipe("ls", "-c", "none").err
    for env in ({"TOPICS_URL": "http://127.0.0.1:1"}, {"TOPICS_CONTEXT": "none"}):
        assert f"{start}correct or unset {next(iter(env))}, which gave this" in home.pipe("ls", **env).err
    doctor = [json.loads(line) for line in home.pipe("doctor").lines]
    [fix] = [row["fix"] for row in doctor if row["check"] == "server"]
    assert "`topics serve --port 1`" in fix


def test_bad_url_is_a_usage_error(home: Cli) -> None:
    for url in ("ftp://x", "http://", "http://host:port"):
        done = home.pipe("ls", "--url", url)
        assert (done.status, "is not the URL of a server" in done.err) == (2, True), url


def test_closed_pipe_ends_a_command_quietly(cli: Cli) -> None:
    cli.pipe("append", "long", "-", stdin="1\n" * 50_000)
    done = subprocess.run(
        ["bash", "-c", f"{TOPICS} read long | head -n 2 | wc -l"],
        env=cli.env,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.stdout.strip(), done.stderr) == ("2", "")


# --- contexts and keys


def test_contexts_choose_the_server(cli: Cli, server: ServerProcess, tmp_path: Path) -> None:
    user = Cli(tmp_path / "home")
    assert "no contexts" in user.tty("context", "ls").out
    user.pipe("context", "add", "nowhere", "--url", "http://127.0.0.1:1")
    user.pipe("context", "add", "here", "--url", server.url)
    assert user.pipe("ls").status == 4
    assert user.pipe("ls", "--context", "here").status == 0
    assert user.pipe("ls", TOPICS_CONTEXT="here").status == 0
    assert user.pipe("context", "use", "here").status == 0
    assert user.pipe("ls").status == 0
    assert "TOPICS_URL is set" in user.tty("context", "use", "here", TOPICS_URL="http://127.0.0.1:1").out
    listed = [json.loads(line) for line in user.pipe("context", "ls").lines]
    assert {row["name"]: row["current"] for row in listed} == {"here": True, "nowhere": False}
    assert "* here" in user.tty("context", "ls").out.replace("  ", " ")
    assert user.pipe("context", "rm", "here").status == 0
    assert user.pipe("context", "use", "here").status == 3
    assert user.pipe("ls", "-c", "here").status == 3


def test_commands_take_several_addresses(server: ServerProcess, tmp_path: Path) -> None:
    user = Cli(tmp_path / "home")
    both = f"127.0.0.1:1,{server.url}/"
    user.pipe("context", "add", "pair", "--url", both)
    assert user.pipe("append", "pair.orders", "1").status == 0
    assert user.pipe("append", "pair.orders", "-", stdin="2\n3\n", TOPICS_URL=both).status == 0
    assert len(user.pipe("read", "pair.orders", "--url", both).lines) == 3
    assert user.pipe("state", "x", "--curl").out.startswith("curl -sS 'http://127.0.0.1:1/v0/topics/x?")
    done = user.pipe("ls", "--url", "http://127.0.0.1:1,http://127.0.0.1:2")
    assert (done.status, done.err.splitlines()[-1]) == (
        4, "next: check that a server runs at http://127.0.0.1:1 or http://127.0.0.1:2, or correct --url",
    )  # fmt: skip


@pytest.fixture
def guarded(start_server: StartServer) -> ServerProcess:
    return start_server(api_keys=KEY)


def test_key_comes_from_a_file_and_is_never_printed(guarded: ServerProcess, tmp_path: Path) -> None:
    user = Cli(tmp_path / "home", guarded.url)
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")
    without = user.pipe("ls")
    assert (without.status, "--token-file" in without.err) == (5, True)
    assert user.pipe("ls", "--token-file", str(key_file)).status == 0
    assert user.pipe("ls", TOPICS_TOKEN_FILE=str(key_file)).status == 0
    user.pipe("context", "add", "guarded", "--url", guarded.url, "--token-file", str(key_file))
    assert user.pipe("ls", "--context", "guarded").status == 0
    stored = (tmp_path / "home" / "config" / "topics" / "contexts.json").read_text()
    shown = user.pipe("state", "x", "--curl", "--token-file", str(key_file))
    assert f"$(cat {key_file})" in shown.out
    assert KEY not in stored + shown.out + shown.err


@pytest.mark.parametrize("key", ["two\nlines", "two words", "ключ", ""])
def test_key_that_no_header_can_hold_is_refused(tmp_path: Path, key: str) -> None:
    user = Cli(tmp_path / "home", "http://127.0.0.1:1")
    key_file = tmp_path / "key"
    key_file.write_text(key)
    for options, source in (("--token-file", str(key_file)), f"the key file {key_file}"), (("--token", key), "--token"):
        done = user.pipe("ls", *options)
        assert (done.status, f"{source} does not hold one API key" in done.err) == (2, True)


def test_key_on_the_command_line_is_warned_about(guarded: ServerProcess, tmp_path: Path) -> None:
    done = Cli(tmp_path / "home", guarded.url).pipe("ls", "--token", KEY)
    assert done.status == 0
    assert "warning: other users of this machine can see --token" in done.err
    assert KEY not in done.out + done.err


def test_key_of_a_context_is_not_sent_to_another_server(guarded: ServerProcess, tmp_path: Path) -> None:
    user = Cli(tmp_path / "home")
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    user.pipe("context", "add", "prod", "--url", "http://127.0.0.1:1", "--token-file", str(key_file))
    assert user.pipe("ls", "--url", guarded.url).status == 5


# --- --curl


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_prints_a_request_that_works(cli: Cli) -> None:
    for words, member in (
        (("create", "curled", "--ttl", "7d"), "created"),
        (("append", "curled", "it's", '{"a": "b"}', "--tag", "t"), "first_seq"),
        (("state", "curled"), "head_seq"),
        (("config", "curled"), "config"),
        (("ls", "curled"), "topics"),
        (("delete", "curled", "--tag", "t", "--dry-run"), "deleted"),
        (("watch", "curled"), "stream_url"),
        (("rm", "curled", "--yes"), "deleted"),
    ):
        shown = cli.pipe(*words, "--curl")
        assert shown.status == 0, shown
        ran = subprocess.run(["bash", "-c", shown.out], capture_output=True, text=True, timeout=20)
        assert member in json.loads(ran.stdout), (words, shown.out, ran)
    cli.pipe("append", "curled", "1")
    read = subprocess.run(["bash", "-c", cli.pipe("read", "curled", "--curl").out], capture_output=True, timeout=20)
    assert [json.loads(line).keys() for line in read.stdout.splitlines()][-1] == {"end"}


def test_version_takes_less_than_a_tenth_of_a_second(home: Cli) -> None:
    """The processor time of the best start counts, because other processes may use the machine."""
    took_s = []
    for _ in range(5):
        started = os.posix_spawn(TOPICS, [TOPICS, "--version"], home.env)
        _, status, usage = os.wait4(started, 0)
        assert status == 0
        took_s.append(usage.ru_utime + usage.ru_stime)
        if took_s[-1] < 0.1:
            return
    raise AssertionError(f"the fastest of {len(took_s)} starts took {min(took_s) * 1000:.0f} ms")
