"""The pipeline `replay`: appends records of a lake, a data directory or a topic to a topic again, each once."""

from topics.spark.pipelines.replay.driver import replay

__all__ = ["replay"]
