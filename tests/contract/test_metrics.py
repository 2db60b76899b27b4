"""Metrics as Prometheus text, and as JSON on request."""

import re
import threading
from typing import Any

import pytest

from tests.contract.api import Api

GAUGES = [
    "topics_topics", "topics_topics_by_class", "topics_routers", "topics_records_live", "topics_bytes_live",
    "topics_queue_topics", "topics_queue_leases_in_flight", "topics_sse_connections", "topics_watch_sessions",
    "topics_ready", "topics_recovery_progress", "topics_uptime_ms", "topics_topic_head_seq",
    "topics_topic_earliest_seq", "topics_topic_records_live", "topics_topic_bytes_live", "topics_topic_lost",
    "topics_topic_queue_ready",
    "topics_topic_queue_in_flight", "topics_topic_metrics_truncated", "topics_wal_queue_depth",
    "topics_wal_queue_depth_peak", "topics_wal_read_only", "topics_checkpoint_failing", "topics_topic_archived_seq",
    "topics_topic_archive_unarchived", "topics_topic_archive_overdue", "topics_memory_budget_bytes",
    "topics_memory_charged_bytes", "topics_consumer_lag_records", "topics_consumer_lag_seconds",
    "topics_consumer_metrics_truncated", "topics_loop_hold_max_ms", "topics_loop_lag_ms", "topics_pressure_step",
]  # fmt: skip
COUNTERS = [
    "topics_wal_frames_total", "topics_wal_batches_total", "topics_wal_fsyncs_total", "topics_wal_bytes_written_total",
    "topics_wal_rotations_total", "topics_wal_submit_full_total", "topics_topic_archive_evicted_total",
    "topics_slow_readers_total",
]  # fmt: skip
HISTOGRAM = "topics_wal_fsync_latency_us"

LABEL = r'[a-z]+="[^"\\]*"'
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(" + LABEL + "(?:," + LABEL + r")*)\})? (-?[0-9.e+-]+)")


