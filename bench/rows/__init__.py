"""The table: every row, in the order they are run and printed. A new row is a new file and one line here."""

from row import Row
from rows import append, features, growth, live, memory, read, recovery, topics

ROWS: tuple[Row, ...] = (
    *append.ROWS,
    *read.ROWS,
    *live.ROWS,
    recovery.ROW,
    memory.ROW,
    topics.ROW,
    growth.ROW,
    features.ROW,
)
