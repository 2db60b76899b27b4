"""The data source `topics` for Spark: reads topics of a server, a data directory or a lake, in batches or as a stream.

`data_source` is the class that Spark loads; it plans on the driver and reads on executors.
"""
