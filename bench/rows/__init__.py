"""The table: every row, in the order of running and printing. A new row is a new file and one line here."""

from row import Row
from rows import (
    append,
    cli,
    clients,
    cold,
    consumers,
    features,
    growth,
    live,
    memory,
    pauses,
    queue,
    read,
    recovery,
    room,
    routers,
    spark,
    tails,
    topics,
)

ROWS: tuple[Row, ...] = (
    *append.ROWS,
    *read.ROWS,
    *live.ROWS,
    *room.ROWS,
    queue.ROW,
    recovery.ROW,
    memory.ROW,
    routers.ROW,
    tails.ROW,
    topics.ROW,
    pauses.ROW,
    growth.ROW,
    cold.ROW,
    consumers.ROW,
    features.ROW,
    cli.ROW,
    clients.ROW,
    spark.ROW,
)
