"""Which server a command talks to, and with which key; and the contexts, which are named servers.

The address is the first of: `--url`, `--context`, `TOPICS_URL`, `TOPICS_CONTEXT`, the current context, the default. The
key is the first of: `--token`, `--token-file`, the key file of the context if the context gave the address,
`TOPICS_TOKEN_FILE`. The key of a context is never sent to an address that came from elsewhere.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from topics.cli.options import one_of, option
from topics.cli.output.failures import EXIT_NOT_FOUND, EXIT_UNREACHABLE, Failure, failure_of, usage
from topics.cli.output.screen import json_text
from topics.client.call import EVENT_STREAM, JSON, LOCAL_HOSTS, PAGE_ROWS, Addresses, Request, with_query, with_schemes
from topics.client.connection import Connection, Retries
from topics.client.contexts import DEFAULT_PORT, DEFAULT_URL, Context, Contexts, Prefixes, load_contexts
from topics.client.errors import BadContext, BadUrl, InvalidRequest, TopicsError, Unreachable
from topics.client.streams import Event, EventParser


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server, and where its key comes from. `token` is not shown by `repr`."""

    url: str
    source: str  # what gave the address, for messages
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    is_key_of_context: bool = False  # the key must then be sent to `url` only


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    add_address(group)
    one_of(
        option("--token-file FILE", "file with the API key [TOPICS_TOKEN_FILE]"),
        option("--token KEY", "API key; other users of this machine can see it"),
    )(group)


def add_address(
    group: argparse._ActionsContainer, meaning: str = "address of the server, and of its standbys after commas"
) -> None:
    order = f"the first of --context, TOPICS_URL, TOPICS_CONTEXT, the current context, {DEFAULT_URL}"
    option("--url URL", f"{meaning} [{order}]")(group)
    option("-c --context NAME", "use this context [TOPICS_CONTEXT]", completes="contexts")(group)


def resolve(args: argparse.Namespace, env: Mapping[str, str], request: Callable[[], Request] | None = None) -> Target:
    """Return the server that the options, the environment and the contexts choose. Raise `Failure`.

    The names in `request` choose one of the servers of a context with routes.
    """
    target = choose(args, env, request)
    token, path = args.token, target.token_file
    if path is not None:
        try:
            token = Path(path).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise usage(f"the key file {path} cannot be read: {reason}") from None
    if token is not None and not (token.isascii() and token.isprintable() and token and " " not in token):
        source = "--token" if path is None else f"the key file {path}"
        raise usage(f"{source} does not hold one API key", "a key is one line of printable ASCII without spaces")
    return replace(target, url=normal(target.url), token=token)


def choose(args: argparse.Namespace, env: Mapping[str, str], request: Callable[[], Request] | None = None) -> Target:
    """Return the address as it was given, and the file of the key. Nothing is read or checked. Raise `Failure`."""
    context, url, source = None, DEFAULT_URL, "the default"
    if args.url:
        url, source = args.url, "--url"
    elif args.context or not env.get("TOPICS_URL"):
        known = read_contexts(env)
        name = args.context or env.get("TOPICS_CONTEXT") or known.current
        if name is not None:
            context = find(known, name)
            url, source = context.url, f"--context {name}" if args.context else f"context {name}"
            if context.routes:
                url = _routed(name, context, request)
            if not args.context and env.get("TOPICS_CONTEXT"):
                source = f"TOPICS_CONTEXT={name}"
    else:
        url, source = env["TOPICS_URL"], "TOPICS_URL"
    if args.token_file is not None or args.token is not None:
        return Target(url=url, source=source, token_file=args.token_file)
    if context is not None and context.token_file is not None:
        return Target(url=url, source=source, token_file=context.token_file, is_key_of_context=True)
    return Target(url=url, source=source, token_file=env.get("TOPICS_TOKEN_FILE") or None)


def _routed(name: str, context: Context, request: Callable[[], Request] | None) -> str:
    step = "name one server with --url, or with --context"
    if request is None:
        raise usage(f"context {name} has several servers, and this command uses one", step)
    try:
        asked = request()
        return Prefixes(context.by_prefix).of_request(asked.path, asked.body)
    except InvalidRequest as error:
        reason = error.message.partition(": ask it with")[0]
        raise usage(f"context {name} has several servers: {reason}", step) from None


def normal(url: str) -> str:
    """Return addresses as `http://host:port`, separated by commas. Raise `Failure` if one is not an address."""
    try:
        return ",".join(Addresses(with_schemes(url)).all)
    except BadUrl as error:
        raise usage(str(error)) from None


