"""Lets Spark find the data source `topics` without registration: Spark loads modules named `pyspark_*`."""

from topics.spark.data_source import TopicsSource


class DefaultSource(TopicsSource):
    """The class name that Spark looks for."""


__all__ = ["DefaultSource"]
