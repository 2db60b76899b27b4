"""A simulated bucket: objects in memory that fail, lose answers, and run other work between two requests.

    bucket = SimBucket()
    bucket.fail(at=3, times=2)              # the requests 3 and 4 fail, and do nothing
    bucket.lose(at=5)                       # request 5 does what it should; its answer is lost
    bucket.crash_at(7)                      # the process dies before request 7, or with `after` right after it

A bucket that stands still is a worker that does not run its jobs (`DeferredWorker`). `before` is called before each
request: another server may act then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.simulated.disk import FOREVER, Crashed
from topics.storage.replica.bucket import BucketError, Listed


class SimBucket:
    """Objects by name. `requests` lists all requests: operation and name."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.objects: dict[str, bytes] = {}
        self.times: dict[str, int] = {}
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda op, name: None
        self.now_ms = now_ms
        self.is_sorted = True
        self._faults: list[tuple[range, str]] = []
        self._crash: tuple[int, bool] | None = None

    # --- faults

    def fail(self, at: int = 0, times: int = FOREVER) -> None:
        self._faults.append((range(at, at + times), "fail"))

    def lose(self, at: int, times: int = 1) -> None:
        self._faults.append((range(at, at + times), "lose"))

    def crash_at(self, number: int, *, after: bool = False) -> None:
        self._crash = number, after

    def heal(self) -> None:
        self._faults.clear()
        self._crash = None

    def copy(self) -> SimBucket:
        """Return a bucket with the same objects and no faults, as another process finds it."""
        other = SimBucket(self.now_ms)
        other.objects, other.times = dict(self.objects), dict(self.times)
        return other

    def _request(self, op: str, name: str, act: Callable[[], object]) -> object:
        number = len(self.requests)
        self.requests.append((op, name))
        self.before(op, name)
        kinds = {kind for numbers, kind in self._faults if number in numbers}
        if self._crash == (number, False):
            raise Crashed
        if "fail" in kinds:
            raise BucketError(f"request {number} failed; try again")
        found = act()
        if self._crash == (number, True):
            raise Crashed
        if "lose" in kinds:
            raise BucketError(f"the answer of request {number} was lost; try again")
        return found

    # --- the interface of a bucket

    def create(self, name: str, data: bytes) -> bool:
        def act() -> bool:
            if name in self.objects:
                return False
            self._store(name, data)
            return True

        return bool(self._request("create", name, act))

    def put(self, name: str, data: bytes) -> None:
        self._request("put", name, lambda: self._store(name, data))

    def get(self, name: str) -> bytes | None:
        found = self._request("get", name, lambda: self.objects.get(name))
        assert found is None or isinstance(found, bytes)
        return found

    def ls(self, prefix: str, after: str = "") -> Iterator[Listed]:
        self._request("list", prefix, lambda: None)
        for name in sorted(self.objects):
            if name.startswith(prefix) and name > after:
                yield Listed(name, len(self.objects[name]), self.times[name])

    def delete(self, names: list[str]) -> None:
        def act() -> None:
            for name in names:
                self.objects.pop(name, None)

        self._request("delete", "", act)

    def _store(self, name: str, data: bytes) -> None:
        self.objects[name] = data
        self.times[name] = self.now_ms()
