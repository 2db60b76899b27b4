"""The pipeline `compact`: keeps the latest record of every key, in a Delta table or a topic."""

from topics.spark.pipelines.compact.driver import compact

__all__ = ["compact"]
