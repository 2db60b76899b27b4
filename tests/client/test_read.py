"""The client's page by page read."""

from pathlib import Path

import pytest
from msgspec import Raw

from tests.conftest import StartServer
from topics.client import Client
from topics.client.request import Record

ODD = [b'"\\ud800x"', b'{"\\udc00":[1.50,"\\ud83d\\ude00"]}', b'"\\\\ud800"']


@pytest.mark.parametrize("healed", [False, True])
def test_half_a_surrogate_pair_is_read_as_it_was_written(start_server: StartServer, tmp_path: Path, healed: bool):
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
