"""The pipeline `audit`: proves that every seq of a topic is live, deleted, archived or in a reported gap."""

from topics.spark.pipelines.audit.driver import audit

__all__ = ["audit"]
