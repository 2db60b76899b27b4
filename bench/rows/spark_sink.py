"""w22: Spark writes records to a topic, from a column of structs and from a column of JSON text."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import count
from typing import Any

from api import Api
from peers import running, start_topics
from plan import Plan
from row import Ask, Outcome, Reading, Row, at_least
from rows.spark import CORES, WARM_UPS, session
from turns import Contender, ratio, take_turns

STRUCTS = "named_struct('sku', 'AEROPRESS-GO', 'qty', 1, 'total', id)"


def measure(plan: Plan) -> Outcome:
    if not (find_spec("pyspark") and find_spec("pyarrow")):
        note = "pip install 'topics-engine[spark]'"
        return Outcome([Reading(key=ask.key, value=None, missing=True, note=note) for ask in ROW.asks])
    records, names = plan.scale.records, count()
    with ExitStack() as stack:
        server = stack.enter_context(running(start_topics(plan, plan.fresh_dir("topics"))))
        with all_cores():
            spark = session()
        stack.callback(spark.stop)
        frames = {}
        for name, data in (("structs", STRUCTS), ("JSON text", f"to_json({STRUCTS})")):
            frame = spark.range(0, records, 1, CORES).selectExpr(f"{data} AS data", "'order-7731' AS tag").cache()
            frame.count()  # so that a round does not compute the rows
            frames[name] = frame

        def rate(frame: Any) -> float:
            """Write to a new topic. Return the records per second, planning included."""
            topic = f"t{next(names)}"
            writer = frame.write.format("topics").option("url", f"http://127.0.0.1:{server.port}")
            started = time.perf_counter()
            writer.option("topic", topic).mode("append").save()
            elapsed = time.perf_counter() - started
            found = Api(server.port).count(topic)
            assert found == records, f"{found} of {records} records were written"
            return records / elapsed

        for frame in [*frames.values()] * WARM_UPS:
            rate(frame)
        contenders = [
            Contender(name=name, unit="records/s", run=lambda frame=frame: rate(frame))
            for name, frame in frames.items()
        ]
        sides = take_turns(contenders, rounds=plan.scale.rounds)
    structs, text = sides
    rates = [Reading(key=side.name, value=side.median / 1000) for side in sides]
    return Outcome([*rates, ratio("structs, of JSON text", structs, text)], sides)


@contextmanager
def all_cores() -> Iterator[None]:
    """Let processes that start meanwhile run on every core. The bar is for Spark as users start it, beside a server."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


ROW = Row(
    id="w22",
    title="Spark writes 1 M records to a topic, from structs and from JSON text",
    peer="-",
    asks=(
        Ask(key="structs", unit="k records/s", bar=at_least(200), cpu_bound=False),
        Ask(key="JSON text", unit="k records/s", cpu_bound=False),
        Ask(key="structs, of JSON text", cpu_bound=False),
    ),
    measure=measure,
    needs=(),
    time_limit_s=420,
)
