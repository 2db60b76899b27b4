"""The sink `topics` for Spark: appends the rows of a batch or a micro-batch to topics, each row once.

Spark calls `writers`. The other modules turn rows into requests and need no server.
"""
