"""The pipeline `rollup`: aggregates a topic over time windows and writes each window once, when it closes."""

from topics.spark.pipelines.rollup.driver import rollup

__all__ = ["rollup"]
