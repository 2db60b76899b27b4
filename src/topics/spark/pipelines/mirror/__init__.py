"""The pipeline `mirror`: copies topics between servers, in one direction or both, until they hold the same records."""

from topics.spark.pipelines.mirror.driver import mirror

__all__ = ["mirror"]
