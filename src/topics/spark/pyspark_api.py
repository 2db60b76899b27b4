"""Names of PySpark that not every supported version has (4.0 to 4.3), and their replacements.

Spark 4.0 has no filters for Python sources, no Arrow writer for streams and no type TIME. Spark 4.0 and 4.1 have no
limits of a micro-batch, and so no `maxOffsetsPerTrigger` and no latest offset in progress reports.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, DataSourceStreamWriter

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef,misc]
        """Spark 4.0 looks for the Arrow writer of batches, in streams as well."""


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:
    HAS_READ_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        """A limit of a micro-batch."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """No limit."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most so many rows."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Spark wraps streams of these versions by itself."""


INHERITED_PUSH_FILTERS: Any = getattr(DataSourceReader, "pushFilters", None)  # None: Spark has no filters to push
TIME_TYPES: tuple[type[types.DataType], ...] = (types.TimeType,) if hasattr(types, "TimeType") else ()

__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
