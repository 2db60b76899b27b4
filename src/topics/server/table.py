"""The rows of the route table."""

from topics.errors import Code
from topics.model import queue, router, wire
from topics.model.records import DeleteRequest, DiffRequest, ScanRequest, WriteRequest
from topics.model.topic import ConfigPatch
from topics.model.watch import WatchCreated, WatchRequest
from topics.server.handlers import archives, health, queues, records, routers, scan, topics, watch
from topics.server.routes import Parameter, Route, Scope

_TOUCH = "whether this counts as interest in the topic (auto-priority)"
_PAGE = (
    Parameter("page_size", int, "rows a page, at most 1000", 100),
    Parameter("cursor", str, "`next_cursor` of the page before"),
)

_QUEUE_ERRORS = (Code.TOPIC_NOT_FOUND, Code.NOT_A_QUEUE, Code.READ_ONLY)

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
        query=(
            Parameter("prefix", str, "only names that begin like this"), *_PAGE,
            Parameter("touch", bool, _TOUCH, False),
        ),
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
        method="POST", path="/v0/topics/{topic}/scan", handler=scan.scan, scope=Scope.READ,
        summary="A range of records in one long answer: JSON lines, segments, or Arrow, by `Accept`",
        body=ScanRequest, answers={200: "application/x-ndjson"},
        errors=(Code.TOPIC_NOT_FOUND, Code.NOT_ACCEPTABLE, Code.THROTTLED),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/delete", handler=records.delete, scope=Scope.DELETE,
        summary="Remove records by seq, by tag, or both; for good and in silence",
        body=DeleteRequest, answers={200: wire.RecordsDeleted},
        errors=(Code.TOPIC_NOT_FOUND, Code.BATCH_TOO_LARGE, Code.EPOCH_MISMATCH, Code.READ_ONLY),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/archived", handler=archives.report, scope=Scope.WRITE,
        summary="An archive has every record up to a seq: a topic that holds for it may let them go",
        body=wire.ArchivedRequest, answers={200: wire.ArchivedAnswer},
        errors=(Code.TOPIC_NOT_FOUND, Code.EPOCH_MISMATCH, Code.READ_ONLY),
    ),
    Route(
        method="POST", path="/v0/watch", handler=watch.create, scope=Scope.READ,
        summary="Make a watch session over any number of topics",
        body=WatchRequest, answers={200: WatchCreated}, errors=(Code.TOPIC_NOT_FOUND, Code.THROTTLED),
        query=(Parameter("lenient", bool, "leave out topics that do not exist instead of failing", False),),
    ),
    Route(
        method="GET", path="/v0/watch/{wid}", handler=watch.stream, stream=True, query_token=True,
        summary="The event stream of a watch session; a second one takes over from the first",
        answers={200: "text/event-stream"}, errors=(Code.NOT_FOUND, Code.NOT_ACCEPTABLE, Code.THROTTLED),
    ),
    Route(
        method="GET", path="/v0/ws", handler=watch.socket, stream=True,
        summary="A WebSocket: subscribe and publish as JSON messages",
        answers={101: "application/json"}, errors=(Code.FORBIDDEN, Code.THROTTLED),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/claim", handler=queues.claim, scope=Scope.READ | Scope.WRITE,
        summary="Lease jobs to a worker",
        body=queue.ClaimRequest, answers={200: queue.ClaimAnswer}, errors=(*_QUEUE_ERRORS, Code.THROTTLED),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/ack", handler=queues.ack, scope=Scope.WRITE,
        summary="Jobs are done: delete them",
        body=queue.AckRequest, answers={200: queue.AckAnswer}, errors=(*_QUEUE_ERRORS, Code.BATCH_TOO_LARGE),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/nack", handler=queues.nack, scope=Scope.WRITE,
        summary="Give jobs back, to be claimed again at once or later",
        body=queue.NackRequest, answers={200: queue.NackAnswer}, errors=(*_QUEUE_ERRORS, Code.BATCH_TOO_LARGE),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/extend", handler=queues.extend, scope=Scope.WRITE,
        summary="Hold jobs for longer",
        body=queue.ExtendRequest, answers={200: queue.ExtendAnswer}, errors=(*_QUEUE_ERRORS, Code.BATCH_TOO_LARGE),
    ),
    Route(
        method="GET", path="/v0/topics/{topic}/work", handler=queues.work, scope=Scope.READ | Scope.WRITE, stream=True,
        query_token=True,
        summary="Jobs pushed to a worker as it has room for them",
        answers={200: "text/event-stream"}, errors=(*_QUEUE_ERRORS, Code.NOT_ACCEPTABLE, Code.THROTTLED),
        query=(
            Parameter("node", str, "the worker's name", required=True),
            Parameter("max", int, "jobs that it can hold at once", 1),
            Parameter("lease_ms", int, "how long it may hold each; the topic's `lease_ms` if left out"),
        ),
    ),
    Route(
        method="GET", path="/v0/topics/{topic}/jobs", handler=queues.jobs, scope=Scope.READ,
        summary="Jobs with their state, in the order of the log",
        answers={200: queue.JobList}, errors=_QUEUE_ERRORS,
        query=(Parameter("state", str, "`ready`, `in_flight` or `delayed`; all if left out"), *_PAGE),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/redrive", handler=queues.redrive, scope=Scope.READ | Scope.WRITE,
        summary="Move dead letters of this queue back into it",
        body=queue.RedriveRequest, answers={200: queue.RedriveAnswer},
        errors=(*_QUEUE_ERRORS, Code.TOPIC_FULL, Code.BATCH_TOO_LARGE, Code.RECORD_TOO_LARGE, Code.THROTTLED),
    ),
    Route(
        method="PUT", path="/v0/routers/{router}", handler=routers.put_router, scope=Scope.ADMIN,
        summary="Create a router, or change it; makes the topics it needs",
        body=router.RouterRequest, answers={200: router.RouterPutAnswer, 201: router.RouterPutAnswer},
        errors=(
            Code.TOPIC_NOT_FOUND, Code.ROUTER_CYCLE, Code.TOPIC_EXISTS_INCOMPATIBLE, Code.THROTTLED, Code.READ_ONLY,
        ),
    ),
    Route(
        method="GET", path="/v0/routers/{router}", handler=routers.get_router, scope=Scope.READ,
        summary="A router, how far it has come, and what keeps it",
        answers={200: router.RouterAnswer}, errors=(Code.ROUTER_NOT_FOUND,),
    ),
    Route(
        method="GET", path="/v0/routers", handler=routers.list_routers, scope=Scope.READ,
        summary="Routers by name",
        answers={200: router.RouterList},
        query=(
            Parameter("prefix", str, "only names that begin like this"),
            Parameter("source", str, "only routers that read from this topic"),
            Parameter("dest", str, "only routers that write into this topic"),
            *_PAGE,
        ),
    ),
    Route(
        method="DELETE", path="/v0/routers/{router}", handler=routers.drop_router, scope=Scope.DELETE,
        summary="Stop forwarding; what was forwarded stays",
        answers={200: router.RouterDropped}, errors=(Code.READ_ONLY,),
    ),
    Route(
        method="POST", path="/v0/routers/{router}/preview", handler=routers.preview, scope=Scope.READ,
        summary="How many retained records a filter would forward, without forwarding any",
        body=router.PreviewRequest, answers={200: router.PreviewAnswer},
        errors=(Code.ROUTER_NOT_FOUND, Code.TOPIC_NOT_FOUND),
    ),
    *(
        Route(
            method="GET", path=path, handler=health.health, summary="Whether the process is alive",
            answers={200: wire.Health}, while_recovering=health.health_while_recovering, probe=True,
        )
        for path in ("/v0/health", "/healthz")
    ),
    *(
        Route(
            method="GET", path=path, handler=health.ready, summary="Whether the server can serve",
            answers={200: wire.Ready}, errors=(Code.NOT_READY, Code.READ_ONLY), probe=True,
        )
        for path in ("/v0/ready", "/readyz")
    ),
    Route(
        method="GET", path="/v0/metrics", handler=health.get_metrics, scope=Scope.READ,
        while_recovering=health.get_metrics_while_recovering,
        summary="Gauges and counters: Prometheus text, or JSON where `Accept` asks for it",
        answers={200: "text/plain"},
    ),
    Route(
        method="GET", path="/v0/openapi.json", handler=health.get_openapi,
        while_recovering=health.get_openapi_while_recovering, summary="This document", answers={200: dict}, probe=True,
    ),
]  # fmt: skip
