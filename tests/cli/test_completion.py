"""Completion: in real shells, and the names that they ask for."""

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
_shtab_topics
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module", autouse=True)
def topics_of_the_server(cli: Cli) -> None:
    for topic in ("chat:general", "chat:random", "orders"):
        cli.pipe("append", topic, "1")
    cli.pipe("create", "mail", "--type", "queue")
    cli.pipe("router", "create", "audit", "--from", "orders", "--to", "orders.audit")
    cli.pipe("context", "add", "prod", "--url", "http://127.0.0.1:1")


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
    assert tab("topics read chat:g") == ["chat:general"]
    assert tab("topics queue peek m") == ["mail"]
    assert tab("topics router rm a") == ["audit"]
    assert tab("topics create x --durability f") == ["fsync"]
    assert tab("topics context use p") == ["prod"]


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
        'autoload -Uz compinit && compinit -u\neval "$(topics completion zsh)"\n'
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


def test_names_are_printed_for_shells(cli: Cli) -> None:
    assert cli.pipe("complete-names", "queues").lines == ["mail"]
    assert cli.pipe("complete-names", "routers").lines == ["audit"]
    assert cli.pipe("complete-names", "topics").lines == [
        "chat:general", "chat:random", "mail", "orders", "orders.audit",
    ]  # fmt: skip
    assert cli.pipe("complete-names", "contexts").lines == ["prod"]
    assert cli.pipe("complete-names", "topics", TOPICS_URL="http://127.0.0.1:1").lines == []


def test_every_shell_gets_a_script_with_every_command(cli: Cli) -> None:
    for shell in ("bash", "zsh", "fish"):
        done = cli.pipe("completion", shell)
        assert (done.status, "topics complete-names topics" in done.out) == (0, True)
        assert [name for name in tree.ROWS if name not in done.out] == []
    assert cli.pipe("completion", "csh").status == 2
