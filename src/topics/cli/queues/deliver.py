"""`topics deliver`: send the jobs of a queue to an address, signed by the convention of Standard Webhooks."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from topics.cli.command import Args, Call, Command
from topics.cli.connect import post
from topics.cli.options import QUEUE, option
from topics.cli.output.failures import Failure, usage
from topics.cli.output.units import duration
from topics.cli.queues.work import queue_state
from topics.client.call import Request, topic_path
from topics.installation import install_command
from topics.plurals import counted
from topics.webhooks import signed_headers, standard_key

if TYPE_CHECKING:
    import httpx

    from topics.client import AsyncTopics
    from topics.client._async.queues import AsyncJob

LAST_BYTES = 1024  # of an answer, for the reason of a failed delivery
MAX_PAUSE_S = 3600  # that a receiver can ask for
NAT64 = ipaddress.ip_network("64:ff9b::/96")
NEW_SECRET = 'make one: echo "whsec_$(openssl rand -base64 32)" > FILE; the receiver needs it, too'


def _claim(args: Args) -> Request:
    body = {"node": "deliver", "max": args.concurrency, "lease_ms": args.timeout, "wait_ms": 2000}
    return post(topic_path(args.queue, "claim"), body, safe=False, wait_ms=2000)


@Command(
    "deliver",
    "",
    (
        QUEUE,
        option("--to URL", "where each job is sent, by POST", required=True),
        option("--secret-file FILE", "file with the secret that signs: whsec_ and base64; one per line", required=True),
        option("-j --concurrency N", "requests at the same time [4]", default=4),
        option("--rate N", "most requests in a second [no limit]"),
        option("--timeout DURATION", "most time of a request [15s]", default=15_000),
        option("--raw", "send the data alone, without type and timestamp around it"),
        option("--allow-private", "also send to addresses of private networks and of this machine"),
    ),
    request=_claim,
    details="Standard Webhooks says how a receiver checks the signature. A repeated delivery has the id of the first "
    "one. Any status but 2xx is a failure, also a redirect: the job goes back, and comes again as the retry policy of "
    "the queue says (or when the Retry-After of the answer says), until max_deliveries moves it to the dead letters "
    "with the answer as the reason. Jobs with a key are sent in order, one at a time.",
    examples="""\
  topics deliver orders --to https://shop.example/hooks --secret-file hook.secret
  topics deliver orders --to http://localhost:8000/hooks --secret-file hook.secret --allow-private
