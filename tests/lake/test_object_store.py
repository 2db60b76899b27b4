"""A lake in an object store, also in one that fails, is slow, or loses its answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import polars as pl
import pytest

from tests.lake.making import EPOCH, archive, archived_epoch_of, check_content, erase, known, merge, seen_by_others
from tests.lake.object_store import BUCKET, Store, object_store, settings
from tests.lake.test_killing import ALL, run
from topics.lake import Conflict, Lake, LakeError, NoLake
from topics.lake.storage import set_options


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with object_store(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def store(proxy: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name, value in settings(proxy.url).items():
        monkeypatch.setenv(name, value)
    yield proxy
    proxy.set()


@pytest.fixture
def lake(store: Store, request: pytest.FixtureRequest) -> Lake:
    made = Lake(f"s3://{BUCKET}/{request.node.name.partition('[')[0]}-{abs(hash(request.node.name))}")
    made.create()
    return made


def test_lake_in_an_object_store_is_archived_merged_and_erased(lake: Lake):
    for at in range(4):
        archive(lake, "a:b", 1 + 10 * at, 10 + 10 * at, lost=2)
    assert merge(lake, "a:b", min_files=2) == 4
    assert erase(lake, "t1", topics=["a:b"]) == 11
    left = [seq for seq in range(1, 41) if seq % 10 not in (1, 2) and seq % 3 != 1]
    fresh = Lake(lake.path)
    assert known(fresh) == [("a:b", seq) for seq in left]
    assert seen_by_others(lake, "a:b") == left
    assert len(fresh.table("a:b").files()) == 1
    assert [gap.first for gap in archived_epoch_of(fresh, "a:b").gaps] == [1, 11, 21, 31]
    check_content(fresh, "a:b")


def test_polars_reads_the_table_by_its_url(lake: Lake, store: Store):
    archive(lake, "a", 1, 10)
    table = pl.read_delta(f"{lake.path}/a", storage_options=settings(store.url))
    assert sorted(table["seq"].to_list()) == list(range(1, 11))


def test_unreachable_store_is_named_with_the_cause_and_without_urls(monkeypatch: pytest.MonkeyPatch):
    for name, value in settings("http://127.0.0.1:1").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_RETRIES", "0")
    with pytest.raises(LakeError) as caught:
        Lake("s3://nowhere/lake").create()
    message = str(caught.value)
    assert message.startswith("s3://nowhere/lake: Generic S3 error: ")
    assert "Connection refused (os error 111); check the URL, and the settings and keys of the store" in message
    assert "127.0.0.1" not in message
    assert "\x1b" not in message


def test_settings_may_be_given_without_the_environment(store: Store, monkeypatch: pytest.MonkeyPatch):
    given = settings(store.url)
    for name in given:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TOPICS_LAKE_SECRETS", "{}")
    set_options(given)
    lake = Lake(f"s3://{BUCKET}/given")
    lake.create()
    archive(lake, "a", 1, 10)
    assert len(known(Lake(lake.path))) == 10


def test_missing_lake_and_foreign_prefix_are_refused(lake: Lake):
    with pytest.raises(NoLake, match="is not a lake"):
        Lake(f"{lake.path}/nothing").snapshot()
    lake.storage.write("other/notes.txt", b"mine")
    with pytest.raises(NoLake, match="it contains notes"):
        Lake(f"{lake.path}/other").create()


@pytest.mark.parametrize("status", [pytest.param(500, marks=pytest.mark.torture), 503])
def test_errors_of_the_store_are_retried(lake: Lake, store: Store, status: int):
    before = store.set(status=status, share=0.2)["refused"]
    for at in range(3):
        archive(lake, "a", 1 + 10 * at, 10 + 10 * at, lost=1)
    assert store.set()["refused"] > before
    assert [seq for _, seq in known(lake)] == [seq for seq in range(1, 31) if seq % 10 != 1]


def test_slow_store_is_waited_for(lake: Lake, store: Store):
    store.set(delay_s=0.02)
    archive(lake, "a", 1, 10)
    store.set()
    assert len(known(lake)) == 10


def test_commit_whose_answer_is_lost_is_recognised(lake: Lake, store: Store):
    """The store has the commit, the client does not know it, and its retry finds the version taken: by itself."""
    archive(lake, "a", 1, 10)
    before = len(store.set(lose_commits=True)["lost"])
    archive(lake, "a", 11, 20, lost=2)
    archive(lake, "a", 21, 25, lost=5)  # without a file
    assert len(store.set()["lost"]) - before >= 2
    found = archived_epoch_of(Lake(lake.path))
    assert (found.archived_to, len(found.gaps), len(found.files)) == (25, 2, 2)
    assert len(known(lake)) == 10 + 8


def test_lost_answer_of_one_archive_does_not_hide_another(lake: Lake, store: Store):
    base = archive(lake, "a", 1, 10)
    other = Lake(lake.path)
    archive(other, "a", 11, 20, base=base)
    with pytest.raises(Conflict):
        archive(lake, "a", 11, 15, base=base)
    assert len(known(lake)) == 20


@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.torture)])
def test_two_archives_at_once_never_double_or_lose(lake: Lake, rounds: int):
    archive(lake, "a", 1, 5)
    clashes: list[Conflict] = []

    def work() -> None:
        mine = Lake(lake.path)
        for _ in range(rounds):
            base = mine.table("a").state()
            at = base.epoch(EPOCH).archived_to
            try:
                archive(mine, "a", at + 1, at + 5, base=base)
            except Conflict as clash:
                clashes.append(clash)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [seq for _, seq in known(lake)] == list(range(1, 5 * (1 + 2 * rounds - len(clashes)) + 1))


def test_wrong_key_is_an_error_with_the_url(store: Store, monkeypatch: pytest.MonkeyPatch):
    store.set(status=403)
    with pytest.raises(LakeError, match=f"s3://{BUCKET}/denied: .*privileges.*; check the URL"):
        Lake(f"s3://{BUCKET}/denied").create()


@pytest.mark.parametrize("kind", ["lake", pytest.param("table", marks=pytest.mark.torture)])
@pytest.mark.parametrize(("most", "about"), [(1, 100), pytest.param(ALL, 500, marks=pytest.mark.torture)])
def test_writer_killed_at_a_request_leaves_the_state_before_or_after(store: Store, most: int, about: int, kind: str):
    """One kill among the first 100 requests, which archive records; or kills at requests up to the last erase."""
    points = run(f"s3://{BUCKET}/killed{most}", most, about=about, kind=kind, **settings(store.url))
    assert most < ALL or points > 150
