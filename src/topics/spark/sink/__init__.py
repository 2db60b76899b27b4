"""The sink `topics` for Spark: appends the rows of a batch or a micro-batch to topics, each row once.

`data_source` has the writers that Spark calls. The modules here turn rows into requests; only `chunks.send` needs a
server.
"""
