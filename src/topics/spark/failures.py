"""Failures of pipelines and queries: their kind, their message, and the next step for the user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from topics.errors import Code, TopicsError
from topics.lake.errors import Damaged, LakeError, NoLake
from topics.lake.storage import REMEDIES
from topics.spark.options import BadOption
from topics.spark.source.catalog import NoSuchTopic
from topics.storage.datadir import DataDirError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

RUN_AGAIN = "run the same command again"
RESUME = f"{RUN_AGAIN}: it continues where this run stopped"


class FailureKind(Enum):
    """The kind of a failure in a report, and the exit status of the command."""

    USAGE = "usage", 2
    UNREACHABLE = "unreachable", 1
    FORBIDDEN = "forbidden", 1
    LAKE = "lake", 1
    NO_SPARK = "no_spark", 1
    FAILED = "failed", 1
    INTERRUPTED = "interrupted", 130

    def __init__(self, wire: str, exit_status: int) -> None:
        self.wire = wire
        self.exit_status = exit_status


class Failed(Exception):
    """The pipeline cannot continue: the message says why, and `next` says what to do."""

    def __init__(self, message: str, *, next: str | None = None) -> None:
        super().__init__(message)
        self.next = next


class BadUsage(Failed):
    """The arguments are invalid: unknown topic, missing lake, wrong option. The command exits with 2."""


class NoSpark(Failed):
    """The run needs Spark, and Spark or Java is not installed."""


class LakeFailed(Failed):
    """The lake cannot be used: a file is missing or damaged, or cannot be written."""


_OF_CLASS = {
    (KeyboardInterrupt,): FailureKind.INTERRUPTED,
    (BadUsage, BadOption, NoLake, NoSuchTopic, DataDirError): FailureKind.USAGE,
    (NoSpark,): FailureKind.NO_SPARK,
    (LakeFailed, LakeError): FailureKind.LAKE,
}
_OF_CODE: dict[str, FailureKind] = {
    Code.UNAUTHORIZED: FailureKind.FORBIDDEN,
    Code.FORBIDDEN: FailureKind.FORBIDDEN,
    "http_401": FailureKind.FORBIDDEN,  # of a proxy
    "http_403": FailureKind.FORBIDDEN,
    Code.NOT_READY: FailureKind.UNREACHABLE,
    Code.SHUTTING_DOWN: FailureKind.UNREACHABLE,
    "http_503": FailureKind.UNREACHABLE,
    "unreachable": FailureKind.UNREACHABLE,
}
_OF_TASK = {  # by the class name of an exception raised in a Spark task
    "Unauthorized": FailureKind.FORBIDDEN,
    "Forbidden": FailureKind.FORBIDDEN,
    "Unreachable": FailureKind.UNREACHABLE,
    "Damaged": FailureKind.LAKE,
    **{one.__name__: kind for classes, kind in _OF_CLASS.items() for one in classes},
}


@contextmanager
def allowed(*codes: Code) -> Iterator[None]:
    """Suppress errors of a server with these codes."""
    try:
        yield
    except TopicsError as error:
        if error.code not in codes:
            raise


def kind_of(error: BaseException) -> FailureKind:
    """Return the kind of a failure. Every pipeline uses this function."""
    for classes, kind in _OF_CLASS.items():
        if isinstance(error, classes):
            return kind
    if _refused_by_disk(error) is not None:
        return FailureKind.LAKE
    if isinstance(error, TopicsError):
        return _OF_CODE.get(error.code, FailureKind.FAILED)
    if not _is_of_spark(error):
        return FailureKind.FAILED
    if any(one.__name__ == "AnalysisException" for one in type(error).__mro__) or _does_not_fit(error):
        return FailureKind.USAGE  # an error in an SQL expression of the user
    return _OF_TASK.get(_innermost(str(error))[0], FailureKind.FAILED)


def _does_not_fit(error: BaseException) -> bool:
    """Return whether an expression failed on a value of a record."""
    return _is_of_spark(error) and _MISFIT.match(_innermost(str(error))[1].strip()) is not None


_MISFIT = re.compile(
    r"\[(?:INVALID_VARIANT_CAST|CAST_INVALID_INPUT|CAST_OVERFLOW|DIVIDE_BY_ZERO|ARITHMETIC_OVERFLOW|"
    r"BINARY_ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE|INVALID_ARRAY_INDEX|MALFORMED_RECORD_IN_PARSING|"
    r"CANNOT_PARSE_TIMESTAMP|INVALID_VARIANT_GET_PATH|DATETIME_OVERFLOW)\b"
)


def as_failed(error: BaseException) -> BaseException:
    """Return the exception for the caller: errors of a lake, a directory or the source become a `Failed`."""
    if isinstance(error, NoLake | NoSuchTopic | DataDirError):
        return BadUsage(str(error), next=next_step(error))
    if isinstance(error, LakeError):
        return LakeFailed(str(error), next=next_step(error))
    if (message := _refused_by_disk(error)) is not None:
        return LakeFailed(message)
    return error


def _refused_by_disk(error: BaseException) -> str | None:
    """Return the message with remedy for a disk that is full or not writable, or None for another error."""
    if isinstance(error, OSError) and isinstance(error.filename, str) and error.errno in REMEDIES:
        return f"{error.filename}: {error.strerror}; {REMEDIES[error.errno]}"
    return None


def explain(error: BaseException) -> str:
    """Return the message of an error; for a failed Spark task, the message of the exception in the task."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if (message := _refused_by_disk(error)) is not None:
        return message
    text = _innermost(str(error))[1] if _is_of_spark(error) else str(error)
    return text.strip() or type(error).__name__


