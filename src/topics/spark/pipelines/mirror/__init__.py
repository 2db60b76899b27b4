"""The pipeline `mirror`: copies topics between servers, one way or both, until both hold the same records."""

from topics.spark.pipelines.mirror.driver import mirror

__all__ = ["mirror"]
