"""The replica: a copy of a data directory in an object store, as one sequence of numbered objects that are created only
if absent. `objects` has the format, `sequence` what a writer does next, `bucket` the transport. The server and the
command line import this; nothing in here knows the engine."""
