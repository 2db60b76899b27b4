"""Commands for topics and their records: list, create, configure, append, read, watch, delete."""
