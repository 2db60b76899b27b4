"""Kill the real server with SIGKILL under load, thousands of times: `make kills`.

`run` is the command, `rounds` one server from start to kill, `server` starts processes and speaks HTTP to them, `logs`
and `jobs` write load and compare what a restarted server answers with what was acknowledged before.
"""
