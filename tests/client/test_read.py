"""The client's page by page read."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.conftest import StartServer
from topics.client import Client
from topics.client.request import Record, Tombstone

ODD = [b'"\\ud800x"', b'{"\\udc00":[1.50,"\\ud83d\\ude00"]}', b'"\\\\ud800"']


@pytest.mark.parametrize("healed", [False, True])
def test_half_surrogate_pair_is_read_as_written(start_server: StartServer, tmp_path: Path, healed: bool):
    """JavaScript writes one for a string that was cut in the middle of an emoji."""
    records = [Raw(b'{"data":%b,"tag":"t","meta":{"k":%b}}' % (text, text)) for text in ODD]
    with Client(start_server().url) as client:
        client.append("odd", records)
        lake = None
        if healed:
            pytest.importorskip("pyarrow")
            from tests.spark.lakes import archive

            archive(client, tmp_path / "lake", "odd", upto=1, trim=True)
            lake = tmp_path / "lake"
        found = [item for item in client.read("odd", include_tags=True, lake=lake) if isinstance(item, Record)]
    assert [bytes(record.data) for record in found] == ODD
    assert [bytes(record.meta) for record in found] == [b'{"k":%b}' % text for text in ODD]
    assert [record.value for record in found] == ["\ud800x", {"\udc00": [1.5, "\U0001f600"]}, "\\ud800"]
    assert {record.tag for record in found} == {"t"}


@pytest.mark.parametrize("healed", [False, True])
def test_read_ends_at_upto_seq(start_server: StartServer, tmp_path: Path, healed: bool):
    with Client(start_server().url) as client:
        client.append("t", [{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(1, 41)])
        options: dict[str, Any] = {"limit": 7}
        if healed:
            pytest.importorskip("pyarrow")
            from tests.spark.lakes import archive

            archive(client, tmp_path / "lake", "t", upto=20, trim=True)
            options["lake"] = tmp_path / "lake"
        for from_seq, last in ((0, 10), (0, 25), (15, 33), (9, 9), (9, 3), (38, 99), (0, 0)):
            found = client.read("t", from_seq=from_seq, upto_seq=last, **options)
            expected = range(from_seq + 1, min(last, 40) + 1)
            assert [item.seq for item in found if isinstance(item, Record)] == list(expected)
        odd = client.read("t", upto_seq=24, filter="odd", **options)
        assert [item.seq for item in odd if isinstance(item, Record)] == list(range(1, 25, 2))

        client.put_topic("t", cap_records=5)
        gap = Tombstone(21, 30, "cap", 10, earliest_seq=36, head_seq=40, epoch=client.topic("t").epoch)
        assert list(client.read("t", from_seq=20, upto_seq=30, **options)) == [gap]  # it ends at 35


def test_unknown_field_is_an_error():
    client = Client("http://127.0.0.1:9")  # nothing is asked
    for call in (
        lambda: client.read("t", upto=3),
        lambda: client.read("t", lake="/x", from_time=3),
        lambda: client.diff("t", upto_seq=3),
        lambda: next(client.scan("t", limit=3)),
        lambda: client.put_topic("t", cap_record=3),
        lambda: client.append("t", [], config={"cap_record": 3}),
        lambda: client.append("t", [], idempotency="k"),
        lambda: client.delete("t", before=3),
    ):
        with pytest.raises(TypeError):
            call()
