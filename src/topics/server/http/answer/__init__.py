"""Answers on their way out: heads, compression, errors, and the fields for pages of other origins.

HTTP/1.1 and HTTP/2 share it.
"""