class Scrape:
    """Parse the text format as a scraper does."""

    def __init__(self, api: Api) -> None:
        answer = api.call("GET", "/v0/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert answer.text.endswith("\n")
        self.types: dict[str, str] = {}
        self.helped: set[str] = set()
        self.samples: dict[tuple[str, str], float] = {}
        for line in answer.text.splitlines():
            if line.startswith("# TYPE "):
                name, kind = line.split()[2:]
                assert name not in self.types, f"{name} is declared twice"
                self.types[name] = kind
            elif line.startswith("# HELP "):
                self.helped.add(line.split()[2])
            else:
                self._take(line)

    def _take(self, line: str) -> None:
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        name, labels, value = match.groups()
        label = "/".join(re.findall(r'="([^"]*)"', labels or ""))
        assert (name, label) not in self.samples, line
        self.samples[name, label] = float(value)

    def __getitem__(self, name: str) -> float:
        return self.samples[name, ""]


def test_every_metric_has_a_type_and_a_help_text(api: Api):
    scrape = Scrape(api)
    for name in GAUGES:
        assert scrape.types[name] == "gauge"
    for name in COUNTERS:
        assert scrape.types[name] == "counter"
    assert scrape.types[HISTOGRAM] == "histogram"
    assert scrape.helped == scrape.types.keys()


def test_every_sample_belongs_to_a_declared_metric(api: Api, topic: str):
    api.put(topic)
    scrape = Scrape(api)
    for name, _ in scrape.samples:
        base = re.sub("_(bucket|sum|count)$", "", name)
        assert name in scrape.types or scrape.types.get(base) == "histogram", name


def test_gauges_follow_the_server_state(start_server, connect):
    api = connect(start_server())
    empty = Scrape(api)
    assert [
        empty[name] for name in ("topics_topics", "topics_records_live", "topics_bytes_live", "topics_routers")
    ] == [0] * 4
    assert (empty["topics_ready"], empty["topics_recovery_progress"], empty["topics_wal_read_only"]) == (1, 1, 0)

    api.put("a", durability="fsync")
    api.put("q", type="queue")
    api.put("e", durability="ephemeral")
    api.write("a", 1, 2, 3)
    api.delete("a", before_seq=2)
    scrape, state = Scrape(api), api.state("a")
    assert (scrape["topics_topics"], scrape["topics_queue_topics"]) == (3, 1)
    assert (scrape["topics_records_live"], scrape["topics_bytes_live"]) == (2, state["bytes"])
    classes = {label: value for (name, label), value in scrape.samples.items() if name == "topics_topics_by_class"}
    assert classes == {"ephemeral": 1, "memory": 0, "disk": 1, "fsync": 1, "replicated": 0}
    for name, field in (
        ("head_seq", "head_seq"), ("earliest_seq", "earliest_seq"), ("records_live", "count"), ("bytes_live", "bytes")
    ):  # fmt: skip
        assert scrape.samples[f"topics_topic_{name}", "a"] == state[field]
    assert scrape["topics_topic_metrics_truncated"] == 0

    api.drop("a")
    assert ("topics_topic_head_seq", "a") not in Scrape(api).samples


def test_scrape_does_not_count_as_a_read(api: Api, topic: str):
    api.put(topic)
    Scrape(api)
    assert api.state(topic)["last_read_ts"] is None


def named(scrape: Scrape) -> dict[str, float]:
    return {label: value for (name, label), value in scrape.samples.items() if name == "topics_topic_records_live"}


def test_topics_beyond_the_limit_are_summed(start_server, connect):
    api = connect(start_server(metrics_max_topics=2, metrics_topics="pay*"))
    for name in ("a", "b", "c", "payments"):
        api.write(name, *range(ord(name[0])))
    scrape = Scrape(api)
    assert named(scrape) == {"c": 99, "payments": 112, "(others)": 97 + 98}
    assert (scrape["topics_topics"], scrape["topics_records_live"]) == (4, 97 + 98 + 99 + 112)
    assert (scrape["topics_topic_metrics_truncated"], scrape["topics_topic_left_out"]) == (1, 2)
    api.write("a", 1)  # a topic that was named stays: one of less than an hour ago is no reason to break its series
    assert named(Scrape(api)) == {"c": 99, "payments": 112, "(others)": 98 + 98}
    api.drop("c")
    assert named(Scrape(api)) == {"a": 98, "payments": 112, "(others)": 98}


def test_losses_have_their_reason(start_server, connect, tmp_path):
    api = connect(start_server(data_dir=tmp_path / "data"))
    api.write("capped", 1, 2, 3, config={"cap_records": 1})
    scrape = Scrape(api)
    assert scrape.samples["topics_lost_records_total", "cap"] == 2
    assert scrape.samples["topics_topic_lost_records", "capped/cap"] == 2
    assert [scrape.samples["topics_lost_records_total", reason] for reason in ("corrupt", "restart", "failover")] == [
        0, 0, 0,
    ]  # fmt: skip


def test_dead_letters_are_marked(api: Api, topic: str):
    api.put(topic, type="queue", dead_letter=f"{topic}-dead")
    api.put(f"{topic}-dead", type="queue")
    samples = Scrape(api).samples
    assert ("topics_topic_dead_letters", f"{topic}-dead") in samples
    assert ("topics_topic_dead_letters", topic) not in samples


def test_process_is_measured_under_the_usual_names(start_server, connect, tmp_path):
    api = connect(start_server(data_dir=tmp_path / "data"))
    scrape = Scrape(api)
    assert 10e6 < scrape["process_resident_memory_bytes"] < 10e9
    assert scrape["process_cpu_seconds_total"] > 0
    assert 3 < scrape["process_open_fds"] < scrape["process_max_fds"]
    assert scrape["topics_disk_free_bytes"] > 0
    assert 0 <= scrape["topics_checkpoint_age_seconds"] < 3600
    assert scrape["topics_checkpoint_failures_total"] == 0
    assert scrape.samples["topics_log_errors_total", "loop_error"] == 0


def test_histogram_adds_up(api: Api):
    scrape = Scrape(api)
    buckets = [(label, value) for (name, label), value in scrape.samples.items() if name == f"{HISTOGRAM}_bucket"]
    bounds = [float(label.replace("+Inf", "inf")) for label, _ in buckets]
    counts = [value for _, value in buckets]
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == float("inf")
    assert 500.0 in bounds
    assert counts == sorted(counts)
    assert counts[-1] == scrape[f"{HISTOGRAM}_count"]
    assert scrape[f"{HISTOGRAM}_sum"] >= 0


def test_log_metrics_exist_with_a_data_directory(start_server, connect, tmp_path):
    api = connect(start_server(data_dir=tmp_path / "data"))
    before = Scrape(api)
    for n in range(5):
        api.write("a", n, config={"durability": "fsync"})
    after = Scrape(api)
    for name in ("frames_total", "batches_total", "fsyncs_total", "bytes_written_total"):
        assert after[f"topics_wal_{name}"] > before[f"topics_wal_{name}"], name
    assert after["topics_wal_frames_total"] - before["topics_wal_frames_total"] >= 5
    assert after[f"{HISTOGRAM}_count"] > before[f"{HISTOGRAM}_count"]


def test_scrape_succeeds_while_topics_are_created_and_deleted(start_server, connect, tmp_path):
    server = start_server(data_dir=tmp_path / "data")
    over = threading.Event()

    def come_and_go(number: int) -> None:
        api = connect(server)
        while not over.is_set():
            api.put(f"t{number}", durability="fsync")
            api.drop(f"t{number}")

    workers = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    api = connect(server)
    try:
        statuses = [api.call("GET", "/v0/metrics").status_code for _ in range(100)]
    finally:
        over.set()
        for worker in workers:
            worker.join(30)
    assert set(statuses) == {200}


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/plain;q=0.5"])
def test_json_metrics_have_the_same_values(api: Api, topic: str, accept: str):
    api.write(topic, 1, 2)
    answer = api.call("GET", "/v0/metrics", headers={"accept": accept})
    assert answer.headers["content-type"] == "application/json"
    body: dict[str, Any] = answer.json()
    assert {*GAUGES, *COUNTERS, HISTOGRAM, "performance"} <= body.keys()
    assert body["topics_ready"] == 1
    assert body["topics_topic_head_seq"][topic] == 2
    assert body["topics_topics_by_class"].keys() == {"ephemeral", "memory", "disk", "fsync", "replicated"}
    assert body[HISTOGRAM].keys() == {"buckets", "sum", "count"}
