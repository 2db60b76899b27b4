"""The rows of the route table. `tools/docs/openapi_operations.json` has their texts, by handler."""

from topics.model import access as model
from topics.model import consumer, inspection, queue, router, schedule, wire
from topics.model.records import DeleteRequest, DiffRequest, ScanRequest, WriteRequest
from topics.model.topic import ConfigPatch
from topics.model.watch import WatchCreated, WatchRequest
from topics.server.access import operations
from topics.server.api.handlers import (
    access,
    assets,
    consumers,
    diff,
    queues,
    records,
    routers,
    schedules,
    topics,
    watch,
)
from topics.server.api.handlers import inspection as looks
from topics.server.api.route import Parameter, Route, at_any_time
from topics.server.http.request import write_request

_PAGE = (Parameter("page_size", int, 100), Parameter("cursor", str))
ROUTES = [
    Route(
        "PUT", "/v0/topics/{topic}", topics.put_topic, operations.CONFIGURE_TOPIC, body=ConfigPatch,
        answers={200: wire.TopicPut, 201: wire.TopicPut},
    ),
    Route(
        "GET", "/v0/topics/{topic}", topics.get_topic, operations.READ_STATE, answers={200: wire.TopicState},
        query=(Parameter("touch", bool, True),),
    ),
    Route(
        "GET", "/v0/topics", topics.list_topics, operations.LIST_TOPICS, answers={200: wire.TopicList},
        query=(Parameter("prefix", str), *_PAGE, Parameter("touch", bool, False), Parameter("details", bool, False)),
    ),
    Route(
        "GET", "/v0/topics/{topic}/timeline", looks.get_timeline, operations.READ_TIMELINE,
        answers={200: inspection.TimelineAnswer},
        query=(Parameter("from_seq", int, 1), Parameter("to_seq", int), Parameter("ranges", int, inspection.RANGES)),
    ),
    Route(
        "GET", "/v0/topics/{topic}/schema", topics.get_schema, operations.READ_SCHEMA,
        answers={200: wire.SchemaState}, query=(Parameter("version", int),),
    ),
    Route(
        "DELETE", "/v0/topics/{topic}", topics.drop_topic, operations.DROP_TOPIC, answers={200: wire.TopicDropped},
        query=(Parameter("if_empty", bool, False),),
    ),
    Route(
        "POST", "/v0/topics/{topic}", records.append, operations.APPEND, body=WriteRequest,
        decode=write_request.decode_write, decode_steps=write_request.decode_write_steps,
        answers={200: wire.Written, 201: wire.Written}, query=(Parameter("return_seqs", bool, True),),
    ),
    Route("POST", "/v0/topics/{topic}/diff", diff.diff, operations.DIFF, body=DiffRequest, answers={200: wire.Diff}),
    Route(
        "POST", "/v0/topics/{topic}/scan", records.scan, operations.SCAN, body=ScanRequest,
        answers={200: "application/x-ndjson"},
    ),
    Route(
        "POST", "/v0/topics/{topic}/delete", records.delete_records, operations.DELETE_RECORDS, body=DeleteRequest,
        answers={200: wire.RecordsDeleted},
    ),
    Route(
        "POST", "/v0/topics/{topic}/archived", topics.report_archived, operations.REPORT_ARCHIVED,
        body=wire.ArchivedRequest, answers={200: wire.ArchivedAnswer},
    ),
    Route(
        "PUT", "/v0/topics/{topic}/consumers/{consumer}", consumers.put_consumer, operations.PUT_CONSUMER,
        body=consumer.ConsumerRequest, answers={200: consumer.ConsumerPut, 201: consumer.ConsumerPut},
    ),
    Route(
        "GET", "/v0/topics/{topic}/consumers/{consumer}", consumers.get_consumer, operations.READ_CONSUMER,
        answers={200: consumer.ConsumerState},
    ),
    Route(
        "DELETE", "/v0/topics/{topic}/consumers/{consumer}", consumers.drop_consumer, operations.DROP_CONSUMER,
        answers={200: consumer.ConsumerDropped},
    ),
    Route(
        "GET", "/v0/topics/{topic}/consumers", consumers.list_topic_consumers, operations.LIST_CONSUMERS,
        answers={200: consumer.ConsumerList}, query=_PAGE,
    ),
    Route(
        "POST", "/v0/consumers", consumers.commit_consumers, operations.COMMIT_MANY, body=consumer.CommitRequest,
        answers={200: consumer.CommitAnswer},
    ),
    Route(
        "GET", "/v0/consumers", consumers.list_consumers, operations.LIST_CONSUMERS,
        answers={200: consumer.ConsumerList}, query=(Parameter("prefix", str), *_PAGE),
    ),
    Route(
        "POST", "/v0/watch", watch.create_watch, operations.WATCH, body=WatchRequest, answers={200: WatchCreated},
        query=(Parameter("lenient", bool, False),),
    ),
    Route(
        "GET", "/v0/watch/{wid}", watch.open_watch, operations.OPEN_SESSION, stream=True, query_token=True,
        answers={200: "text/event-stream"},
    ),
    Route(
        "GET", "/v0/ws", watch.open_socket, operations.CONNECT_SOCKET, stream=True, answers={101: "application/json"},
    ),
    Route(
        "POST", "/v0/topics/{topic}/claim", queues.claim, operations.CLAIM, body=queue.ClaimRequest,
        answers={200: queue.ClaimAnswer},
    ),
    Route(
        "POST", "/v0/topics/{topic}/ack", queues.ack, operations.ACK, body=queue.AckRequest,
        answers={200: queue.AckAnswer},
    ),
    Route(
        "POST", "/v0/topics/{topic}/nack", queues.nack, operations.NACK, body=queue.NackRequest,
        answers={200: queue.NackAnswer},
    ),
    Route(
        "POST", "/v0/topics/{topic}/extend", queues.extend, operations.EXTEND, body=queue.ExtendRequest,
        answers={200: queue.ExtendAnswer},
    ),
    Route(
        "GET", "/v0/topics/{topic}/work", queues.open_work_stream, operations.WORK, stream=True, query_token=True,
        answers={200: "text/event-stream"},
        query=(Parameter("node", str, required=True), Parameter("max", int, 1), Parameter("lease_ms", int)),
    ),
    Route(
        "GET", "/v0/topics/{topic}/jobs", queues.list_jobs, operations.LIST_JOBS, answers={200: queue.JobList},
        query=(Parameter("state", str), *_PAGE),
    ),
    Route(
        "POST", "/v0/topics/{topic}/redrive", queues.redrive, operations.REDRIVE, body=queue.RedriveRequest,
        answers={200: queue.RedriveAnswer},
    ),
    Route(
        "PUT", "/v0/routers/{router}", routers.put_router, operations.PUT_ROUTER, body=router.RouterRequest,
        answers={200: router.RouterPutAnswer, 201: router.RouterPutAnswer},
    ),
    Route(
        "GET", "/v0/routers/{router}", routers.get_router, operations.READ_ROUTER, answers={200: router.RouterAnswer},
    ),
    Route(
        "GET", "/v0/routers", routers.list_routers, operations.LIST_ROUTERS, answers={200: router.RouterList},
        query=(Parameter("prefix", str), Parameter("source", str), Parameter("dest", str), *_PAGE),
    ),
    Route(
        "DELETE", "/v0/routers/{router}", routers.drop_router, operations.DROP_ROUTER,
        answers={200: router.RouterDropped},
    ),
    Route(
        "POST", "/v0/routers/{router}/preview", routers.preview_router, operations.PREVIEW_ROUTER,
        body=router.PreviewRequest, answers={200: router.PreviewAnswer},
    ),
    Route(
        "PUT", "/v0/schedules/{schedule}", schedules.put_schedule, operations.PUT_SCHEDULE,
        body=schedule.ScheduleRequest, answers={200: schedule.SchedulePutAnswer, 201: schedule.SchedulePutAnswer},
    ),
    Route(
        "GET", "/v0/schedules/{schedule}", schedules.get_schedule, operations.READ_SCHEDULE,
        answers={200: schedule.ScheduleAnswer},
    ),
    Route(
        "GET", "/v0/schedules", schedules.list_schedules, operations.LIST_SCHEDULES,
        answers={200: schedule.ScheduleList}, query=(Parameter("prefix", str), Parameter("topic", str), *_PAGE),
    ),
    Route(
        "DELETE", "/v0/schedules/{schedule}", schedules.drop_schedule, operations.DROP_SCHEDULE,
        answers={200: schedule.ScheduleDropped},
    ),
    Route(
        "POST", "/v0/schedules/{schedule}/run", schedules.run_schedule, operations.RUN_SCHEDULE,
        answers={200: schedule.ScheduleRun},
    ),
    Route(
        "POST", "/v0/schedules/{schedule}/pause", schedules.pause_schedule, operations.PAUSE_SCHEDULE,
        body=schedule.SchedulePauseRequest, answers={200: schedule.ScheduleAnswer},
    ),
    Route(
        "POST", "/v0/schedules/{schedule}/preview", schedules.preview_schedule, operations.PREVIEW_SCHEDULE,
        body=schedule.SchedulePreviewRequest, answers={200: schedule.SchedulePreview},
    ),
    *(
        Route(
            "GET", path, operation=operations.PROBE, **at_any_time(looks.get_health), answers={200: wire.Health},
            probe=True,
        )
        for path in ("/v0/health", "/healthz")
    ),
    *(
        Route(
            "GET", path, looks.get_ready, operations.PROBE, answers={200: wire.Ready}, probe=True,
            query=(Parameter("for", str),),
        )
        for path in ("/v0/ready", "/readyz")
    ),
    *(
        Route(
            "GET", path, looks.get_metrics, operations.READ_METRICS,
            while_recovering=looks.get_metrics_while_recovering, answers={200: "text/plain"},
            query=(Parameter("old_names", bool, True),),
        )
        for path in ("/v0/metrics", "/metrics")
    ),
    Route(
        "GET", "/v0/openapi.json", operation=operations.READ_DOCUMENT, **at_any_time(looks.get_openapi), probe=True,
        answers={200: dict},
    ),
    Route(
        "POST", "/v0/tokens", access.create_token, operations.CREATE_TOKEN, body=model.TokenRequest,
        answers={201: model.TokenCreated},
    ),
    Route(
        "POST", "/v0/tokens/revoke", access.revoke_tokens, operations.REVOKE_TOKENS, body=model.RevokeRequest,
        answers={200: model.TokensRevoked},
    ),
    Route("GET", "/v0/keys", access.list_keys, operations.LIST_KEYS, answers={200: model.KeyList}),
    Route(
        "POST", "/v0/keys", access.create_key, operations.CREATE_KEY, body=model.KeyRequest,
        answers={201: model.KeyCreated},
    ),
    Route(
        "POST", "/v0/keys/{key}/rotate", access.rotate_key, operations.ROTATE_KEY, body=model.RotateRequest,
        answers={200: model.KeyCreated},
    ),
    Route("DELETE", "/v0/keys/{key}", access.drop_key, operations.DROP_KEY, answers={200: model.KeyDropped}),
    Route("GET", "/v0/whoami", looks.whoami, operations.READ_OWN_RIGHTS, answers={200: inspection.Whoami}),
    Route(
        "GET", "/v0/samples", looks.list_samples, operations.READ_SAMPLES, console=True,
        answers={200: inspection.Samples},
        query=(
            Parameter("after", int, 0), Parameter("queue", str), Parameter("readers", bool, False),
            Parameter("minutes", bool, False),
            Parameter("topic", str), Parameter("from_ts", int), Parameter("to_ts", int), Parameter("points", int, 120),
        ),
    ),
    Route(
        "GET", "/", operation=operations.READ_DOCUMENT, **at_any_time(assets.get_index), probe=True,
        answers={200: inspection.Index, 302: "text/html"},
    ),
    *(
        Route(
            "GET", path, operation=operations.READ_DOCUMENT, **at_any_time(assets.get_asset, name), console=True,
            probe=True, answers={200: kind, 304: kind},
        )
        for path, name, kind in (
            ("/console", "get_console", "text/html"),
            ("/console/{file}", "get_console_file", "text/javascript"),
            ("/console/parts/{file}", "get_console_part", "text/javascript"),
            ("/console/pages/{file}", "get_console_page", "text/javascript"),
        )
    ),
    *(
        Route(
            "GET", path, operation=operations.READ_DOCUMENT, **at_any_time(assets.get_asset, name),
            answers={200: kind, 304: kind}, probe=True,
        )
        for path, name, kind in (
            ("/client.js", "get_client_js", "text/javascript"),
            ("/client.d.ts", "get_client_types", "text/typescript"),
        )
    ),
]  # fmt: skip
