"""w12: appends spread over many topics, against the same appends to one."""

from __future__ import annotations

from fill import send_all
from load import Load, wrk
from payload import batch, post
from peers import running, start_topics
from plan import Plan
from row import Ask, Outcome, Row, at_least
from turns import Contender, ratio, take_turns


def measure(plan: Plan) -> Outcome:
    count = plan.scale.topics
    with running(start_topics(plan, plan.fresh_dir("topics"))) as server:
        # Every topic exists before the first round: creating them is not what this row is about.
        send_all(server.port, (post(f"/v0/topics/t{number}", batch(1)) for number in range(count)))

        def load(topics: int) -> Load:
            args, seconds = (str(topics),), plan.scale.round_s
            return wrk(server.port, "topics.lua", "/v0/topics/t0", connections=32, seconds=seconds, args=args)

        # Both sides use one script, so that the generator's own work is the same.
        sides = take_turns(
            [
                Contender(name=f"{count:,} topics", unit="records/s", run=lambda: load(count), pid=lambda: server.pid),
                Contender(name="1 topic", unit="records/s", run=lambda: load(1), pid=lambda: server.pid),
            ],
            rounds=plan.scale.rounds,
        )
    return Outcome([ratio("w1", sides[0], sides[1])], sides)


ROW = Row(
    id="w12",
    title="10,000 topics, one append each, round robin",
    peer="w1: the same appends to one topic",
    asks=(Ask(key="w1", bar=at_least(0.8), goal=at_least(0.95)),),
    measure=measure,
)
