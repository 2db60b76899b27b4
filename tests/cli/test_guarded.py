"""Errors of commands that work on files without a server."""

from __future__ import annotations

import argparse

import pytest

from topics.cli.offline.guarded import guarded
from topics.cli.output.failures import EXIT_FAILED, Failure


def raising(error: Exception):
    def execute(_: argparse.Namespace) -> None:
        raise error

    return execute


def test_closed_pipe_is_no_failure_of_the_disk(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(BrokenPipeError):
        guarded(raising(BrokenPipeError(32, "Broken pipe")), argparse.Namespace())
    assert capsys.readouterr().err == ""


def test_failure_of_the_disk_names_the_file_and_the_next_step():
    with pytest.raises(Failure, match="Input/output error: /data/x") as caught:
        guarded(raising(OSError(5, "Input/output error", "/data/x")), argparse.Namespace())
    assert caught.value.status == EXIT_FAILED
    assert caught.value.next_step
