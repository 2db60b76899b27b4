"""The configuration of a topic: stored form, request form, and the conversion between them."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, structs

from topics.errors import Code, TopicsError, invalid
from topics.model import schemas
from topics.model.names import check_topic
from topics.model.schemas import Compatibility, SchemaMode

U64_MAX = 2**64 - 1

U64 = Annotated[int, Meta(ge=0, description="unsigned 64-bit integer")]
TopicType = Literal["log", "queue"]
Discard = Literal["old", "reject"]
Durability = Literal["ephemeral", "memory", "disk", "fsync", "replicated"]
SYNCED = ("fsync", "replicated")  # classes whose writes take effect only once they are synced, at least

PRIORITY_LIMIT = 1000
LEASE_MS_RANGE = (100, 86_400_000)
CLAIM_JITTER_MS_RANGE = (0, 5_000)
MAX_RATE = 1_000_000


# These refuse unknown fields: to ignore a setting that a newer version has stored would lose it.
class ArchiveConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Archive settings of a topic. With `hold`, records do not expire before they are archived."""

    hold: Annotated[bool, "keep records past their TTL until an archive reports that it has them"] = False


class RetryPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The delay of a job that was nacked without one: `min_ms`, then `factor` times as long with each delivery."""

    min_ms: Annotated[U64, "the delay after the first delivery"] = 1_000
    max_ms: Annotated[U64, "the longest delay, at most 86400000"] = 300_000
    factor: Annotated[float, "1 to 100"] = 2.0
    jitter: Annotated[float, "0 to 1: by up to this share a delay is shorter, so that jobs do not return together"] = (
        0.1
    )

    def delay_ms(self, deliveries: int, lease: int) -> int:
        """Return the delay after so many deliveries. The number of the lease decides how much shorter it is."""
        longest = min(self.min_ms * self.factor ** min(deliveries - 1, 64), self.max_ms)
        return int(longest * (1 - self.jitter * (lease * 2_654_435_761 % 2**32 / 2**32)))


DEFAULT_RETRY = RetryPolicy()


class Rate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most jobs that are delivered: `burst` at once, and then `per_s` in a second."""

    per_s: Annotated[float, "deliveries in a second, above 0 and up to 1000000"]
    burst: Annotated[U64, "up to 1000000; 0 is the default: as many as in a tenth of a second, at least 1"] = 0

    def __post_init__(self) -> None:
        if not self.burst:  # one token would let a worker that claims ten jobs every 10 ms have a tenth of 1,000 per_s
            structs.force_setattr(self, "burst", max(int(min(self.per_s, MAX_RATE) / 10), 1))

    @property
    def cost_ns(self) -> int:
        return round(1e9 / self.per_s)


class TopicConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The complete configuration of a topic, with all defaults."""

    type: TopicType = "log"
    ttl_ms: U64 = 0
    cap_records: U64 = 0
    cap_bytes: U64 = 0
    discard: Discard = "old"
    durable: bool = False
    durability: Durability = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: U64 = 120_000
    dedupe_node: bool = True
    lease_ms: U64 = 30_000
    claim_jitter_ms: U64 = 0
    max_deliveries: U64 = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    retry: RetryPolicy | None = None
    max_in_flight: U64 = 0
    max_in_flight_per_key: U64 = 1
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    paused: bool = False
    archive: ArchiveConfig | None = None
    schema: Annotated[dict[str, Any] | None, "JSON Schema 2020-12 for `data`"] = None
    schema_mode: SchemaMode = "reject"
    compatibility: Compatibility = "backward"
    schema_versions: Annotated[tuple[dict[str, Any], ...], "every schema that the topic has had, oldest first"] = ()


_Omittable: Any = defstruct(
    "_Omittable",
    [(field.name, field.type | UnsetType, UNSET) for field in structs.fields(TopicConfig)],
    module=__name__,
    frozen=True,
    kw_only=True,
)


class ConfigPatch(_Omittable, frozen=True, kw_only=True, forbid_unknown_fields=True):  # type: ignore[misc, call-arg]
    """The configuration fields of a request. An omitted field keeps its value, or gets its default in a new topic."""

    defaults: Annotated[
        Literal["contract", "safe"],
        "safe: a new queue has `discard: reject` and `leases_durable`, unless the request says otherwise",
    ] = "contract"
    force: Annotated[bool, "set a schema that is not compatible with the last one"] = False


DEFAULT_CONFIG = TopicConfig()
NO_PATCH = ConfigPatch()
SAFE_QUEUE = TopicConfig(type="queue", discard="reject", leases_durable=True)


def configure(name: str, patch: ConfigPatch, current: TopicConfig | None = None) -> TopicConfig:
    """Return `current` (or the defaults) changed by `patch`, with values clamped. Raise an error for invalid fields.

    `durability` wins over `durable`, and `durable` of the result follows `durability`.
    """
    if patch == NO_PATCH:
        return current or DEFAULT_CONFIG  # one object for all topics
    given = {field: value for field, value in structs.asdict(patch).items() if value is not UNSET}
    if given.get("retry") is not None:
        check_retry(given["retry"])
    for field, value in given.items():
        if isinstance(value, Rate) and not (0 < value.per_s <= MAX_RATE and value.burst <= MAX_RATE):
            raise invalid(f"{field} needs per_s above 0, and both up to {MAX_RATE}", field=field)
        if type(value) is int and value > U64_MAX:
            raise invalid(f"{field} does not fit in 64 bits", field=field)
    if current is not None and given.get("type", current.type) != current.type:
        raise TopicsError(
            Code.TOPIC_EXISTS_INCOMPATIBLE,
            f'topic "{name}" is a {current.type}; its type cannot change',
            detail={"topic": name, "type": current.type},
        )
    if "durability" not in given and "durable" in given:
        kept = current.durability if current is not None and given["durable"] == current.durable else None
        given["durability"] = kept if kept in SYNCED else "fsync" if given["durable"] else "disk"
    is_safe = given.pop("defaults") == "safe" and given.get("type") == "queue"
    force = given.pop("force")
    merged = structs.replace(current or (SAFE_QUEUE if is_safe else DEFAULT_CONFIG), **given)
    if merged.dead_letter is not None:
        check_topic(merged.dead_letter, field="dead_letter")
        if merged.dead_letter == name:
            raise invalid("dead_letter is the queue itself; name another topic", field="dead_letter")
    if "schema" in given or "schema_versions" in given:
        merged = structs.replace(merged, schema_versions=schemas.checked(name, current, merged, force=force))
    return structs.replace(
        merged,
        durable=merged.durability in SYNCED,
        priority=None if merged.priority is None else clamp(merged.priority, -PRIORITY_LIMIT, PRIORITY_LIMIT),
        lease_ms=clamp(merged.lease_ms, *LEASE_MS_RANGE),
        claim_jitter_ms=clamp(merged.claim_jitter_ms, *CLAIM_JITTER_MS_RANGE),
    )


def warnings_of(config: TopicConfig) -> list[str]:
    """Return what a configuration does not do, although its author may expect it."""
    if config.type != "queue":
        return []
    buries = bool(config.max_deliveries) and config.dead_letter is not None
    found = {
        "max_deliveries has no effect without dead_letter: failed jobs are delivered again without end":
            config.max_deliveries and config.dead_letter is None,
        "dead_letter has no effect without max_deliveries: no job moves there":
            config.dead_letter is not None and not config.max_deliveries,
        'a full queue evicts its oldest jobs, also leased ones: set discard to "reject"':
            (config.cap_records or config.cap_bytes) and config.discard == "old",
        "a restart forgets delays of nacks and delivery counts: set leases_durable":
            (config.retry is not None or buries) and not config.leases_durable,
    }  # fmt: skip
    return [text for text, holds in found.items() if holds]


def check_retry(policy: RetryPolicy) -> None:
    if not policy.min_ms <= policy.max_ms <= LEASE_MS_RANGE[1]:
        raise invalid(f"retry.max_ms must be between min_ms and {LEASE_MS_RANGE[1]}", field="retry.max_ms")
    if not 1 <= policy.factor <= 100:
        raise invalid("retry.factor must be between 1 and 100", field="retry.factor")
    if not 0 <= policy.jitter <= 1:
        raise invalid("retry.jitter must be between 0 and 1", field="retry.jitter")


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))
