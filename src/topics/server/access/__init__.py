"""Who calls and what they may do: keys, scopes, the table of operations, and quotas.

One function authorises an operation, whatever the transport. `push` and `api` ask it.
"""
