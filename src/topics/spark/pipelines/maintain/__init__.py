"""The pipeline `maintain`: merges small files of a lake and removes files that no version needs."""

from topics.spark.pipelines.maintain.driver import maintain

__all__ = ["maintain"]
