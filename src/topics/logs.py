"""Structured logs: an event name and fields, as JSON lines or, on a terminal, for people.

A log line must never carry a token or a payload, whoever writes it. So fields are plain scalars (bytes do not
type-check and are not printed), fields with telling names are hidden, credentials inside text are cut out, long text is
cut short, and an exception is told by its type and its place in the code: its message may quote what a client sent.
"""

import json
import logging
import os
import re
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

from topics.errors import Corrupt

Field = str | int | float | bool | None | list[str]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

HIDDEN = "[hidden]"
MAX_TEXT = 512
MAX_FRAMES = 30

_SECRET_FIELDS = frozenset(
    {"api_key", "api_keys", "authorization", "body", "data", "meta", "payload", "secret", "token"}
)
_CREDENTIAL = re.compile(
    r"(?i)(authorization\s*[=:]\s*(?:\w+\s+)?|bearer\s+|(?:token|api[_-]?keys?)\s*[=:]\s*)[^\s&\"',;]+"
)
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")
_COLOURS = {"debug": "2", "info": "36", "warning": "33", "error": "31", "critical": "31;1"}


class Log:
    """A named source of events: `Log("server").info("listening", port=4000)`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"topics.{name}")

    def debug(self, event: str, /, **fields: Field) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Field) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Field) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Field) -> None:
        self._emit(logging.ERROR, event, fields)

    def failure(self, event: str, error: BaseException, /, **fields: Field) -> None:
        """An error with the exception behind it."""
        self._emit(logging.ERROR, event, fields, (type(error), error, error.__traceback__))

    def _emit(self, level: int, event: str, fields: dict[str, Field], exc: ExcInfo | None = None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={"fields": fields}, exc_info=exc)


class JsonFormatter(logging.Formatter):
    """One JSON object a line; `ts` is in milliseconds since the epoch, as everywhere in the product."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"ts": int(record.created * 1000), "level": record.levelname.lower(), "log": _source(record)}
        return json.dumps(line | _contents(record), ensure_ascii=False, separators=(",", ":"))


class HumanFormatter(logging.Formatter):
    """Local time, level, source, event, then `key=value`; control characters cannot reach the terminal."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, tz=UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
        level = record.levelname.lower()
        contents = _contents(record)
        event = contents.pop("event")
        frames = contents.pop("frames", None)
        if self._colour:
            level = f"\x1b[{_COLOURS.get(level, '0')}m{level:7}\x1b[0m"
        words = [time, f"{level:7}", f"{_source(record)}:", _printable(str(event))]
        words += [f"{key}={_word(value)}" for key, value in contents.items()]
        line = " ".join(words)
        return "\n    ".join([line, *map(_printable, frames)]) if isinstance(frames, list) else line


def setup(*, level: str, form: str, stream: TextIO | None = None) -> None:
    """Send everything to `stream`, by default standard error. `form` auto is human on a terminal and json elsewhere."""
    out = stream if stream is not None else sys.stderr
    terminal = out.isatty()
    human = form == "human" or (form == "auto" and terminal)
    handler = logging.StreamHandler(out)
    handler.setFormatter(HumanFormatter(colour=terminal and "NO_COLOR" not in os.environ) if human else JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("topics").setLevel(level.upper())
    # A log line that cannot be written (a closed pipe) must not turn into a traceback on the same pipe.
    logging.raiseExceptions = False


def clean(value: object) -> Field:
    """A value fit for a log line."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [str(clean(item)) for item in value[:100]]
    if not isinstance(value, str):
        return f"<{type(value).__name__}>"
    text = _CREDENTIAL.sub(rf"\1{HIDDEN}", value)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


def _source(record: logging.LogRecord) -> str:
    return record.name.removeprefix("topics.")


def _contents(record: logging.LogRecord) -> dict[str, Field]:
    contents: dict[str, Field] = {"event": clean(record.getMessage())}
    fields: dict[str, object] = getattr(record, "fields", {})
    for key, value in fields.items():
        contents[key] = HIDDEN if key.lower() in _SECRET_FIELDS else clean(value)
    if record.exc_info and record.exc_info[1] is not None:
        contents |= _exception(record.exc_info[1])
    return contents


def _exception(error: BaseException) -> dict[str, Field]:
    """Type and place; the message only where it is about the machine and never about a request."""
    told: dict[str, Field] = {"error": type(error).__name__}
    if isinstance(error, Corrupt):
        told["reason"] = clean(str(error))
    elif isinstance(error, OSError) and error.errno is not None:
        told["reason"] = clean(
            f"{os.strerror(error.errno)}: {error.filename}" if error.filename else os.strerror(error.errno)
        )
    stack = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    told["frames"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in stack]
    return told


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _word(value: Field) -> str:
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(_printable(value), ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)
