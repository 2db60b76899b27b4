"""Jobs pushed to workers: the clients that wait for jobs of a queue, and the work stream.

`api` imports it. It imports the SSE base of `push`, and the engine.
"""
