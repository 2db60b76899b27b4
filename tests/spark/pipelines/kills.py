"""Runs that die at a chosen change of their output table."""

from __future__ import annotations

from typing import Any

import pytest

from topics.lake.delta_folder import DeltaFolder
from topics.lake.output import OutputTable


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Die before a change of a table, or after it if the number is odd. The calls of two rounds are twelve points."""
    calls = []

    def dying(method: Any) -> Any:
        def die(*arguments: Any, **named: Any) -> Any:
            calls.append(method)
            is_last = len(calls) == number // 2 + 1
            if is_last and number % 2 == 0:
                raise MemoryError
            done = method(*arguments, **named)
            if is_last:
                raise MemoryError
            return done

        return die

    for owner, name in ((OutputTable, "create"), (DeltaFolder, "write"), (OutputTable, "commit")):
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))
