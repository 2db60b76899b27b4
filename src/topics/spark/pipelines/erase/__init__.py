"""The pipeline `erase`: deletes records with a tag, and the copies that routers made, from topics and lakes."""

from topics.spark.pipelines.erase.driver import erase

__all__ = ["erase"]
