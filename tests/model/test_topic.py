"""Topic configuration: a patch over the current values, checked and clamped."""

import pytest

from topics.errors import Code, TopicsError
from topics.model.topic import U64_MAX, ConfigPatch, TopicConfig, configure


def test_every_default_is_safe():
    config = configure("a", ConfigPatch())
    assert config == TopicConfig()
    assert (config.ttl_ms, config.cap_records, config.cap_bytes, config.discard) == (0, 0, 0, "old")
    assert (config.durability, config.durable, config.idempotency_window_ms) == ("disk", False, 120_000)


def test_patch_changes_given_fields_and_null_is_a_value():
    before = configure("a", ConfigPatch(priority=5, ttl_ms=9))
    assert configure("a", ConfigPatch(ttl_ms=8), before).priority == 5
    assert configure("a", ConfigPatch(priority=None), before).priority is None


@pytest.mark.parametrize(
    ("patch", "durability", "durable"),
    [
        (ConfigPatch(durable=True), "fsync", True),
        (ConfigPatch(durable=False), "disk", False),
        (ConfigPatch(durability="memory", durable=True), "memory", False),
        (ConfigPatch(durability="fsync", durable=False), "fsync", True),
        (ConfigPatch(durability="ephemeral"), "ephemeral", False),
    ],
)
def test_explicit_durability_wins_over_the_shorthand(patch, durability, durable):
    config = configure("a", patch)
    assert (config.durability, config.durable) == (durability, durable)


def test_durability_changes_only_if_given():
    memory = configure("a", ConfigPatch(durability="memory"))
    assert configure("a", ConfigPatch(ttl_ms=1), memory).durability == "memory"
    assert configure("a", ConfigPatch(durable=True), memory).durability == "fsync"


@pytest.mark.parametrize(
    ("patch", "field", "expected"),
    [
        (ConfigPatch(priority=5000), "priority", 1000),
        (ConfigPatch(priority=-5000), "priority", -1000),
        (ConfigPatch(lease_ms=1), "lease_ms", 100),
        (ConfigPatch(lease_ms=10**12), "lease_ms", 86_400_000),
        (ConfigPatch(claim_jitter_ms=6000), "claim_jitter_ms", 5000),
        (ConfigPatch(ttl_ms=U64_MAX), "ttl_ms", U64_MAX),
    ],
)
def test_values_out_of_range_are_clamped(patch, field, expected):
    assert getattr(configure("a", patch), field) == expected


@pytest.mark.parametrize("field", ["ttl_ms", "cap_records", "cap_bytes", "lease_ms", "max_deliveries"])
def test_number_past_64_bits_is_refused(field):
    with pytest.raises(TopicsError) as caught:
        configure("a", ConfigPatch(**{field: U64_MAX + 1}))
    assert caught.value.detail == {"field": field}


@pytest.mark.parametrize("dead_letter", ["a", "not a name"])
def test_dead_letter_names_another_topic(dead_letter):
    with pytest.raises(TopicsError) as caught:
        configure("a", ConfigPatch(dead_letter=dead_letter))
    assert caught.value.detail == {"field": "dead_letter"}
    assert configure("b", ConfigPatch(dead_letter="a")).dead_letter == "a"


def test_type_never_changes():
    queue = configure("a", ConfigPatch(type="queue"))
    assert configure("a", ConfigPatch(type="queue", ttl_ms=1), queue).type == "queue"
    with pytest.raises(TopicsError) as caught:
        configure("a", ConfigPatch(type="log"), queue)
    assert caught.value.code is Code.TOPIC_EXISTS_INCOMPATIBLE
