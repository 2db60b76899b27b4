"""A real server under mixed load for minutes or hours: `make soak`.

`__main__` is the command and `soak` one run. `target` is the server under test with its samples of memory and its log.
Each of the other files is a part of the load, which checks the answers that it gets against a ledger of its own.
"""
