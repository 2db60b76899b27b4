"""Structured logs: an event name and fields, as JSON lines, or as text on a terminal.

A log line must never contain a token or a payload. Fields are therefore plain scalars (bytes do not type-check and are
not printed), fields with names such as `token` are hidden, credentials inside text are removed, long text is shortened,
and an exception is logged with its type and traceback only, because its message can quote a request.
"""

import json
import logging
import os
import re
import sys
import traceback
from collections import Counter
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

from topics.errors import Corrupt

Field = str | int | float | bool | None | list[str]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]

ERRORS = Counter[str]()  # events of level error since the start, for the metrics. Their names are in the code: few.
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
    """A named logger: `Log("server").info("listening", port=4000)`."""

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
        """Log an error with the type and traceback of its exception."""
        self._emit(logging.ERROR, event, fields, (type(error), error, error.__traceback__))

    def is_enabled(self, level: int) -> bool:
        return self._logger.isEnabledFor(level)

    def _emit(self, level: int, event: str, fields: dict[str, Field], exc: ExcInfo | None = None) -> None:
        if level == logging.ERROR:
            ERRORS[event] += 1
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={"fields": fields}, exc_info=exc)


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON object per line, with `ts` in milliseconds since the epoch."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"ts": int(record.created * 1000), "level": record.levelname.lower(), "log": _source(record)}
        return json.dumps(line | _contents(record), ensure_ascii=False, separators=(",", ":"))


class HumanFormatter(logging.Formatter):
    """Format a record as local time, level, source, event and `key=value`. Control characters are escaped."""

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
    """Log to `stream`, by default standard error. The form `auto` is human on a terminal and json elsewhere."""
    out = stream if stream is not None else sys.stderr
    terminal = out.isatty()
    human = form == "human" or (form == "auto" and terminal)
    handler = logging.StreamHandler(out)
    handler.setFormatter(HumanFormatter(colour=terminal and "NO_COLOR" not in os.environ) if human else JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("topics").setLevel(level.upper())
    # If a log line cannot be written (a closed pipe), do not print a traceback to the same pipe.
    logging.raiseExceptions = False


def clean(value: object) -> Field:
    """Return a value without secrets and bounded in size, fit for a log line."""
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
    """Return type and traceback. Include the message only of errors that cannot quote a request."""
    fields: dict[str, Field] = {"error": type(error).__name__}
    if isinstance(error, Corrupt):
        fields["reason"] = clean(str(error))
    elif isinstance(error, OSError) and error.errno is not None:
        fields["reason"] = clean(
            f"{os.strerror(error.errno)}: {error.filename}" if error.filename else os.strerror(error.errno)
        )
    stack = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    fields["frames"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in stack]
    return fields


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _word(value: Field) -> str:
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(_printable(value), ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)
