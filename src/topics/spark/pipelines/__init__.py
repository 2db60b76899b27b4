"""Pipelines: jobs that move or aggregate topics in bulk. Each is a function that returns a `RunReport`, and a command.

    from topics.spark.pipelines.compact import compact

A pipeline is a module, one of them with its tasks beside it (`mirror_task`), or a folder. `run` has what all of them
use, and `rounds` the loop of `compact` and `rollup`. A caller imports only the pipeline that it runs.
"""
