"""Code that every pipeline uses: the job with its session, report, progress and failures, and tasks for executors.

The pipelines import from here; nothing here imports a pipeline.
"""
