"""The sync client: generated from the async one, so these tests cover what threads add."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tools import unasync
from topics.client import Job, Topics, _sync
from topics.client.errors import TopicsError


def test_sync_client_is_up_to_date(tmp_path: Path) -> None:
    unasync.generate(tmp_path)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py")}
    used = Path(_sync.__file__).parent
    assert made == {path: (used / path).read_text() for path in made}, "run `make install`"
    found = {path.relative_to(used) for path in used.rglob("*.py")}
    assert found - made.keys() == {Path("__init__.py"), Path("tools.py")}


def test_import_loads_neither_server_nor_numpy() -> None:
    unwanted = ("numpy", "uvloop", "httptools", "xxhash", "topics.server", "topics.engine")
    program = f"import topics.client._sync.client, sys; print([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_threads_write_and_work(server: ServerProcess, name: str) -> None:
    with Topics(server.url) as topics:
        topics.put_topic(name, type="queue")
        with topics.writer(name, max_records=50) as writer:
            futures = [writer.append(n) for n in range(300)]
        assert [future.result(10) for future in futures] == list(range(1, 301))
        done: list[int] = []

        @topics.worker(name, concurrency=4)
        def work(job: Job) -> None:
            done.append(job.data)
            if len(done) == 300:
                topics.stop()

        topics.run()
        assert sorted(done) == list(range(300))
        assert topics.topic(name).count == 0


def test_topic_that_an_append_has_created_is_logged_once(
    server: ServerProcess, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Topics(server.url) as topics, caplog.at_level("INFO", logger="topics.client"):
        for n in range(3):
            topics.append(name, n)
    assert [record.getMessage() for record in caplog.records if record.name == "topics.client"] == [
        f"the topic {name} did not exist; this append has created it"
    ]


def test_flush_raises_in_threads_what_could_not_be_written(server: ServerProcess, name: str) -> None:
    with Topics(server.url) as topics:
        topics.put_topic(name, cap_bytes=2000)
        writer = topics.writer(name)
        writer.append("x" * 5000)
        with pytest.raises(TopicsError):
            writer.flush()
        writer.append("x" * 5000)
        with pytest.raises(TopicsError):
            writer.close()


def test_follow_works_in_threads(server: ServerProcess, name: str) -> None:
    with Topics(server.url) as topics:
        topics.append(name, "hello")
        assert next(iter(topics.follow(name))).data == "hello"  # type: ignore[union-attr]


def test_server_fixture_is_a_real_server(pytester: pytest.Pytester, tmp_path: Path) -> None:
    pytester.makepyfile(
        """
        from topics.client import Topics

        def test_orders(topics_server):
            with Topics(topics_server) as topics:
                assert topics.append("orders", 1).seq == 1
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
