"""Pipelines: what moves or digests topics in bulk. Each is a function that returns a `Report`, and a command.

    from topics.spark.pipelines.compact import compact

One module a pipeline, imported where it is used: a pipeline needs only what it works with.
"""
