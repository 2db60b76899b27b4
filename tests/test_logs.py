"""Log lines: both formats, and hidden secrets."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from topics import logs
from topics.errors import Corrupt


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level, logging.raiseExceptions
    yield
    root.handlers, root.level, logging.raiseExceptions = before
    logging.getLogger("topics").setLevel(logging.NOTSET)


def lines(form: str = "json", level: str = "info") -> tuple[logs.Log, io.StringIO]:
    stream = io.StringIO()
    logs.setup(level=level, form=form, stream=stream)
    return logs.Log("test"), stream


def test_line_without_a_terminal_is_one_json_object():
    log, stream = lines("auto")
    log.info("listening", port=4000, addresses=["a", "b"], note="two\nlines")
    line = json.loads(stream.getvalue())
    assert line.pop("ts") > 1_500_000_000_000
    assert line == {
        "level": "info",
        "log": "test",
        "event": "listening",
        "port": 4000,
        "addresses": ["a", "b"],
        "note": "two\nlines",
    }


def test_line_on_a_terminal_is_readable_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    logs.setup(level="info", form="auto", stream=stream)
    logs.Log("test").warning("slow", topic="orders", note="two words")
    assert stream.getvalue().endswith(' warning test: slow topic=orders note="two words"\n')


def test_control_characters_do_not_reach_the_terminal():
    log, stream = lines("human")
    log.info("odd\x1b[2J", name="a\nb\x1b[31m")
    [line] = stream.getvalue().splitlines()
    assert "\x1b" not in line


def test_lines_below_the_level_are_dropped():
    log, stream = lines(level="warning")
    log.info("quiet")
    log.debug("quieter")
    log.error("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


@pytest.mark.parametrize("form", ["json", "human"])
def test_tokens_and_payloads_are_hidden(form: str):
    log, stream = lines(form)
    log.info("a", token="s3cret", data="s3cret", payload="s3cret", api_keys="s3cret")
    log.info("b", path="/v0/watch/w?token=s3cret&x=1", header="Authorization: Bearer s3cret")
    log.info("c", raw=b"s3cret")  # type: ignore[arg-type]
    log.info("d bearer s3cret")
    try:
        raise ValueError("could not take s3cret")
    except ValueError as error:
        log.failure("e", error)
    logging.getLogger("elsewhere").warning("token=%s", "s3cret")
    assert "s3cret" not in stream.getvalue()
    assert len([line for line in stream.getvalue().splitlines() if not line.startswith("    ")]) == 6


def test_failure_has_type_and_traceback():
    log, stream = lines()
    try:
        open("/nonexistent/file")
    except OSError as error:
        log.failure("cannot_open", error, topic="orders")
    line = json.loads(stream.getvalue())
    assert (line["error"], line["reason"]) == ("FileNotFoundError", "No such file or directory: /nonexistent/file")
    assert line["frames"][-1].endswith(" test_failure_has_type_and_traceback")


def test_corrupt_error_has_its_message():
    log, stream = lines()
    log.failure("damaged", Corrupt("wal/000001.log", 4096, "checksum does not match"))
    assert json.loads(stream.getvalue())["reason"] == "wal/000001.log at byte 4096: checksum does not match"


def test_long_text_is_shortened():
    log, stream = lines()
    log.info("long", text="x" * 10_000)
    assert len(stream.getvalue()) < 1000
