"""topics as a source and sink of PySpark. Needs the extra `spark`; pipelines in one process, `lake`.

    from topics.spark import infer_schema, lag, register, session, table

`pyspark_topics` lets Spark find the source by itself; `register` registers it where Spark does not. PySpark is imported
with the first name that is used, because it takes seconds and reports of pipelines do not need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.spark.source.offsets import lag
    from topics.spark.spark_session import infer_schema, register, session, table

__all__ = ["infer_schema", "lag", "register", "session", "table"]

_HOMES = {
    "infer_schema": "topics.spark.spark_session",
    "lag": "topics.spark.source.offsets",
    "register": "topics.spark.spark_session",
    "session": "topics.spark.spark_session",
    "table": "topics.spark.spark_session",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
