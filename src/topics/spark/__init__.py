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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "source.offsets" if name == "lag" else "spark_session"
    return getattr(importlib.import_module(f"topics.spark.{home}"), name)
