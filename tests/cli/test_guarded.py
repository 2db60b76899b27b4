"""Errors of commands that work on files without a server."""

from __future__ import annotations

import argparse

import pytest

from topics.cli.offline.guarded import EXIT_FAILED, guarded


def raising(error: Exception):
    def execute(_: argparse.Namespace) -> int:
        raise error

    return execute


def test_closed_pipe_is_no_failure_of_the_disk(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(BrokenPipeError):
        guarded(raising(BrokenPipeError(32, "Broken pipe")), argparse.Namespace())
    assert capsys.readouterr().err == ""


def test_failure_of_the_disk_names_the_file_and_the_next_step(capsys: pytest.CaptureFixture[str]):
    assert guarded(raising(OSError(5, "Input/output error", "/data/x")), argparse.Namespace()) == EXIT_FAILED
    assert "Input/output error: /data/x" in capsys.readouterr().err
