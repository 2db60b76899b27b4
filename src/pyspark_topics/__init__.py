"""Lets Spark find the data source `topics` by itself: it looks for modules named like this one."""

from topics.spark.source.data_source import TopicsSource


class DefaultSource(TopicsSource):
    """The class that Spark looks for."""


__all__ = ["DefaultSource"]
