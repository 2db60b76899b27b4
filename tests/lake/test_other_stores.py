"""A lake in the object stores of other makers, in emulators on this machine."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.lake.azure import CONTAINER, azure_store
from tests.lake.making import archive, archived_epoch_of, check_content, commit_first, erase, known, merge
from tests.lake.object_store import BUCKET, google_settings, object_store
from topics.lake import Conflict, Lake


@pytest.mark.torture
def test_lake_in_azure_is_archived_merged_erased_and_read_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with azure_store(tmp_path) as settings:
        play(f"az://{CONTAINER}/shop", settings, monkeypatch)


def test_lake_at_google_is_archived_merged_erased_and_read_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with object_store(tmp_path) as store:
        play(f"gs://{BUCKET}/shop", google_settings(store.url), monkeypatch)


def play(location: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a lake in every way, with conflicts, and read it again."""
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    lake = Lake(location)
    lake.create()
    for at in range(4):
        archive(lake, "a", 1 + 10 * at, 10 + 10 * at, lost=2)
    base = lake.table("a").state()
    with monkeypatch.context() as other_run:
        commit_first(other_run, lambda: archive(Lake(lake.path), "a", 41, 50))
        with pytest.raises(Conflict):
            archive(lake, "a", 41, 60)
    with pytest.raises(Conflict):
        archive(Lake(lake.path), "a", 41, 50, base=base)
    assert merge(lake, "a", min_files=2) == 5
    assert erase(lake, "t1", topics=["a"]) > 0
    lake.table("a").vacuum(retention_hours=0)
    left = [seq for seq in range(1, 51) if (seq > 40 or seq % 10 not in (1, 2)) and seq % 3 != 1]
    fresh = Lake(lake.path)
    assert known(fresh) == [("a", seq) for seq in left]
    assert [gap.first for gap in archived_epoch_of(fresh).gaps] == [1, 11, 21, 31]
    assert sorted(pl.read_delta(f"{lake.path}/a", storage_options=options)["seq"].to_list()) == left
    check_content(fresh, "a")
