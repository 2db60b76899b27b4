"""Which server a command talks to, and with which key; and the contexts, which are named servers.

The address is the first of: `--url`, `--context`, `TOPICS_URL`, `TOPICS_CONTEXT`, the current context, the default. The
key is the first of: `--token`, `--token-file`, the key file of the context if the context gave the address,
`TOPICS_TOKEN_FILE`. The key of a context is never sent to an address that came from elsewhere.

The contexts of a user are in `$XDG_CONFIG_HOME/topics/contexts.json` (`~/.config/topics/contexts.json`). The file never
holds a key, only the path of the file that does.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from topics.cli.options import one_of, option
from topics.cli.output.failures import EXIT_NOT_FOUND, Failure, usage
from topics.client.call import LOCAL_HOSTS, Addresses, with_schemes
from topics.client.errors import BadUrl

DEFAULT_PORT = 4000
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server, and where its key comes from. `token` is not shown by `repr`."""

    url: str
    source: str  # what gave the address, for messages
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None


class Choice(NamedTuple):
    """An address as it was given, what gave it, and the file of the key. Nothing was read or checked."""

    url: str
    source: str
    token_file: str | None
    is_key_of_context: bool  # the key must then be sent to `url` only


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


def resolve(args: argparse.Namespace, env: Mapping[str, str]) -> Target:
    """Return the server that the options, the environment and the contexts choose. Raise `Failure`."""
    choice = choose(args, env)
    token, path = args.token, choice.token_file
    if path is not None:
        try:
            token = Path(path).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise usage(f"the key file {path} cannot be read: {reason}") from None
    if token is not None and not (token.isascii() and token.isprintable() and token and " " not in token):
        source = "--token" if path is None else f"the key file {path}"
        raise usage(f"{source} does not hold one API key", "a key is one line of printable ASCII without spaces")
    return Target(url=normal(choice.url), source=choice.source, token=token, token_file=path)


def choose(args: argparse.Namespace, env: Mapping[str, str]) -> Choice:
    """Return the server and the key file that the options, the environment and the contexts choose. Raise `Failure`."""
    context, url, source = None, DEFAULT_URL, "the default"
    if args.url:
        url, source = args.url, "--url"
    elif args.context or not env.get("TOPICS_URL"):
        known = load_contexts(env)
        name = args.context or env.get("TOPICS_CONTEXT") or known.current
        if name is not None:
            context = known.find(name)
            url, source = context.url, f"--context {name}" if args.context else f"context {name}"
            if not args.context and env.get("TOPICS_CONTEXT"):
                source = f"TOPICS_CONTEXT={name}"
    else:
        url, source = env["TOPICS_URL"], "TOPICS_URL"
    if args.token_file is not None or args.token is not None:
        return Choice(url, source, args.token_file, is_key_of_context=False)
    if context is not None and context.token_file is not None:
        return Choice(url, source, context.token_file, is_key_of_context=True)
    return Choice(url, source, env.get("TOPICS_TOKEN_FILE") or None, is_key_of_context=False)


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


# --- contexts


@dataclass(frozen=True)
class Context:
    url: str
    token_file: str | None = None


@dataclass
class Contexts:
    """The contexts of a user. `current` is the one that commands use without `--context`."""

    current: str | None = None
    by_name: dict[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        if name not in self.by_name:
            step = "`topics context ls` lists the contexts, and `topics context add` adds one"
            raise Failure(f"there is no context {name!r}", status=EXIT_NOT_FOUND, next_step=step)
        return self.by_name[name]


def _contexts_path(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "topics" / "contexts.json"


def load_contexts(env: Mapping[str, str]) -> Contexts:
    """Return the contexts of the user. Raise `Failure` if the file is damaged."""
    path = _contexts_path(env)
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        by_name = {name: Context(**row) for name, row in stored["contexts"].items()}
        return Contexts(stored.get("current"), by_name)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        step = f"repair or remove {path}, and add the contexts again"
        raise Failure(f"{path} cannot be read: {error}", next_step=step) from None


def save_contexts(contexts: Contexts, env: Mapping[str, str]) -> None:
    """Write the contexts by rename, so that another command never reads half a file."""
    path = _contexts_path(env)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    rows = {name: {k: v for k, v in asdict(row).items() if v is not None} for name, row in contexts.by_name.items()}
    text = json.dumps({"current": contexts.current, "contexts": rows}, indent=2) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o600)
    temporary.replace(path)
