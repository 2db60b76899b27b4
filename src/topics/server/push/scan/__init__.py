"""Bulk reads as streams: the stream, and the three formats of its answer.

`api` imports it.
"""