def next_step_of(target: Target) -> str:
    """Return what to do about a server that does not answer: start it, or correct what gave its address."""
    parts = urlsplit(target.url)
    if parts.hostname in LOCAL_HOSTS and parts.scheme == "http" and "," not in target.url:
        port = parts.port or 80
        start = f"start a server with `topics serve{'' if port == DEFAULT_PORT else f' --port {port}'}`"
    else:
        start = f"check that a server runs at {target.url.replace(',', ' or ')}"
    by = target.source.partition("=")[0].partition(" ")[0]
    if by.startswith("--"):
        return f"{start}, or correct {by}"
    if by.startswith("TOPICS_"):
        return f"{start}, or correct or unset {by}, which gave this address"
    return f"{start}, or name another with --url or `topics context use`"


def find(known: Contexts, name: str) -> Context:
    """Return a context by its name. Raise `Failure` if there is none."""
    if name not in known.by_name:
        step = "`topics context ls` lists the contexts, and `topics context add` adds one"
        raise Failure(f"there is no context {name!r}", status=EXIT_NOT_FOUND, next_step=step)
    return known.by_name[name]


def read_contexts(env: Mapping[str, str]) -> Contexts:
    """Return the contexts of the user. Raise `Failure` if their file is damaged."""
    try:
        return load_contexts(env)
    except BadContext as error:
        raise Failure(str(error)) from None


# --- requests, over HTTP or printed as `curl` commands

ANSWER_TIMEOUT_S = 30.0
BRIEFLY = Retries(math.inf, for_s=5.0, reconnect=False)
CHUNK_BYTES = 1 << 18


class Server(Connection):
    """The server of a command. Not thread-safe: each thread needs its own."""

    def __init__(self, target: Target, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        super().__init__(target.url, token=target.token, timeout_s=timeout_s, retries=BRIEFLY)
        self.target = target

    def json(self, request: Request) -> Any:
        """Send a request and return its decoded answer, without the timings of the server. Raise `TopicsError`."""
        answer = json.loads(self.send(request))
        answer.pop("performance", None)
        return answer

    def rows(self, path: str, member: str, **query: Any) -> Iterator[Any]:
        cursor = None
        while True:
            answer = self.json(get(path, **query, page_size=PAGE_ROWS, cursor=cursor))
            yield from answer[member]
            cursor = answer.get("next_cursor")
            if cursor is None:
                return

    def stream(self, request: Request, *, timeout_s: float | None = None) -> Iterator[bytes]:
        """Yield the chunks of an answer as they arrive, on a connection of its own."""
        with self.opened(request, timeout_s=timeout_s) as response:
            while chunk := response.read1(CHUNK_BYTES):
                yield chunk

    def events(self, watch: Request, *, timeout_s: float) -> Iterator[Event]:
        """Open a watch session and yield the events of its stream. Those of heartbeats have no name."""
        parser = EventParser()
        stream = Request("GET", self.json(watch)["stream_url"], accept=EVENT_STREAM)
        for chunk in self.stream(stream, timeout_s=timeout_s):
            yield from parser.feed(chunk)

    def failure(self, error: TopicsError) -> Failure:
        """Return what a command reports for an error: its exit status, and what to do next."""
        if isinstance(error, Unreachable):
            return Failure(str(error), status=EXIT_UNREACHABLE, next_step=next_step_of(self.target))
        return failure_of(error)

    def lags(self) -> dict[str, int]:
        """Return how many records the slowest router or named consumer of each topic is behind."""
        found: dict[str, int] = {}
        for router in self.rows("/v0/routers", "routers"):
            found[router["source"]] = max(found.get(router["source"], 0), router["lag"])
        for consumer in self.rows("/v0/consumers", "consumers"):
            found[consumer["topic"]] = max(found.get(consumer["topic"], 0), consumer["lag_records"])
        return found


# --- requests


def get(path: str, **query: Any) -> Request:
    return Request("GET", with_query(path, **query))


def post(path: str, body: Any, *, accept: str = JSON, safe: bool = True, wait_ms: int = 0) -> Request:
    return Request("POST", path, body if isinstance(body, bytes) else json_text(body), accept, safe, wait_ms)


def put(path: str, body: Any) -> Request:
    return Request("PUT", path, json_text(body))


def delete(path: str) -> Request:
    return Request("DELETE", path)


def as_curl(request: Request, target: Target) -> str:
    """Return the request as a `curl` command. The key is read from its file when the command runs."""
    words = ["curl", "-sS"]
    if request.accept == EVENT_STREAM:
        words.append("-N")
    if request.method != ("GET" if request.body is None else "POST"):
        words += ["-X", request.method]
    words.append(shlex.quote(target.url.partition(",")[0] + request.path))
    if request.accept != JSON:
        words += ["-H", shlex.quote(f"accept: {request.accept}")]
    if target.token is not None:
        key = f"$(cat {target.token_file})" if target.token_file else "$TOPICS_TOKEN"
        words += ["-H", f'"authorization: Bearer {key}"']
    if request.body is not None:
        words += ["-H", shlex.quote(f"content-type: {JSON}"), "--data-binary", shlex.quote(request.body.decode())]
    return " ".join(words)
