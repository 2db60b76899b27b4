"""The rows of the route table."""

from topics.errors import Code
from topics.model import consumer, inspection, queue, router, wire
from topics.model.records import DeleteRequest, DiffRequest, ScanRequest, WriteRequest
from topics.model.topic import ConfigPatch
from topics.model.watch import WatchCreated, WatchRequest
from topics.server.access import operations
from topics.server.api.handlers import assets, consumers, diff, queues, records, routers, topics, watch
from topics.server.api.handlers import inspection as looks
from topics.server.api.route import Parameter, Route, at_any_time
from topics.server.http.request import write_request

_TOUCH = "whether this request counts as a read of the topic (auto-priority)"
_PAGE = (
    Parameter("page_size", int, "rows per page, at most 1000", 100),
    Parameter("cursor", str, "`next_cursor` of the previous page"),
)

_QUEUE_ERRORS = (Code.TOPIC_NOT_FOUND, Code.NOT_A_QUEUE, Code.READ_ONLY)

ROUTES = [
    Route(
        method="PUT", path="/v0/topics/{topic}", handler=topics.put_topic, operation=operations.CONFIGURE_TOPIC,
        summary="Create a topic, or change its configuration",
        body=ConfigPatch, answers={200: wire.TopicPut, 201: wire.TopicPut},
        errors=(Code.TOPIC_EXISTS_INCOMPATIBLE, Code.THROTTLED, Code.READ_ONLY),
    ),
    Route(
        method="GET", path="/v0/topics/{topic}", handler=topics.get_topic, operation=operations.READ_STATE,
        summary="Get the state of a topic: first and last seq, size, configuration",
        answers={200: wire.TopicState}, errors=(Code.TOPIC_NOT_FOUND,),
        query=(Parameter("touch", bool, _TOUCH, True),),
    ),
    Route(
        method="GET", path="/v0/topics", handler=topics.list_topics, operation=operations.LIST_TOPICS,
        summary="List topics by name",
        answers={200: wire.TopicList},
        query=(
            Parameter("prefix", str, "only names with this prefix"), *_PAGE,
            Parameter("touch", bool, _TOUCH, False),
            Parameter("details", bool, "whether each topic comes with its configuration and figures", False),
        ),
    ),
    Route(
        method="GET", path="/v0/topics/{topic}/timeline", handler=looks.get_timeline,
        operation=operations.READ_TIMELINE,
        summary="Get what has become of each seq: live, deleted, archived, or lost and why",
        answers={200: inspection.TimelineAnswer}, errors=(Code.TOPIC_NOT_FOUND,),
        query=(
            Parameter("from_seq", int, "the first seq of the window", 1),
            Parameter("to_seq", int, "the last seq of the window; the head by default"),
            Parameter("ranges", int, "about how many ranges to return, at most 2000", inspection.RANGES),
        ),
    ),
    Route(
        method="DELETE", path="/v0/topics/{topic}", handler=topics.drop_topic, operation=operations.DROP_TOPIC,
        summary="Delete a topic and everything in it",
        answers={200: wire.TopicDropped}, errors=(Code.TOPIC_NOT_EMPTY, Code.READ_ONLY),
        query=(Parameter("if_empty", bool, "refuse if the topic holds records", False),),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}", handler=records.append, operation=operations.APPEND,
        summary="Append records, all or none",
        body=WriteRequest, decode=write_request.decode_write, decode_steps=write_request.decode_write_steps,
        answers={200: wire.Written, 201: wire.Written},
        errors=(
            Code.BATCH_TOO_LARGE, Code.RECORD_TOO_LARGE, Code.TOPIC_NOT_FOUND, Code.TOPIC_FULL, Code.THROTTLED,
            Code.READ_ONLY,
        ),
        query=(Parameter("return_seqs", bool, "whether the answer lists every seq", True),),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/diff", handler=diff.diff, operation=operations.DIFF,
        summary="Read the records after a cursor, with a tombstone if some were lost",
        body=DiffRequest, answers={200: wire.Diff},
        errors=(
            Code.TOPIC_NOT_FOUND, Code.EPOCH_MISMATCH, Code.THROTTLED, Code.READ_ONLY,
            Code.STORAGE_UNAVAILABLE,
        ),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/scan", handler=records.scan, operation=operations.SCAN,
        summary="Read a range of records as one stream: JSON lines, segments or Arrow, by `Accept`",
        body=ScanRequest, answers={200: "application/x-ndjson"},
        errors=(Code.TOPIC_NOT_FOUND, Code.NOT_ACCEPTABLE, Code.THROTTLED, Code.STORAGE_UNAVAILABLE),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/delete", handler=records.delete_records,
        operation=operations.DELETE_RECORDS,
        summary="Delete records by seq, by tag, or both; readers get no tombstone",
        body=DeleteRequest, answers={200: wire.RecordsDeleted},
        errors=(Code.TOPIC_NOT_FOUND, Code.BATCH_TOO_LARGE, Code.EPOCH_MISMATCH, Code.READ_ONLY),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/archived", handler=topics.report_archived,
        operation=operations.REPORT_ARCHIVED,
        summary="Report up to which seq an archive has every record: a topic that holds them may expire them",
        body=wire.ArchivedRequest, answers={200: wire.ArchivedAnswer},
        errors=(Code.TOPIC_NOT_FOUND, Code.EPOCH_MISMATCH, Code.READ_ONLY),
    ),
    Route(
        method="PUT", path="/v0/topics/{topic}/consumers/{consumer}", handler=consumers.put_consumer,
        operation=operations.PUT_CONSUMER,
        summary="Store the position of a named consumer, or change it, by compare-and-set with `if_seq`",
        body=consumer.ConsumerRequest, answers={200: consumer.ConsumerPut, 201: consumer.ConsumerPut},
        errors=(
            Code.TOPIC_NOT_FOUND, Code.EPOCH_MISMATCH, Code.CONSUMER_MOVED, Code.THROTTLED, Code.READ_ONLY,
        ),
    ),
    Route(
        method="GET", path="/v0/topics/{topic}/consumers/{consumer}", handler=consumers.get_consumer,
        operation=operations.READ_CONSUMER,
        summary="Get a consumer: its position, its lag in records and milliseconds, and unread records that were lost",
        answers={200: consumer.ConsumerState}, errors=(Code.TOPIC_NOT_FOUND, Code.CONSUMER_NOT_FOUND),
    ),
    Route(
        method="DELETE", path="/v0/topics/{topic}/consumers/{consumer}", handler=consumers.drop_consumer,
        operation=operations.DROP_CONSUMER,
        summary="Delete a consumer, and end its hold",
        answers={200: consumer.ConsumerDropped}, errors=(Code.TOPIC_NOT_FOUND, Code.READ_ONLY),
    ),
    Route(
        method="GET", path="/v0/topics/{topic}/consumers", handler=consumers.list_topic_consumers,
        operation=operations.LIST_CONSUMERS,
        summary="List the consumers of a topic by name",
        answers={200: consumer.ConsumerList}, errors=(Code.TOPIC_NOT_FOUND,), query=_PAGE,
    ),
    Route(
        method="POST", path="/v0/consumers", handler=consumers.commit_consumers, operation=operations.COMMIT_MANY,
        summary="Acknowledge for many consumers of any topics at once, each by itself",
        body=consumer.CommitRequest, answers={200: consumer.CommitAnswer},
        errors=(Code.BATCH_TOO_LARGE,),
    ),
    Route(
        method="GET", path="/v0/consumers", handler=consumers.list_consumers, operation=operations.LIST_CONSUMERS,
        summary="List the consumers of all topics, by topic and name",
        answers={200: consumer.ConsumerList},
        query=(Parameter("prefix", str, "only topics with this prefix"), *_PAGE),
    ),
    Route(
        method="POST", path="/v0/watch", handler=watch.create_watch, operation=operations.WATCH,
        summary="Create a watch session over any number of topics",
        body=WatchRequest, answers={200: WatchCreated}, errors=(Code.TOPIC_NOT_FOUND, Code.THROTTLED),
        query=(Parameter("lenient", bool, "skip topics that do not exist instead of failing", False),),
    ),
    Route(
        method="GET", path="/v0/watch/{wid}", handler=watch.open_watch,
        operation=operations.OPEN_SESSION, stream=True, query_token=True,
        summary="Open the event stream of a watch session; a new one replaces the one before",
        answers={200: "text/event-stream"},
        errors=(Code.FORBIDDEN, Code.NOT_FOUND, Code.NOT_ACCEPTABLE, Code.THROTTLED),
    ),
    Route(
        method="GET", path="/v0/ws", handler=watch.open_socket, operation=operations.CONNECT_SOCKET, stream=True,
        summary="Open a WebSocket: subscribe and publish as JSON messages",
        answers={101: "application/json"}, errors=(Code.FORBIDDEN, Code.THROTTLED),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/claim", handler=queues.claim, operation=operations.CLAIM,
        summary="Lease jobs to a worker",
        body=queue.ClaimRequest, answers={200: queue.ClaimAnswer}, errors=(*_QUEUE_ERRORS, Code.THROTTLED),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/ack", handler=queues.ack, operation=operations.ACK,
        summary="Delete finished jobs",
        body=queue.AckRequest, answers={200: queue.AckAnswer}, errors=(*_QUEUE_ERRORS, Code.BATCH_TOO_LARGE),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/nack", handler=queues.nack, operation=operations.NACK,
        summary="Return jobs to the queue, to be claimed again now or later",
        body=queue.NackRequest, answers={200: queue.NackAnswer}, errors=(*_QUEUE_ERRORS, Code.BATCH_TOO_LARGE),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/extend", handler=queues.extend, operation=operations.EXTEND,
        summary="Extend the leases of jobs",
        body=queue.ExtendRequest, answers={200: queue.ExtendAnswer}, errors=(*_QUEUE_ERRORS, Code.BATCH_TOO_LARGE),
    ),
    Route(
        method="GET", path="/v0/topics/{topic}/work", handler=queues.open_work_stream, operation=operations.WORK,
        stream=True, query_token=True,
        summary="Open a stream that pushes jobs to a worker as it has room for them",
        answers={200: "text/event-stream"}, errors=(*_QUEUE_ERRORS, Code.NOT_ACCEPTABLE, Code.THROTTLED),
        query=(
            Parameter("node", str, "the name of the worker", required=True),
            Parameter("max", int, "jobs that it can hold at a time", 1),
            Parameter("lease_ms", int, "the lease of each job; the topic's `lease_ms` by default"),
        ),
    ),
    Route(
        method="GET", path="/v0/topics/{topic}/jobs", handler=queues.list_jobs, operation=operations.LIST_JOBS,
        summary="List jobs with their states, in the order of the log",
        answers={200: queue.JobList}, errors=_QUEUE_ERRORS,
        query=(Parameter("state", str, "`ready`, `in_flight` or `delayed`; all by default"), *_PAGE),
    ),
    Route(
        method="POST", path="/v0/topics/{topic}/redrive", handler=queues.redrive, operation=operations.REDRIVE,
        summary="Move dead letters of this queue back into it",
        body=queue.RedriveRequest, answers={200: queue.RedriveAnswer},
        errors=(*_QUEUE_ERRORS, Code.TOPIC_FULL, Code.BATCH_TOO_LARGE, Code.RECORD_TOO_LARGE, Code.THROTTLED),
    ),
    Route(
        method="PUT", path="/v0/routers/{router}", handler=routers.put_router, operation=operations.PUT_ROUTER,
        summary="Create a router, or change it; creates the topics it needs",
        body=router.RouterRequest, answers={200: router.RouterPutAnswer, 201: router.RouterPutAnswer},
        errors=(
            Code.TOPIC_NOT_FOUND, Code.ROUTER_CYCLE, Code.TOPIC_EXISTS_INCOMPATIBLE, Code.THROTTLED, Code.READ_ONLY,
        ),
    ),
    Route(
        method="GET", path="/v0/routers/{router}", handler=routers.get_router, operation=operations.READ_ROUTER,
        summary="Get the state of a router: its position, its lag, and its last error",
        answers={200: router.RouterAnswer}, errors=(Code.ROUTER_NOT_FOUND,),
    ),
    Route(
        method="GET", path="/v0/routers", handler=routers.list_routers, operation=operations.LIST_ROUTERS,
        summary="List routers by name",
        answers={200: router.RouterList},
        query=(
            Parameter("prefix", str, "only names with this prefix"),
            Parameter("source", str, "only routers that read from this topic"),
            Parameter("dest", str, "only routers that write into this topic"),
            *_PAGE,
        ),
    ),
    Route(
        method="DELETE", path="/v0/routers/{router}", handler=routers.drop_router, operation=operations.DROP_ROUTER,
        summary="Delete a router; forwarded records stay",
        answers={200: router.RouterDropped}, errors=(Code.READ_ONLY,),
    ),
    Route(
        method="POST", path="/v0/routers/{router}/preview", handler=routers.preview_router,
        operation=operations.PREVIEW_ROUTER,
        summary="Count the retained records that a filter would forward, without forwarding any",
        body=router.PreviewRequest, answers={200: router.PreviewAnswer},
        errors=(Code.ROUTER_NOT_FOUND, Code.TOPIC_NOT_FOUND),
    ),
    *(
        Route(
            method="GET", path=path, **at_any_time(looks.get_health),
            operation=operations.PROBE, summary="Report whether the process is alive",
            answers={200: wire.Health}, probe=True,
        )
        for path in ("/v0/health", "/healthz")
    ),
    *(
        Route(
            method="GET", path=path, handler=looks.get_ready,
            operation=operations.PROBE, summary="Report whether the server can serve",
            answers={200: wire.Ready}, errors=(Code.NOT_READY, Code.READ_ONLY), probe=True,
        )
        for path in ("/v0/ready", "/readyz")
    ),
    *(
        Route(
            method="GET", path=path, handler=looks.get_metrics, operation=operations.READ_METRICS,
            while_recovering=looks.get_metrics_while_recovering,
            summary="Get the metrics: Prometheus text, or JSON if `Accept` asks for it",
            answers={200: "text/plain"},
        )
        for path in ("/v0/metrics", "/metrics")
    ),
    Route(
        method="GET", path="/v0/openapi.json", handler=looks.get_openapi, operation=operations.READ_DOCUMENT,
        while_recovering=looks.get_openapi_while_recovering, probe=True,
        summary="Get this document", answers={200: dict},
    ),
    Route(
        method="GET", path="/v0/whoami", handler=looks.whoami, operation=operations.READ_OWN_RIGHTS,
        summary="Get the scopes and prefixes of the key that sends this",
        answers={200: inspection.Whoami}, errors=(Code.UNAUTHORIZED, Code.THROTTLED),
    ),
    Route(
        method="GET", path="/v0/samples", handler=looks.list_samples, operation=operations.READ_SAMPLES, console=True,
        summary="Get figures of the last hour, a row every five seconds",
        answers={200: inspection.Samples}, errors=(Code.TOPIC_NOT_FOUND, Code.NOT_A_QUEUE),
        query=(
            Parameter("after", int, "only rows after this time, in milliseconds since 1970", 0),
            Parameter("queue", str, "figures of this queue, a row every 15 seconds, instead of the server"),
            Parameter("readers", bool, "lag and progress of consumers and routers, a row every 15 seconds", False),
            Parameter("topic", str, "head and bytes of this topic over time, from the commit times of its records"),
            Parameter("from_ts", int, "the first time, with `topic`; an hour before `to_ts` by default"),
            Parameter("to_ts", int, "the last time, with `topic`; now by default"),
            Parameter("points", int, "about how many rows to return, with `topic`; at most 1000", 120),
        ),
    ),
    Route(
        method="GET", path="/", **at_any_time(assets.get_index), operation=operations.READ_DOCUMENT, probe=True,
        summary="Get the addresses of this server; a browser is sent to the console",
        answers={200: inspection.Index, 302: "text/html"},
    ),
    *(
        Route(
            method="GET", path=path, **at_any_time(answer), operation=operations.READ_DOCUMENT, console=True,
            probe=True, summary=summary,
            answers={200: kind, 304: kind}, errors=() if path == "/console" else (Code.NOT_FOUND,),
        )
        for path, answer, summary, kind in (
            ("/console", assets.get_console, "The web console", "text/html"),
            ("/console/{file}", assets.get_console_file, "A file of the console", "text/javascript"),
            ("/console/parts/{file}", assets.get_console_part, "A file that the pages of the console share",
             "text/javascript"),
            ("/console/pages/{file}", assets.get_console_page, "A page of the console", "text/javascript"),
        )
    ),
    Route(
        method="GET", path="/client.js", **at_any_time(assets.get_client_js), operation=operations.READ_DOCUMENT,
        summary="The JavaScript client: one ES module",
        answers={200: "text/javascript", 304: "text/javascript"}, probe=True,
    ),
]  # fmt: skip
