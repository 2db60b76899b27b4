"""w27: a scan with a filter on a field of `data`, and a rare match, against a scan without one.

One record in a thousand matches. In the rounds that are cold, the server was just started, and its files were dropped
from the page cache. The figures are records examined for each second of the server's processor time.
"""

from __future__ import annotations

from contextlib import ExitStack

from api import Api
from fill import send_all
from payload import post
from plan import Plan
from row import Ask, Outcome, Reading, Row, at_least
from rows.cold import TAGS, Subject
from turns import Contender, take_turns

FILTERS: dict[str, list[object]] = {
    "text": ["data.customer", "Eq", "c36"],
    "number": ["data.total", "Eq", 7731036],
    "every record has the text": ["data.note", "Eq", "V60"],
}


class Searched(Subject):
    """A topic in which one record in a thousand has a customer and a total of its own."""

    def _fill(self) -> None:
        note = b'{"data":{"sku":"V60","note":"AEROPRESS-GO","customer":"c%d","total":%d}}'
        rows = b",".join(note % (number, 7731000 + number) for number in range(TAGS))
        Api(self.server.port).create("t", durability="disk")
        request = post("/v0/topics/t?return_seqs=false", b'{"records":[%b]}' % rows)
        send_all(self.server.port, (request for _ in range(self.records // TAGS)))

    def found(self, kind: str) -> float:
        """Return the records examined per second."""
        expected = 0 if kind == "every record has the text" else self.records // TAGS
        return self.records / self.scan("t", {"filter": FILTERS[kind]}, expected)

    def whole(self) -> float:
        return self.records / self.scan("t", {}, self.records)


def measure(plan: Plan) -> Outcome:
    with ExitStack() as stack:
        subject = Searched(plan, stack)
        subject.restart()

        def side(name: str, kind: str, *, cold: bool = False) -> Contender:
            before = subject.restart if cold else None
            return Contender(
                name=name,
                unit="records/s",
                run=lambda: subject.found(kind),
                before=before,
                pid=lambda: subject.server.pid,
            )

        sides = take_turns(
            [
                side("text, cold", "text", cold=True),
                side("text", "text"),
                side("number", "number"),
                side("text of every record", "every record has the text"),
                Contender(name="no filter", unit="records/s", run=subject.whole, pid=lambda: subject.server.pid),
            ],
            rounds=plan.scale.rounds,
        )
    return Outcome([Reading(key=side.name, value=side.per_cpu_s) for side in sides[:-1]], sides)


ROW = Row(
    id="w27",
    title="filter on a field of `data` over 1 M records (10 M with --full): one match in 1000",
    peer="a scan without a filter, which sends every record",
    asks=(
        Ask(key="text", unit="records/CPU s", bar=at_least(1e6), goal=at_least(3e6)),
        Ask(key="text, cold", unit="records/CPU s", bar=at_least(1e6), goal=at_least(3e6)),
        Ask(key="number", unit="records/CPU s"),
        Ask(key="text of every record", unit="records/CPU s"),
    ),
    measure=measure,
    needs=(),
    time_limit_s=600,
)
