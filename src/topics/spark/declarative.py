"""What a project of Spark Declarative Pipelines needs beside Spark: tables that the next run finds again.

Spark without a metastore forgets its tables when a run ends, and stumbles over their files in the next. A table that is
told where it lies is taken up again. `topics pipeline init` lays out projects that use it:

    @dp.table(table_properties=kept("records"))
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

METASTORE = "spark.sql.catalogImplementation"
FILES = "file://"  # what follows is a path as it is: Spark decodes no %20
SPECS = ("spark-pipeline.yml", "spark-pipeline.yaml")


def kept(name: str, *, anew: bool = False) -> dict[str, str]:
    """Properties of a table that keep it in the folder `tables` of the project's `storage`.

    None where Spark has a metastore, which does it better. `anew`: each run computes the table as a whole, as it does
    with a materialized view. Its files are removed before, since Spark, which does not know them, would put the new
    ones beside them. To be called in a file of the project: those are run in the folder of its spec.
    """
    if SparkSession.active().conf.get(METASTORE) == "hive":
        return {}
    command = sys.argv[1:]
    place = _storage(command).rstrip("/") + f"/tables/{name}"
    if is_written_anew(name, command, always=anew):
        _remove(place)
    if "run" in command and place.startswith(FILES):
        _path(place).mkdir(parents=True, exist_ok=True)  # Spark logs a page about a folder that is not there yet
    return {"location": place}


def is_written_anew(name: str, command: Sequence[str], *, always: bool) -> bool:
    """Whether this command of `spark-pipelines` fills a table from nothing, as each run does or a full refresh."""
    if "run" not in command or "--full-refresh-all" in command:
        return "run" in command
    refilled = _values(command, "--full-refresh")
    chosen = refilled | _values(command, "--refresh")
    return name in refilled or (always and (not chosen or name in chosen))


def _values(command: Sequence[str], option: str) -> set[str]:
    """What stands behind an option, as `--refresh a,b` or `--refresh=a,b`; it may be there several times."""
    given = [after for word, after in itertools.pairwise(command) if word == option]
    given += [word.removeprefix(f"{option}=") for word in command if word.startswith(f"{option}=")]
    return {name.strip() for words in given for name in words.split(",")}


def _storage(command: Sequence[str]) -> str:
    """The URL in the spec of the project, the only place that names it."""
    import yaml

    names = [Path(spec).name for spec in _values(command, "--spec")] or SPECS
    spec = next(Path(name) for name in names if Path(name).exists())
    return str(yaml.safe_load(spec.read_text(encoding="utf-8"))["storage"])


def _remove(place: str) -> None:
    if not place.startswith(FILES):
        raise ValueError(
            f"{place} is no folder of this machine, and cannot be cleared from here: "
            f"run it with a metastore, --conf {METASTORE}=hive"
        )
    shutil.rmtree(_path(place), ignore_errors=True)


def _path(place: str) -> Path:
    return Path(place.removeprefix(FILES))
