"""Names that the server or the contexts know: topics, queues, routers, contexts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from topics.cli.connect import contexts, target
from topics.cli.connect.request import get, list_path, router_path
from topics.cli.connect.server import Server
from topics.cli.output.failures import Failure
from topics.errors import TopicsError

MAX_NAMES = 1000
TIMEOUT_S = 2.0


def known(kind: str, options: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    """Return the names of a kind. Empty if the server does not answer: a shell shows no errors."""
    try:
        if kind == "contexts":
            return list(contexts.load(env).by_name)
        args = Namespace(**{name: options.get(name) for name in ("url", "context", "token", "token_file")})
        with Server(target.resolve(args, env), timeout_s=TIMEOUT_S) as server:
            if kind == "routers":
                return [row["router"] for row in server.json(get(router_path(page_size=MAX_NAMES)))["routers"]]
            rows = server.json(get(list_path("/v0/topics", page_size=MAX_NAMES)))["topics"]
    except (Failure, TopicsError, OSError):
        return []
    return [row["topic"] for row in rows if kind != "queues" or row["type"] == "queue"]
