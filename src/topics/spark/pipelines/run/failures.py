"""Failures of pipelines: of what kind they are, what is wrong, and what to do next."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from topics.errors import Code, TopicsError
from topics.lake.disk import REMEDIES
from topics.lake.errors import Damaged, LakeError, NoLake
from topics.spark.options import BadOption
from topics.spark.pipelines.run.report import RunProblem, RunReport
from topics.spark.source.catalog import NoSuchTopic
from topics.storage.datadir import DataDirError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ANEW = "run the same command again"
AGAIN = f"{ANEW}: it goes on where this run stopped"


class FailureKind(Enum):
    """What a report calls a failure, and the exit status of the command that met it."""

    USAGE = "usage", 2
    UNREACHABLE = "unreachable", 1
    FORBIDDEN = "forbidden", 1
    LAKE = "lake", 1
    FAILED = "failed", 1
    INTERRUPTED = "interrupted", 130

    def __init__(self, wire: str, exit_status: int) -> None:
        self.wire = wire
        self.exit_status = exit_status


class Failed(Exception):
    """A pipeline that cannot go on: what is wrong, and what to do next."""

    def __init__(self, message: str, *, next: str | None = None) -> None:
        super().__init__(message)
        self.next = next


class BadUsage(Failed):
    """Arguments that cannot be meant, such as a topic or a lake that is not there. The command exits with 2."""


class LakeFailed(Failed):
    """A lake that cannot be used as asked: a file of it is missing or damaged, or cannot be written."""


_OF_CODE = {
    Code.UNAUTHORIZED: FailureKind.FORBIDDEN,
    Code.FORBIDDEN: FailureKind.FORBIDDEN,
    Code.NOT_READY: FailureKind.UNREACHABLE,
    Code.SHUTTING_DOWN: FailureKind.UNREACHABLE,
}
_OF_TASK = {  # by the name of what was raised inside Spark
    "Refused": FailureKind.FORBIDDEN,
    "Unreachable": FailureKind.UNREACHABLE,
    "BadOption": FailureKind.USAGE,
    "NoLake": FailureKind.USAGE,
    "NoSuchTopic": FailureKind.USAGE,
    "Damaged": FailureKind.LAKE,
    "LakeError": FailureKind.LAKE,
}


def kind_of(error: BaseException) -> FailureKind:
    """The one place that decides it, for every pipeline."""
    if isinstance(error, KeyboardInterrupt):
        return FailureKind.INTERRUPTED
    if isinstance(error, BadUsage | BadOption | NoLake | NoSuchTopic | DataDirError):
        return FailureKind.USAGE
    if isinstance(error, LakeFailed | LakeError) or _refused_by_disk(error) is not None:
        return FailureKind.LAKE
    if isinstance(error, TopicsError):
        return _OF_CODE.get(error.code, FailureKind.FAILED)
    if _is_of_spark(error):
        if any(one.__name__ == "AnalysisException" for one in type(error).__mro__):
            return FailureKind.USAGE  # of an expression that somebody gave
        if _does_not_fit(error):
            return FailureKind.USAGE
        return _OF_TASK.get(_innermost(str(error))[0], FailureKind.FAILED)
    return FailureKind.FAILED


def _does_not_fit(error: BaseException) -> bool:
    """A value of a record that an expression cannot take."""
    return _is_of_spark(error) and _MISFIT.match(_innermost(str(error))[1].strip()) is not None


_MISFIT = re.compile(
    r"\[(?:INVALID_VARIANT_CAST|CAST_INVALID_INPUT|CAST_OVERFLOW|DIVIDE_BY_ZERO|ARITHMETIC_OVERFLOW|"
    r"BINARY_ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE|INVALID_ARRAY_INDEX|MALFORMED_RECORD_IN_PARSING|"
    r"CANNOT_PARSE_TIMESTAMP|INVALID_VARIANT_GET_PATH|DATETIME_OVERFLOW)\b"
)


def as_failed(error: BaseException) -> BaseException:
    """What the caller of a pipeline gets: the errors of lakes and of the source as one of ours."""
    if isinstance(error, NoLake | NoSuchTopic | DataDirError):
        return BadUsage(str(error), next=next_step(error))
    if isinstance(error, LakeError):
        return LakeFailed(str(error), next=next_step(error))
    if (told := _refused_by_disk(error)) is not None:
        return LakeFailed(told)
    return error


def _refused_by_disk(error: BaseException) -> str | None:
    """What a disk says that is full or may not be written, in the words that lakes have for it."""
    if isinstance(error, OSError) and isinstance(error.filename, str) and error.errno in REMEDIES:
        return f"{error.filename}: {error.strerror}; {REMEDIES[error.errno]}"
    return None


def problem_of(error: BaseException, *, resumes: bool = True, began: bool = True) -> RunProblem:
    step = next_step(error, resumes=resumes, began=began)
    return RunProblem(kind=kind_of(error).wire, message=explain(error), next=step)


def attach(error: BaseException, report: RunReport) -> None:
    """Lets the failure carry what the run had done by then."""
    error.__dict__["report"] = report


def report_of(error: BaseException, *, pipeline: str, dry_run: bool) -> RunReport:
    """The report of a run that failed; one without any work where it failed before it began."""
    known = error.__dict__.get("report")
    if isinstance(known, RunReport):
        return known
    report = RunReport(pipeline=pipeline, run_id="", dry_run=dry_run)
    report.fail(problem_of(error, resumes=False, began=False))
    return report


def explain(error: BaseException) -> str:
    """One line that says what went wrong; of a failed Spark task the error of the task, not of those above it."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if (told := _refused_by_disk(error)) is not None:
        return told
    text = _innermost(str(error))[1] if _is_of_spark(error) else str(error)
    return text.strip() or type(error).__name__