""",
)
def deliver(call: Call) -> int:
    try:
        import httpx

        from topics.client import AsyncTopics
    except ImportError as error:
        raise Failure(f"topics deliver needs more packages: {error}", next_step=install_command("client")) from None
    _check_address(call.args.to)
    keys = read_secrets(call.args.secret_file)
    if not queue_state(call)["config"]["max_deliveries"]:
        queue = call.args.queue
        call.screen.warn(f"{queue} has no max_deliveries: a job that is always refused is sent again without end")
    target = call.server.target
    topics = AsyncTopics(target.url, token=target.token)

    async def run() -> Deliveries:
        async with topics, httpx.AsyncClient(timeout=None, trust_env=False) as http:
            found = Deliveries(call, http, keys)
            try:
                await found.resolve()
            except (Refused, OSError) as error:  # before a job is claimed: each would spend a delivery
                raise usage(f"{call.args.to} cannot be used: {error}; no job was claimed") from None
            await found.run(topics)
            return found

    done = asyncio.run(run())
    summary = {"topic": call.args.queue, "delivered": done.delivered, "failed": done.failed}
    call.screen.result(summary, f"delivered {counted(done.delivered, 'job')}, {done.failed:,} failed attempts")
    return 0


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    try:
        is_address = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        is_address = False
    if not is_address or parts.username or parts.password:
        raise usage(f"--to {url} is not an address", "use https://host/path, without a user and a password")


def read_secrets(path: str) -> list[bytes]:
    """Return the secrets of a file, which is never quoted. Raise `Failure` if there is none."""
    try:
        lines = Path(path).expanduser().read_text(encoding="ascii").split()
        keys = [standard_key(line) for line in lines]
    except OSError as error:
        raise usage(f"the secret file {path} cannot be read: {error.strerror}", NEW_SECRET) from None
    except ValueError:
        raise usage(f"the secret file {path} has a line that is not whsec_ and base64", NEW_SECRET) from None
    if not keys:
        raise usage(f"the secret file {path} is empty", NEW_SECRET)
    return keys


class Refused(Exception):
    """A delivery that failed: the reason, and how long the receiver asks to wait."""

    def __init__(self, reason: str, pause_s: int | None = None) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


class Deliveries:
    """Sends jobs until a signal ends it, which lets open requests finish."""

    def __init__(self, call: Call, http: httpx.AsyncClient, keys: list[bytes]) -> None:
        self.delivered = self.failed = 0
        self._call, self._args, self._http, self._keys = call, call.args, http, keys
        self._next_s = 0.0  # when the rate allows the next request

    async def run(self, topics: AsyncTopics) -> None:
        args = self._args
        lease_ms = max(args.timeout + 5000, 30_000)
        topics.worker(args.queue, concurrency=args.concurrency, lease_ms=lease_ms)(self._deliver)
        await topics.run(handle_signals=True)

    async def _deliver(self, job: AsyncJob) -> None:
        """Send a job. One that is refused goes back with the reason; an ack follows if this returns."""
        began = time.monotonic()
        try:
            await self._turn()
            async with asyncio.timeout(self._args.timeout / 1000):
                await self._send(job)
        except Refused as error:
            await self._give_back(job, str(error), error.pause_s)
        except TimeoutError:
            await self._give_back(job, f"no answer within {duration(self._args.timeout)}")
        except Exception as error:  # httpx has a class for each step of a request
            await self._give_back(job, f"{type(error).__name__}: {error}")
        else:
            self.delivered += 1
            self._call.screen.note(f"job {job.seq}: delivered in {duration((time.monotonic() - began) * 1000)}")

    async def _give_back(self, job: AsyncJob, reason: str, pause_s: int | None = None) -> None:
        self.failed += 1
        self._call.screen.note(f"job {job.seq}: {reason.splitlines()[0]} (delivery {job.deliveries})", "yellow")
        delay_ms = None if pause_s is None else pause_s * 1000
        await job.nack(delay_ms, retry=delay_ms is None, reason=reason)

    async def _turn(self) -> None:
        """Wait until the rate allows a request."""
        if self._args.rate:
            now = time.monotonic()
            self._next_s = max(self._next_s + 1 / self._args.rate, now)
            await asyncio.sleep(self._next_s - now)

    async def _send(self, job: AsyncJob) -> None:
        url, host, address = await self.resolve()
        body = bytes(job.json) if self._args.raw else _event(job)
        id = f"{job.topic}:{job.seq}:{job.ts}".replace(".", "_")
        headers = {
            "host": host, "content-type": "application/json", "user-agent": "topics",
            **signed_headers(id, int(time.time()), body, self._keys),
        }  # fmt: skip
        more = {"sni_hostname": urlsplit(self._args.to).hostname}
        async with self._http.stream("POST", url, content=body, headers=headers, extensions=more) as answer:
            if answer.is_success:
                return
            raise Refused(await _reason(answer, address), _pause_s(answer))

    async def resolve(self) -> tuple[str, str, str]:
        """Return the URL with the address of its host in place of the name, the field `host`, and the address.

        The request goes to the address that was checked: a name could have another one the next moment.
        """
        parts = urlsplit(self._args.to)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(row[4][0]) for row in found))
        allowed = [one for one in addresses if self._args.allow_private or is_public(one)]
        if not allowed:
            raise Refused(f"{host} is in a private network ({addresses[0]}); --allow-private sends there, too")
        address = allowed[0]
        place = f"[{address}]" if ":" in address else address
        return parts._replace(netloc=f"{place}:{port}").geturl(), parts.netloc, address


def is_public(address: str) -> bool:
    """Return whether an address is one of the internet: not of this machine, a private network, or a provider's."""
    one = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(one, ipaddress.IPv6Address):
        inner = one.ipv4_mapped or one.sixtofour or (ipaddress.ip_address(one.packed[-4:]) if one in NAT64 else None)
        if inner is not None:
            return is_public(str(inner))
    return one.is_global and not one.is_multicast


def _event(job: AsyncJob) -> bytes:
    """Return the body of a delivery: what happened, when, and the data as it was written."""
    import msgspec

    sent = datetime.fromtimestamp(job.ts / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    head: dict[str, Any] = {"type": job.tag or job.topic, "timestamp": sent}
    return msgspec.json.encode({**head, "data": job.json})


async def _reason(answer: httpx.Response, address: str) -> str:
    what = f"HTTP {answer.status_code} {answer.reason_phrase} from {address}".replace("  ", " ")
    if answer.is_redirect:
        what += ": redirects are not followed"
    text = b""
    async for chunk in answer.aiter_bytes(LAST_BYTES):
        text += chunk
        if len(text) >= LAST_BYTES:
            break
    return f"{what}\n{text[:LAST_BYTES].decode(errors='replace').strip()}".strip()


def _pause_s(answer: httpx.Response) -> int | None:
    """Return the seconds of `Retry-After`, if it has some."""
    given = answer.headers.get("retry-after", "")
    return min(int(given), MAX_PAUSE_S) if given.isascii() and given.isdigit() and len(given) < 10 else None


register = deliver.register
