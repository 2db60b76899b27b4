"""Callers and what they may do: keys, scopes, the table of operations, and quotas.

One function authorises an operation for every transport. `push` and `api` call it.
"""
