"""The rows of the route table."""

from topics.errors import Code
from topics.model import wire
from topics.model.records import DeleteRequest, DiffRequest, WriteRequest
from topics.model.topic import ConfigPatch
from topics.server.handlers import health, records, topics
from topics.server.routes import Parameter, Route, Scope

_TOUCH = "whether this counts as interest in the topic (auto-priority)"
_PAGE = (
    Parameter("page_size", int, "rows a page, at most 1000", 100),
    Parameter("cursor", str, "`next_cursor` of the page before"),
)

ROUTES = [
    Route(
        method="PUT", path="/v0/topics/{topic}", handler=topics.put_topic, scope=Scope.ADMIN,
        summary="Create a topic, or change its configuration",
        body=ConfigPatch, answers={200: wire.TopicPut, 201: wire.TopicPut},
        errors=(Code.TOPIC_EXISTS_INCOMPATIBLE, Code.THROTTLED, Code.READ_ONLY),
    ),
    Route(
        method="GET", path="/v0/topics/{topic}", handler=topics.get_topic, scope=Scope.READ,
        summary="State of a topic: where it begins and ends, how much it holds, its configuration",
        answers={200: wire.TopicState}, errors=(Code.TOPIC_NOT_FOUND,),
        query=(Parameter("touch", bool, _TOUCH, True),),
    ),
    Route(
        method="GET", path="/v0/topics", handler=topics.list_topics, scope=Scope.READ,
        summary="Topics by name",
        answers={200: wire.TopicList},
        query=(Parameter("prefix", str, "only names that begin like this"), *_PAGE, Parameter("touch", bool, _TOUCH, False)),
    ),
    Route(
        method="DELETE", path="/v0/topics/{topic}", handler=topics.drop_topic, scope=Scope.DELETE,
        summary="Remove a topic and everything in it",
        answers={200: wire.TopicDropped}, errors=(Code.TOPIC_NOT_EMPTY, Code.READ_ONLY),
        query=(Parameter("if_empty", bool, "refuse if the topic holds records", False),),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}", handler=records.append, scope=Scope.WRITE,
        summary="Append records; all of them or none",
        body=WriteRequest, answers={200: wire.Written, 201: wire.Written},
        errors=(
            Code.BATCH_TOO_LARGE, Code.RECORD_TOO_LARGE, Code.TOPIC_NOT_FOUND, Code.TOPIC_FULL, Code.THROTTLED,
            Code.READ_ONLY,
        ),
        query=(Parameter("return_seqs", bool, "whether to list every seq", True),),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/diff", handler=records.diff, scope=Scope.READ,
        summary="Records behind a cursor, with a tombstone where some were lost",
        body=DiffRequest, answers={200: wire.Diff}, errors=(Code.TOPIC_NOT_FOUND, Code.THROTTLED),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/delete", handler=records.delete, scope=Scope.DELETE,
        summary="Remove records by seq, by tag, or both; for good and in silence",
        body=DeleteRequest, answers={200: wire.RecordsDeleted}, errors=(Code.TOPIC_NOT_FOUND, Code.READ_ONLY),
    ),
    *(
        Route(
            method="GET", path=path, handler=health.health, summary="Whether the process is alive",
            answers={200: wire.Health}, waits_for_recovery=False, probe=True,
        )
        for path in ("/v0/health", "/healthz")
    ),
    *(
        Route(
            method="GET", path=path, handler=health.ready, summary="Whether the server can serve",
            answers={200: wire.Ready}, errors=(Code.NOT_READY, Code.READ_ONLY), waits_for_recovery=False, probe=True,
        )
        for path in ("/v0/ready", "/readyz")
    ),
    Route(
        method="GET", path="/v0/metrics", handler=health.get_metrics, scope=Scope.READ, waits_for_recovery=False,
        summary="Gauges and counters: Prometheus text, or JSON where `Accept` asks for it",
        answers={200: "text/plain"},
    ),
    Route(
        method="GET", path="/v0/openapi.json", handler=health.get_openapi, waits_for_recovery=False,
        summary="This document", answers={200: dict}, probe=True,
    ),
]  # fmt: skip
