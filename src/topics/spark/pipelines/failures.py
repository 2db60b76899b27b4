"""Failures of pipelines: what is wrong, and what to do next."""

from __future__ import annotations

from topics.errors import Code, TopicsError


class Failed(Exception):
    """A pipeline that cannot go on: what is wrong, and what to do next."""

    def __init__(self, message: str, *, next: str | None = None) -> None:
        super().__init__(message)
        self.next = next


class BadUsage(Failed):
    """Arguments that cannot be meant. The command exits with 2."""


def explain(error: BaseException) -> str:
    """One line that says what went wrong; of a failed Spark task the error of the task, not of those above it."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = str(error)
    if type(error).__module__.startswith(("pyspark", "py4j")):
        text = _innermost(text)
    return text.strip() or type(error).__name__


def _innermost(text: str) -> str:
    """The last line of the Python traceback inside what the JVM says, or its first line where there is none."""
    _, mark, inside = text.partition("Traceback (most recent call last):")
    lines = (inside if mark else text).splitlines()
    if not mark:
        return next((line for line in lines if line.strip()), "")
    for line in lines:
        if line and not line[0].isspace():
            name, colon, message = line.partition(": ")
            return message if colon and message and "." in name else line
    return lines[0]


def next_step(error: BaseException) -> str:
    """What a person does after this failure."""
    again = "run the same command again: it goes on where this run stopped"
    if isinstance(error, Failed) and error.next is not None:
        return error.next
    if isinstance(error, KeyboardInterrupt):
        return again
    if isinstance(error, TopicsError):
        if error.code in (Code.UNAUTHORIZED, Code.FORBIDDEN):
            return "give a key that may do this, with --token-file"
        if error.code is Code.NOT_READY:
            return f"see that the server runs and can be reached from here, then {again}"
    if isinstance(error, Failed | ValueError):
        return "see the message; nothing has to be cleaned up before the next run"
    return again
