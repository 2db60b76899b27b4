"""The rows of the route table."""

from topics.errors import Code
from topics.model import queue, router, wire
from topics.model.records import DeleteRequest, DiffRequest, ScanRequest, WriteRequest
from topics.model.topic import ConfigPatch
from topics.model.watch import WatchCreated, WatchRequest
from topics.server.access import operations
from topics.server.api import archives, health, queues, records, routers, scan, topics, watch
from topics.server.api.route import Parameter, Route
from topics.server.http import write_body

_TOUCH = "whether this counts as interest in the topic (auto-priority)"
_PAGE = (
    Parameter("page_size", int, "rows a page, at most 1000", 100),
    Parameter("cursor", str, "`next_cursor` of the page before"),
)

_QUEUE_ERRORS = (Code.TOPIC_NOT_FOUND, Code.NOT_A_QUEUE, Code.READ_ONLY)

ROUTES = [
    Route(
        method="PUT", path="/v0/topics/{topic}", handler=topics.put_topic, operation=operations.CONFIGURE_TOPIC,
        summary="Create a topic, or change its configuration",
        body=ConfigPatch, decode=topics.decode_config, answers={200: wire.TopicPut, 201: wire.TopicPut},
        errors=(Code.TOPIC_EXISTS_INCOMPATIBLE, Code.THROTTLED, Code.READ_ONLY),
    ),
    Route(
        method="GET", path="/v0/topics/{topic}", handler=topics.get_topic, operation=operations.READ_STATE,
        summary="State of a topic: where it begins and ends, how much it holds, its configuration",
        answers={200: wire.TopicState}, errors=(Code.TOPIC_NOT_FOUND,),
        query=(Parameter("touch", bool, _TOUCH, True),),
    ),
    Route(
        method="GET", path="/v0/topics", handler=topics.list_topics, operation=operations.LIST_TOPICS,
        summary="Topics by name",
        answers={200: wire.TopicList},
        query=(
            Parameter("prefix", str, "only names that begin like this"), *_PAGE,
            Parameter("touch", bool, _TOUCH, False),
        ),
    ),
    Route(
        method="DELETE", path="/v0/topics/{topic}", handler=topics.drop_topic, operation=operations.DROP_TOPIC,
        summary="Remove a topic and everything in it",
        answers={200: wire.TopicDropped}, errors=(Code.TOPIC_NOT_EMPTY, Code.READ_ONLY),
        query=(Parameter("if_empty", bool, "refuse if the topic holds records", False),),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}", handler=records.append, operation=operations.APPEND,
        summary="Append records; all of them or none",
        body=WriteRequest, decode=write_body.decode_write, decode_steps=write_body.decode_write_steps,
        answers={200: wire.Written, 201: wire.Written},
        errors=(
            Code.BATCH_TOO_LARGE, Code.RECORD_TOO_LARGE, Code.TOPIC_NOT_FOUND, Code.TOPIC_FULL, Code.THROTTLED,
            Code.READ_ONLY,
        ),
        query=(Parameter("return_seqs", bool, "whether to list every seq", True),),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/diff", handler=records.diff, operation=operations.DIFF,
        summary="Records behind a cursor, with a tombstone where some were lost",
        body=DiffRequest, answers={200: wire.Diff}, errors=(Code.TOPIC_NOT_FOUND, Code.THROTTLED),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/scan", handler=scan.scan, operation=operations.SCAN,
        summary="A range of records in one long answer: JSON lines, segments, or Arrow, by `Accept`",
        body=ScanRequest, answers={200: "application/x-ndjson"},
        errors=(Code.TOPIC_NOT_FOUND, Code.NOT_ACCEPTABLE, Code.THROTTLED),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/delete", handler=records.delete, operation=operations.DELETE_RECORDS,
        summary="Remove records by seq, by tag, or both; for good and in silence",
        body=DeleteRequest, answers={200: wire.RecordsDeleted},
        errors=(Code.TOPIC_NOT_FOUND, Code.BATCH_TOO_LARGE, Code.EPOCH_MISMATCH, Code.READ_ONLY),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/archived", handler=archives.report,
        operation=operations.REPORT_ARCHIVED,
        summary="An archive has every record up to a seq: a topic that holds for it may let them go",
        body=wire.ArchivedRequest, answers={200: wire.ArchivedAnswer},
        errors=(Code.TOPIC_NOT_FOUND, Code.EPOCH_MISMATCH, Code.READ_ONLY),
    ),
    Route(
        method="POST", path="/v0/watch", handler=watch.create, operation=operations.WATCH,
        summary="Make a watch session over any number of topics",
        body=WatchRequest, decode=watch.decode_watch,
        answers={200: WatchCreated}, errors=(Code.TOPIC_NOT_FOUND, Code.THROTTLED),
        query=(Parameter("lenient", bool, "leave out topics that do not exist instead of failing", False),),
    ),
    Route(
        method="GET", path="/v0/watch/{wid}", handler=watch.stream,
        operation=operations.OPEN_SESSION, stream=True, query_token=True,
        summary="The event stream of a watch session; a second one takes over from the first",
        answers={200: "text/event-stream"},
        errors=(Code.FORBIDDEN, Code.NOT_FOUND, Code.NOT_ACCEPTABLE, Code.THROTTLED),
    ),
    Route(
        method="GET", path="/v0/ws", handler=watch.socket, operation=operations.CONNECT_SOCKET, stream=True,
        summary="A WebSocket: subscribe and publish as JSON messages",
        answers={101: "application/json"}, errors=(Code.FORBIDDEN, Code.THROTTLED),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/claim", handler=queues.claim, operation=operations.CLAIM,
        summary="Lease jobs to a worker",
        body=queue.ClaimRequest, answers={200: queue.ClaimAnswer}, errors=(*_QUEUE_ERRORS, Code.THROTTLED),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/ack", handler=queues.ack, operation=operations.ACK,
        summary="Jobs are done: delete them",
        body=queue.AckRequest, answers={200: queue.AckAnswer}, errors=(*_QUEUE_ERRORS, Code.BATCH_TOO_LARGE),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/nack", handler=queues.nack, operation=operations.NACK,
        summary="Give jobs back, to be claimed again at once or later",
        body=queue.NackRequest, answers={200: queue.NackAnswer}, errors=(*_QUEUE_ERRORS, Code.BATCH_TOO_LARGE),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/extend", handler=queues.extend, operation=operations.EXTEND,
        summary="Hold jobs for longer",
        body=queue.ExtendRequest, answers={200: queue.ExtendAnswer}, errors=(*_QUEUE_ERRORS, Code.BATCH_TOO_LARGE),
    ),
    Route(
        method="GET", path="/v0/topics/{topic}/work", handler=queues.work, operation=operations.WORK, stream=True,
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
        method="GET", path="/v0/topics/{topic}/jobs", handler=queues.jobs, operation=operations.LIST_JOBS,
        summary="Jobs with their state, in the order of the log",
        answers={200: queue.JobList}, errors=_QUEUE_ERRORS,
        query=(Parameter("state", str, "`ready`, `in_flight` or `delayed`; all if left out"), *_PAGE),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/redrive", handler=queues.redrive, operation=operations.REDRIVE,
        summary="Move dead letters of this queue back into it",
        body=queue.RedriveRequest, decode=queues.decode_redrive, answers={200: queue.RedriveAnswer},
        errors=(*_QUEUE_ERRORS, Code.TOPIC_FULL, Code.BATCH_TOO_LARGE, Code.RECORD_TOO_LARGE, Code.THROTTLED),
    ),
    Route(
        method="PUT", path="/v0/routers/{router}", handler=routers.put_router, operation=operations.PUT_ROUTER,
        summary="Create a router, or change it; makes the topics it needs",
        body=router.RouterRequest, decode=routers.decode_router,
        answers={200: router.RouterPutAnswer, 201: router.RouterPutAnswer},
        errors=(
            Code.TOPIC_NOT_FOUND, Code.ROUTER_CYCLE, Code.TOPIC_EXISTS_INCOMPATIBLE, Code.THROTTLED, Code.READ_ONLY,
        ),
    ),
    Route(
        method="GET", path="/v0/routers/{router}", handler=routers.get_router, operation=operations.READ_ROUTER,
        summary="A router, how far it has come, and what keeps it",
        answers={200: router.RouterAnswer}, errors=(Code.ROUTER_NOT_FOUND,),
    ),
    Route(
        method="GET", path="/v0/routers", handler=routers.list_routers, operation=operations.LIST_ROUTERS,
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
        method="DELETE", path="/v0/routers/{router}", handler=routers.drop_router, operation=operations.DROP_ROUTER,
        summary="Stop forwarding; what was forwarded stays",
        answers={200: router.RouterDropped}, errors=(Code.READ_ONLY,),
    ),
    Route(
        method="POST", path="/v0/routers/{router}/preview", handler=routers.preview,
        operation=operations.PREVIEW_ROUTER,
        summary="How many retained records a filter would forward, without forwarding any",
        body=router.PreviewRequest, decode=routers.decode_preview, answers={200: router.PreviewAnswer},
        errors=(Code.ROUTER_NOT_FOUND, Code.TOPIC_NOT_FOUND),
    ),
    *(
        Route(
            method="GET", path=path, handler=health.health,
            operation=operations.PROBE, summary="Whether the process is alive",
            answers={200: wire.Health}, while_recovering=health.health_while_recovering, probe=True,
        )
        for path in ("/v0/health", "/healthz")
    ),
    *(
        Route(
            method="GET", path=path, handler=health.ready,
            operation=operations.PROBE, summary="Whether the server can serve",
            answers={200: wire.Ready}, errors=(Code.NOT_READY, Code.READ_ONLY), probe=True,
        )
        for path in ("/v0/ready", "/readyz")
    ),
    Route(
        method="GET", path="/v0/metrics", handler=health.get_metrics, operation=operations.READ_METRICS,
        while_recovering=health.get_metrics_while_recovering,
        summary="Gauges and counters: Prometheus text, or JSON where `Accept` asks for it",
        answers={200: "text/plain"},
    ),
    Route(
        method="GET", path="/v0/openapi.json", handler=health.get_openapi, operation=operations.READ_DOCUMENT,
        while_recovering=health.get_openapi_while_recovering, summary="This document", answers={200: dict}, probe=True,
    ),
]  # fmt: skip
