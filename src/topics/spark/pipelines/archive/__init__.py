"""The pipeline `archive`: copies topics to a lake, each record once and each gap with its range."""

from topics.spark.pipelines.archive.driver import archive

__all__ = ["archive"]
