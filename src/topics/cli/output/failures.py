"""Failures of commands: their exit statuses, and what a person can do about them."""

from __future__ import annotations

from topics.errors import Code, TopicsError

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_UNREACHABLE = 4
EXIT_REFUSED = 5
EXIT_RETRY = 6
EXIT_INTERRUPTED = 130

EXIT_OF_STATUS = {401: EXIT_REFUSED, 403: EXIT_REFUSED, 404: EXIT_NOT_FOUND}  # of HTTP, also of a proxy

NEXT_STEPS: dict[str, str] = {
    Code.INVALID_REQUEST: "correct the arguments; --help explains them",
    Code.UNAUTHORIZED: "pass --token-file FILE, set TOPICS_TOKEN_FILE, or add the key to the context with "
    "`topics context add NAME --url URL --token-file FILE`",
    Code.FORBIDDEN: "use a key with the scope and prefix that the message names",
    Code.TOPIC_NOT_FOUND: "`topics ls` lists the topics, and `topics create` creates one",
    Code.SCHEDULE_NOT_FOUND: "`topics schedule ls` lists the schedules",
    Code.ROUTER_NOT_FOUND: "`topics router ls` lists the routers",
    Code.CONSUMER_NOT_FOUND: "`topics consumer ls` lists the consumers",
    Code.NOT_A_QUEUE: "`topics queue ls` lists the queues; `topics create NAME --type queue` creates one",
    Code.TOPIC_NOT_EMPTY: "leave out --if-empty to remove the topic and its records",
    Code.TOPIC_FULL: "delete records, or raise the cap with `topics config TOPIC --cap-records N`",
    Code.ROUTER_CYCLE: "pass --allow-cycle if you want the cycle",
    Code.THROTTLED: "wait a moment and run the command again",
    Code.NOT_READY: "the server is starting: run the command again in a moment",
    Code.SHUTTING_DOWN: "the server is stopping: start it again",
    Code.READ_ONLY: "free space on the server's disk; `topics doctor` shows its state",
    Code.STORAGE_UNAVAILABLE: "mount the disk that the message names, then run the command again",
    Code.INTERNAL: "the log of the server has the details",
}

# Fields in messages of the server that options set, besides those of the configuration.
FIELDS = ("delay_ms", "wait_ms", "expire_ms", "max_hold_bytes", "idempotency_key")


class Failure(Exception):
    """A failure that a command reports in one line, with an exit status and a next step."""

    def __init__(self, message: str, *, status: int = EXIT_FAILED, next_step: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.next_step = next_step


def usage(message: str, next_step: str = "") -> Failure:
    return Failure(message, status=EXIT_USAGE, next_step=next_step)


def failure_of(error: TopicsError) -> Failure:
    """Return the failure for an error of the server."""
    message, next_step = str(error), NEXT_STEPS.get(error.code, "")
    status = EXIT_OF_STATUS.get(error.status, EXIT_RETRY if error.retryable else EXIT_FAILED)
    if error.code is Code.ROUTER_CYCLE:
        message = message.partition("; ")[0]  # the rest names the field of the API; the next step names the option
    elif error.code is Code.INVALID_REQUEST:
        import re

        from topics.model.topic import TopicConfig

        # The option comes before each field of the API: `--lease (lease_ms)`.
        names = sorted(
            (name for name in (*TopicConfig.__struct_fields__, *FIELDS) if "_" in name), key=len, reverse=True
        )
        fields = rf"(?<![\w.$\"'])({'|'.join(names)})(?![\w.\"'])"
        message = re.sub(fields, lambda found: f"{option_of(found[1])} ({found[1]})", message)
        status = EXIT_USAGE
    near = (error.detail or {}).get("near")
    if error.code is Code.TOPIC_NOT_FOUND and near:
        message, next_step = message.partition("; did you mean")[0], f"did you mean {near[0]}? {next_step}"
    return Failure(message, status=status, next_step=next_step)


def option_of(field: str) -> str:
    """Return the option that sets a field: `--ttl` for `ttl_ms`."""
    return "--key" if field == "idempotency_key" else "--" + field.removesuffix("_ms").replace("_", "-")
