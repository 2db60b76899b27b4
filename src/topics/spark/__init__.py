"""topics as a source and sink of PySpark. Needs the extra `spark`.

    from topics.spark import infer_schema, register, session, table

`pyspark_topics` lets Spark find the source by itself; `register` makes it known where that does not work.
"""

from topics.spark.session import register, session
from topics.spark.typed_tables import infer_schema, table

__all__ = ["infer_schema", "register", "session", "table"]
