"""The data source `topics` for Spark: reads topics of a server, a data directory or a lake, in batches or as a stream.

`data_source` holds the class that Spark loads. The driver plans; executors read.
"""
