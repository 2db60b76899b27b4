"""Buckets: a directory and the APIs of S3, Google and Azure behave the same, and failures name the next step."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lake.azure import CONTAINER, azure_store
from tests.lake.object_store import BUCKET, google_settings, object_store
from tests.lake.object_store import settings as s3_settings
from topics.setting_kinds import parse_bucket_url
from topics.storage.replica.bucket import Bucket, BucketError, open_bucket


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An S3 API on this machine, with one bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/bucket")
    assert connection.getresponse().status == 200
    connection.close()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def gs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with object_store(tmp_path_factory.mktemp("google")) as store:
        yield google_settings(store.url)


@pytest.fixture(scope="module")
def az(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with azure_store(tmp_path_factory.mktemp("azure")) as settings:
        yield settings


@pytest.fixture(params=["file", "s3", "gs", pytest.param("az", marks=pytest.mark.torture)])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    urls = {
        "file": f"file://{tmp_path}/replica",
        "s3": "s3://bucket",
        "gs": f"gs://{BUCKET}",
        "az": f"az://{CONTAINER}",
    }
    if request.param == "s3":
        use_s3(request.getfixturevalue("s3"), monkeypatch)
    elif request.param != "file":
        for name, value in request.getfixturevalue(request.param).items():
            monkeypatch.setenv(name, value)
    return open_bucket(f"{urls[request.param]}/{tmp_path.name}")


def use_s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_settings(endpoint).items():
        monkeypatch.setenv(name, value)


def test_object_is_created_once(bucket: Bucket):
    assert bucket.create("log/1", b"first")
    assert not bucket.create("log/1", b"second")
    assert bucket.get("log/1") == b"first"


def test_objects_are_replaced_listed_and_removed(bucket: Bucket):
    bucket.put("latest", b"1")
    bucket.put("latest", b"23")
    for number in (1, 2, 3):
        bucket.create(f"log/{number:020d}", bytes(number))
    bucket.put("files/big", bytes(12 << 20))

    assert bucket.get("latest") == b"23"
    assert bucket.get("nothing") is None
    assert sorted((one.name, one.size_bytes) for one in bucket.ls("log/", f"log/{1:020d}")) == [
        (f"log/{2:020d}", 2), (f"log/{3:020d}", 3),
    ]  # fmt: skip
    assert [one.size_bytes for one in bucket.ls("files/")] == [12 << 20]
    assert len(list(bucket.ls(""))) == 5
    bucket.delete([f"log/{1:020d}", f"log/{2:020d}"])
    bucket.delete(["log/missing"])
    assert [one.name for one in bucket.ls("log/")] == [f"log/{3:020d}"]


def test_missing_bucket_names_the_next_step(s3: str, monkeypatch: pytest.MonkeyPatch):
    use_s3(s3, monkeypatch)
    with pytest.raises(BucketError, match="; create the bucket, or correct TOPICS_REPLICA"):
        open_bucket("s3://missing/x").create("log/1", b"")


def test_unreachable_bucket_names_the_next_step_without_a_secret(monkeypatch: pytest.MonkeyPatch):
    use_s3("http://127.0.0.1:9", monkeypatch)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    with pytest.raises(BucketError, match="; check that the bucket can be reached from here") as failed:
        open_bucket("s3://bucket/x", timeout_ms=300).get("log/1")
    assert "hunter2" not in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("status", "code", "step"),
    [
        (403, "AccessDenied", "give this server the right to list, read, write and delete objects there"),
        (403, "SignatureDoesNotMatch", "correct the secret key in the environment"),
        (403, "RequestTimeTooSkewed", "set the clock of this machine"),
        (400, "AuthorizationHeaderMalformed", "set AWS_REGION to the region of the bucket"),
        (501, "NotImplemented", "use a bucket with conditional writes (If-None-Match)"),
    ],
)
def test_refusal_names_its_code_and_the_next_step(status: int, code: str, step: str, monkeypatch: pytest.MonkeyPatch):
    text = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>the region of KEY is x</Message></Error>'

    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        use_s3(f"http://127.0.0.1:{server.server_port}", monkeypatch)
        with pytest.raises(BucketError) as failed:
            open_bucket("s3://bucket/x").create("log/1", b"1")
        server.shutdown()
    assert str(failed.value).endswith(f"{code}; {step}")
    assert "KEY" not in str(failed.value)


def test_directory_without_permission_names_the_next_step():
    with pytest.raises(BucketError, match=r"; "):
        open_bucket("file:///proc/replica").create("log/1", b"")


@pytest.mark.parametrize(
    "url",
    ["ftp://a/b", "/var/replica", "s3://", "file://host/dir", "file:///", "s3://key:secret@bucket/x", "s3://b?x=1"],
)
def test_invalid_url_is_refused(url: str):
    with pytest.raises(ValueError, match=r".") as refused:
        parse_bucket_url(url)
    assert "secret" not in str(refused.value)
