"""Options and arguments of pipelines have the same names, except for those that docs/pipelines.md lists."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.cli.pipelines import register
from topics.spark.pipelines.run.job import ReadingOptions
from topics.spark.pipelines.windows import Declaration

PAGE = Path(__file__).parents[3] / "docs" / "pipelines.md"
ONLY_OPTIONS = {"help", "json", "context"}  # a program names the server itself
PIPELINES = ("archive", "audit", "compact", "erase", "maintain", "mirror", "replay", "rollup")


def listed() -> dict[str, str]:
    """Return the arguments on the page for options that have another name."""
    table = PAGE.read_text().partition("| option | argument |\n|---|---|\n")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines():
        options, arguments = line.strip("|").split("|", maxsplit=1)
        names = re.findall(r"`--([a-z-]+)`", options)
        found.update(zip(names, re.findall(r"`([a-z_]+)`", arguments), strict=True))
    return found


def options_of(name: str) -> Iterator[str]:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    [group] = parser._get_positional_actions()
    [commands] = group.choices["pipeline"]._get_positional_actions()
    for action in commands.choices[name]._actions:
        yield from (option.removeprefix("--") for option in action.option_strings if option.startswith("--"))


@pytest.mark.parametrize("name", PIPELINES)
def test_every_option_is_an_argument_of_the_same_or_a_listed_name(name: str):
    function = getattr(importlib.import_module(f"topics.spark.pipelines.{name}"), name)
    arguments = inspect.signature(function).parameters.keys() | ReadingOptions.__annotations__.keys()
    declared = set(Declaration.__struct_fields__) if name == "rollup" else set()
    for option in set(options_of(name)) - ONLY_OPTIONS:
        same = option.replace("-", "_")
        assert same in arguments | declared or listed().get(option) in arguments, f"--{option}"


def test_every_option_listed_on_the_page_exists():
    options = {option for name in PIPELINES for option in options_of(name)}
    assert listed().keys() <= options
