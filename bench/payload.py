"""The records and request bodies of all rows, so that all contenders send the same bytes."""

from __future__ import annotations

from collections.abc import Iterator

DATA = b'{"sku":"AEROPRESS-GO","qty":1,"total":3499}'
TAG = b"order-7731"
DROP_TAG = b"drop-me"
PAYLOAD_BYTES = len(DATA) + len(TAG)


def record(tag: bytes = TAG) -> bytes:
    return b'{"data":%b,"tag":"%b"}' % (DATA, tag)


def batch(count: int) -> bytes:
    return b'{"records":[%b]}' % b",".join([record()] * count)


def post(path: str, body: bytes) -> bytes:
    """Return one complete request as bytes."""
    return _request("POST", path, body)


def put(path: str, body: bytes) -> bytes:
    return _request("PUT", path, body)


def _request(method: str, path: str, body: bytes) -> bytes:
    head = "%s %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return (head % (method, path, len(body))).encode() + body


def appends(topic: str, total: int, *, per_request: int, keys: int = 0) -> Iterator[bytes]:
    """Yield requests that append exactly `total` equal records; with `keys`, these have so many keys in turn."""
    path = f"/v0/topics/{topic}?return_seqs=false"
    if keys:
        for start in range(0, total, per_request):
            numbers = range(start, min(start + per_request, total))
            rows = [b'{"data":%b,"tag":"%b","key":"k-%d"}' % (DATA, TAG, number % keys) for number in numbers]
            yield post(path, b'{"records":[%b]}' % b",".join(rows))
        return
    full = post(path, batch(per_request))
    for _ in range(total // per_request):
        yield full
    if total % per_request:
        yield post(path, batch(total % per_request))


def tagged_appends(topic: str, total: int, *, per_request: int, distinct: bool) -> Iterator[bytes]:
    """Yield requests whose records have distinct tags (`distinct`), or DROP_TAG on 1 % and TAG on the rest."""
    path = f"/v0/topics/{topic}?return_seqs=false"
    for start in range(0, total, per_request):
        numbers = range(start, min(start + per_request, total))
        if distinct:
            rows = [record(b"o-%08d" % number) for number in numbers]
        else:
            rows = [record(DROP_TAG if number % 100 == 0 else TAG) for number in numbers]
        yield post(path, b'{"records":[%b]}' % b",".join(rows))
