"""Schedules: `times` computes the ticks, `verbs` has the verbs and appends a record at each tick.

The server imports `verbs`; `engine/durable` replays the entries.
"""