def _is_of_spark(error: BaseException) -> bool:
    return type(error).__module__.startswith(("pyspark", "py4j"))


def _innermost(text: str) -> tuple[str, str]:
    """Return class and message of the Python exception in a JVM message, or its first line if there is none.

    In a chain of exceptions the last one is returned, because it says more than its cause.
    """
    _, mark, inside = text.partition(_TRACEBACK)
    if not mark:
        return "", _of_java(text)
    found = _raised(inside)
    for more in _CHAINED.split(inside)[1:]:
        found = _raised(more)
    return found


def _of_java(text: str) -> str:
    """Return the first line; for a Java stack trace, the message of the innermost cause."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    causes = [line.removeprefix("Caused by").removeprefix(": ") for line in lines if line.startswith(_CAUSES)]
    if not lines[0].startswith("An error occurred while calling") or not causes:
        return lines[0]
    name, colon, message = causes[-1].partition(": ")
    return message if colon and "." in name else causes[-1]


_CAUSES = ("Caused by: ", ": ")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception|"
    r"During handling of the above exception, another exception occurred):\n\n" + re.escape(_TRACEBACK)
)


def _raised(trace: str) -> tuple[str, str]:
    for line in trace.splitlines():
        if line and not line[0].isspace():
            name, colon, message = line.partition(": ")
            return name.rpartition(".")[2], message if colon and message and "." in name else line
    return "", trace.partition("\n")[0]


def next_step(error: BaseException, *, resumes: bool = True, began: bool = True) -> str:
    """Return what the user should do after this failure.

    `resumes`: the next run continues where this one stopped. `began`: the servers answered; if not, the URL may be
    wrong.
    """
    if isinstance(error, Failed) and error.next is not None:
        return error.next
    for kind_of_error, text in _NEXT_OF_CLASS.items():
        if isinstance(error, kind_of_error):
            return text
    if _does_not_fit(error):
        return (
            "make the expression return NULL for a value that does not fit, with try_cast(… AS …), "
            "try_variant_get(value, '$.…', '…'), get(array, index), try_divide or try_add; then run the command again"
        )
    kind = kind_of(error)
    if kind is FailureKind.FORBIDDEN:
        return _key_needed(error.detail if isinstance(error, TopicsError) else None)
    if kind is FailureKind.UNREACHABLE and not began:
        return f"check that the server runs and that the URL is right, then {RUN_AGAIN}"
    step = _NEXT.get(kind, RESUME)
    return step if resumes else step.replace(RESUME, RUN_AGAIN)


_NEXT_OF_CLASS: dict[type[Exception], str] = {
    NoLake: "check that --lake names the lake, and that it is mounted; topics pipeline archive creates one",
    NoSuchTopic: "check the name of the topic",
    DataDirError: "give --path the data directory of a server that is stopped, or a backup",
    Damaged: "topics pipeline audit names every missing or damaged file: restore them from a copy of the lake, and run "
    "the same command again",
}
_NEXT = {
    FailureKind.USAGE: "correct the command; --help lists its options",
    FailureKind.UNREACHABLE: f"check that the server runs and can be reached from here, then {RESUME}",
    FailureKind.LAKE: f"repair the lake, which is unchanged since its last commit, then {RESUME}",
}


def _key_needed(detail: Mapping[str, Any] | None) -> str:
    known = detail or {}
    if "scope" in known:
        what = f"that has the scope {' and '.join(known['scope'])}"
    elif "name" in known:
        what = f"whose prefixes cover {known['name']}"
    else:
        what = "that may do this"
    return f"use a key {what}, with --token-file; the server reads its keys from TOPICS_API_KEYS"
