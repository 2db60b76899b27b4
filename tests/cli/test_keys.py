"""`topics key`, and the question before `topics append` creates a topic."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Cli
from tests.conftest import ServerProcess


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    directory = tmp_path_factory.mktemp("keys")
    server = ServerProcess(directory, {"api_keys": "root-key"})
    (directory / "token").write_text("root-key\n")
    cli = Cli(directory / "home", server.url)
    cli.env["TOPICS_TOKEN_FILE"] = str(directory / "token")
    yield cli
    server.stop()


def as_key(cli: Cli, secret: str, directory: Path) -> Cli:
    file = directory / "secret"
    file.write_text(secret)
    other = Cli(directory / "home", cli.env["TOPICS_URL"])
    other.env["TOPICS_TOKEN_FILE"] = str(file)
    return other


def test_key_is_created_listed_rotated_and_revoked(admin: Cli, tmp_path: Path) -> None:
    made = admin.pipe("key", "create", "billing", "--scopes", "read", "--names", "orders", "--note", "invoices")
    secret = json.loads(made.out)["secret"]
    assert "shown once" in made.err
    user = as_key(admin, secret, tmp_path)
    assert user.pipe("ls").status == 0
    assert user.pipe("append", "orders", "1").status != 0
    listed = admin.tty("key", "ls")
    assert "billing" in listed.out
    assert "invoices" in listed.out
    assert secret not in listed.out
    newer = admin.tty("key", "rotate", "billing", "--overlap", "0s")
    assert user.pipe("ls").status != 0
    assert "tk_" in newer.out
    assert admin.tty("key", "revoke", "billing", typed="n\n").status != 0
    assert admin.pipe("key", "revoke", "billing", "--yes").status == 0
    assert "billing" not in admin.pipe("key", "ls").out


def test_wrong_scope_is_refused_before_it_is_sent(admin: Cli) -> None:
    done = admin.pipe("key", "create", "x", "--scopes", "reed")
    assert done.status == 2
    assert "scopes" in done.err


def test_append_asks_on_a_terminal_before_it_creates_a_topic(admin: Cli) -> None:
    assert admin.pipe("append", "orders", "1").status == 0, "a script is not asked"
    refused = admin.tty("append", "ordrs", "1", typed="n\n")
    assert refused.status != 0
    assert "did you mean orders?" in refused.out
    assert "ordrs" not in admin.pipe("ls").out
    assert admin.tty("append", "ordrs", "1", typed="y\n").status == 0
    assert admin.tty("append", "third", "1", "--create").status == 0
    assert admin.tty("append", "orders", "2").status == 0, "a topic that exists needs no question"