def _is_of_spark(error: BaseException) -> bool:
    return type(error).__module__.startswith(("pyspark", "py4j"))


def _innermost(text: str) -> tuple[str, str]:
    """Class and message of the Python error inside what the JVM says, or its first line where there is none.

    An error that was raised because of another one comes after it, and says more.
    """
    _, mark, inside = text.partition(_TRACEBACK)
    if not mark:
        return "", _of_java(text)
    found = _raised(inside)
    for more in _CHAINED.split(inside)[1:]:
        found = _raised(more)
    return found


def _of_java(text: str) -> str:
    """The first line; of a Java trace the message of the exception at its bottom, which caused the others."""
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
    """What a person does after this failure.

    `resumes` says whether the next run goes on where this one stopped, `began` whether this one came to do anything:
    an address that never answered may be a wrong one.
    """
    if isinstance(error, Failed) and error.next is not None:
        return error.next
    if isinstance(error, NoLake):
        return "see that --lake names the lake, and that it is mounted; topics pipeline archive makes one"
    if isinstance(error, NoSuchTopic):
        return "see that its name is right"
    if isinstance(error, DataDirError):
        return "give --path the data directory of a server that is stopped, or a backup"
    if isinstance(error, Damaged):
        return (
            "topics pipeline audit names all that is missing or damaged: bring it back from a copy of the lake, and "
            "run the same command again"
        )
    if _does_not_fit(error):
        return (
            "have the expression give NULL where a value does not fit: try_cast(… AS …), try_variant_get(value, '$.…', "
            "'…'), try_divide, try_add; then run the command with it"
        )
    kind = kind_of(error)
    if kind is FailureKind.FORBIDDEN:
        return _key_needed(error.detail if isinstance(error, TopicsError) else None)
    if kind is FailureKind.UNREACHABLE and not began:
        return f"see that the server runs and that the URL is right, then {ANEW}"
    step = _NEXT.get(kind, AGAIN)
    return step if resumes else step.replace(AGAIN, ANEW)


_NEXT = {
    FailureKind.USAGE: "correct the command; --help shows its options",
    FailureKind.UNREACHABLE: f"see that the server runs and can be reached from here, then {AGAIN}",
    FailureKind.LAKE: f"see to the lake, which is as it was after its last commit, then {AGAIN}",
}


def _key_needed(detail: Mapping[str, Any] | None) -> str:
    known = detail or {}
    if "scope" in known:
        what = f"that has the scope {' and '.join(known['scope'])}"
    elif "name" in known:
        what = f"whose prefixes cover {known['name']}"
    else:
        what = "that may do this"
    return f"give a key {what}, with --token-file; the server has its keys from TOPICS_API_KEYS"
