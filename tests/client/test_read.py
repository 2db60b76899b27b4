"""The client's page by page read."""

import pytest
from msgspec import Raw

from tests.conftest import StartServer
from topics.client import Client
from topics.client.request import Record

ODD = [b'"\\ud800x"', b'{"\\udc00":[1.50,"\\ud83d\\ude00"]}', b'"\\\\ud800"']


def test_half_surrogate_pair_is_read_as_written(start_server: StartServer):
    """JavaScript writes one for a string that was cut in the middle of an emoji."""
    records = [Raw(b'{"data":%b,"tag":"t","meta":{"k":%b}}' % (text, text)) for text in ODD]
    with Client(start_server().url) as client:
        client.append("odd", records)
        found = [item for item in client.read("odd", include_tags=True) if isinstance(item, Record)]
    assert [bytes(record.data) for record in found] == ODD
    assert [bytes(record.meta) for record in found] == [b'{"k":%b}' % text for text in ODD]
    assert [record.value for record in found] == ["\ud800x", {"\udc00": [1.5, "\U0001f600"]}, "\\ud800"]
    assert {record.tag for record in found} == {"t"}


def test_unknown_field_is_an_error():
    client = Client("http://127.0.0.1:9")  # nothing is asked
    for call in (
        lambda: next(client.read("t", upto=3)),
        lambda: client.diff("t", upto_seq=3),
        lambda: next(client.scan("t", limit=3)),
        lambda: client.put_topic("t", cap_record=3),
        lambda: client.append("t", [], config={"cap_record": 3}),
        lambda: client.append("t", [], idempotency="k"),
        lambda: client.delete("t", before=3),
    ):
        with pytest.raises(TypeError):
            call()
