"""Pipelines: jobs that move or aggregate topics in bulk. Each is a function that returns a `RunReport`, and a command.

    from topics.spark.pipelines.compact import compact

One folder per pipeline. A caller imports only the pipeline that it runs.
"""
