"""Completion: in a real bash, and the candidates that every shell gets."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import TOPICS, Cli, Terminal
from topics.cli import tree

Api = Callable[..., Any]

# Asks bash for its completions of a line as a Tab would: the script sees the same variables.
BASH = """
source <(topics completion bash)
COMP_LINE=$1; COMP_POINT=${#COMP_LINE}
read -r -a COMP_WORDS <<< "$COMP_LINE"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_topics_complete
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module", autouse=True)
def topics_of_the_server(cli: Cli) -> None:
    for topic in ("chat:general", "chat:random", "orders"):
        cli.pipe("append", topic, "1")
    cli.pipe("create", "mail", "--type", "queue")
    cli.pipe("router", "create", "audit", "--from", "orders", "--to", "orders.audit")
    cli.pipe("context", "add", "prod", "--url", "http://127.0.0.1:1")


def complete(cli: Cli, line: str, shell: str = "fish") -> list[str]:
    return cli.pipe("complete-line", shell, line).lines


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed: its completion script was not run")
def test_bash_completes_commands_options_and_topics(cli: Cli) -> None:
    env = cli.env | {"PATH": f"{Path(TOPICS).parent}:{cli.env['PATH']}"}

    def tab(line: str) -> list[str]:
        done = subprocess.run(["bash", "-c", BASH, "bash", line], env=env, capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        return done.stdout.split()

    assert tab("topics app") == ["append"]
    assert tab("topics read or") == ["orders", "orders.audit"]
    assert tab("topics read orders --fol") == ["--follow"]
    assert tab("topics read chat:g") == ["general"]  # bash takes what follows the colon as the word


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed: its completion script was not run")
def test_tab_completes_a_topic_in_an_interactive_bash(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "rc").write_text(f"PATH={Path(TOPICS).parent}:$PATH\nPS1='ready> '\nsource <(topics completion bash)\n")
    with Terminal(cli, "--rcfile", str(tmp_path / "rc"), "-i", program="bash") as shell:
        shell.wait_for("ready> ")
        shell.type("topics state chat:gen\t")
        shell.wait_for("topics state chat:general ")
        shell.type("| cat\n")
        shell.wait_for('"topic":"chat:general"')
        shell.type("exit\n")
        assert shell.wait() == 0


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed: its completion script was not run")
def test_tab_completes_in_an_interactive_zsh(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ".zshrc").write_text(
        f"PATH={Path(TOPICS).parent}:$PATH\nPS1='ready> '\nunsetopt zle_bracketed_paste\n"
        "autoload -Uz compinit && compinit -u\nsource <(topics completion zsh)\n"
    )
    with Terminal(cli, "-i", program="zsh", ZDOTDIR=str(tmp_path)) as shell:
        shell.wait_for("ready> ")
        for typed, shown in (
            ("topics app", "topics append "),
            ("topics state chat:gen", "topics state chat:general "),
            ("topics state 'chat:gen", "topics state 'chat:general' "),
            ("topics read orders --fol", "topics read orders --follow "),
            ("echo 1 | topics queue peek ma", "echo 1 | topics queue peek mail "),
            ("topics append orders /etc/passw", "topics append orders /etc/passwd"),  # no candidate: files
        ):
            shell.type(f"{typed}\t")
            shell.wait_for(shown)
            shell.type("\x15")  # clears the line
        shell.type("exit\n")
        assert shell.wait() == 0


# `complete -C LINE` prints what a Tab at the end of the line offers.
FISH = """
topics completion fish | source
for line in $argv
    echo "[$line]"
    complete -C "$line" | string split -f 1 \\t
end
"""


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed: its completion script was not run")
def test_fish_completes_names_and_offers_files_only_without_them(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    env = cli.env | {"PATH": f"{Path(TOPICS).parent}:{cli.env['PATH']}"}
    lines = ("topics app", "topics queue peek ", "topics read chat:g", "topics read 'chat:g", "topics context use ",
             "echo 1 | topics read orders --fol", "topics append orders a-")  # fmt: skip
    done = subprocess.run(
        ["fish", "-c", FISH, *lines], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    found = {part.partition("]\n")[0]: part.partition("]\n")[2].split() for part in done.stdout.split("[")[1:]}
    assert list(found.values()) == [
        ["append"], ["mail"], ["chat:general"], ["chat:general"], ["prod"], ["--follow"], ["a-file"],
    ]  # fmt: skip


def test_commands_and_their_groups_are_completed(cli: Cli) -> None:
    assert complete(cli, "topics ") == sorted(tree.ROWS)
    assert complete(cli, "topics queue c") == ["claim"]
    assert complete(cli, "topics context use p") == ["prod"]
    assert complete(cli, "topics nothing ") == []
    assert complete(cli, "topics read orders --last 5 --f") == ["--follow", "--format", "--from"]


def test_arguments_are_completed_with_names_of_their_kind(cli: Cli) -> None:
    assert complete(cli, "topics queue peek ") == ["mail"]
    assert complete(cli, "topics router rm ") == ["audit"]
    assert complete(cli, "topics watch orders ") == [
        "chat:general", "chat:random", "mail", "orders", "orders.audit",
    ]  # fmt: skip
    assert complete(cli, "topics read 'chat:") == ["chat:general", "chat:random"]
    assert complete(cli, "topics create x --durability f") == ["fsync"]
    assert complete(cli, "topics ls --context ") == ["prod"]


def test_names_come_from_the_server_that_the_line_chooses(cli: Cli) -> None:
    assert complete(cli, "topics read --context prod or") == []
    assert complete(cli, "topics read --url http://127.0.0.1:1 or") == []


def test_every_shell_gets_a_script(cli: Cli) -> None:
    for shell in ("bash", "zsh", "fish"):
        done = cli.pipe("completion", shell)
        assert (done.status, f"topics complete-line {shell}" in done.out.replace('"${COMP_WORDS[0]}"', "topics")) == (
            0,
            True,
        )
    assert cli.pipe("completion", "csh").status == 2
