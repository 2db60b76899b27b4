"""`topics context`: name servers, and choose the one that commands use."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial

from topics.cli.connect import find, normal, read_contexts
from topics.cli.options import JSON_LINES, add_group, add_parser, option
from topics.cli.output.failures import EXIT_DONE, usage
from topics.cli.output.screen import Columns, Screen, Styled
from topics.cli.tree import Subparsers
from topics.client.contexts import Context, Contexts, save_contexts

COLUMNS: Columns = {
    "": lambda row: Styled("*" if row["current"] else "", "green"),
    "context": lambda row: Styled(row["name"], "bold"),
    "url": lambda row: ", ".join(filter(None, [row["url"], *(f"{one}={to}" for one, to in row["routes"].items())])),
    "key file": lambda row: row["token_file"] or "",
}
ADD_EXAMPLES = """\
  topics context add dev --url http://127.0.0.1:4000
  topics context add prod --url https://topics.example --token-file ~/.topics-prod --use
  topics context add world --route eu.=https://eu.example --route us.=https://us.example
"""
Act = Callable[[argparse.Namespace, Contexts, Screen], bool]


def register(subparsers: Subparsers) -> None:
    parser = add_parser(
        subparsers, "context", details="A context never holds a key, only its file.",
        examples="  topics context add prod --url https://topics.example --token-file ~/.topics-prod\n"
        "  topics context use prod\n  topics ls --context dev",
    )  # fmt: skip
    new = (
        option("NAME"),
        option("--url URL", "address of the server; with routes, of that of all other names", default=""),
        option("--route PREFIX=URL", "address of the server of names with this prefix; repeatable", action="append"),
        option("--token-file FILE", "file with the API key"),
        option("--use", "make it the current context"),
    )
    known = option("NAME", completes="contexts")
    yes = option("-y --yes", "do not ask: it never asks, because a context holds no data")
    verbs = add_group(parser)
    for name, act, help, rows in (
        ("add", _add, "add a context, or change it", new),
        ("use", _use, "make a context the current one", (known,)),
        ("rm", _rm, "remove a context", (known, yes)),
        ("ls", _ls, "list the contexts", ()),
    ):
        examples = ADD_EXAMPLES if act is _add else ""
        add_parser(verbs, name, help, JSON_LINES, *rows, examples=examples).set_defaults(execute=partial(_execute, act))


def _execute(act: Act, args: argparse.Namespace) -> int:
    """Load the contexts, act on them, and save them if they changed."""
    known = read_contexts(os.environ)
    if act(args, known, Screen(as_json=args.json)):
        save_contexts(known, os.environ)
    return EXIT_DONE


def _add(args: argparse.Namespace, known: Contexts, screen: Screen) -> bool:
    if not args.name or args.name.startswith("-") or not args.name.isprintable() or " " in args.name:
        raise usage(f"{args.name!r} cannot name a context", "use letters, digits and dashes")
    token_file = None if args.token_file is None else os.path.abspath(os.path.expanduser(args.token_file))
    if token_file is not None and not os.path.isfile(token_file):
        raise usage(f"there is no key file {token_file}", "write the key to it first, then add the context")
    routes = dict(one.partition("=")[::2] for one in args.route or ())
    if not all(routes.values()) or not (routes or args.url):
        raise usage("a context needs an address", "give --url URL, or --route PREFIX=URL for each prefix of names")
    url = normal(args.url) if args.url else ""
    known.by_name[args.name] = Context(url, token_file, {one: normal(to) for one, to in routes.items()} or None)
    if args.use or known.current is None:
        known.current = args.name
    is_current = known.current == args.name
    text = f"added {args.name}{' and made it the current context' if is_current else ''}"
    screen.result({"name": args.name, "current": is_current}, text)
    return True


def _use(args: argparse.Namespace, known: Contexts, screen: Screen) -> bool:
    url = ", ".join(find(known, args.name).by_prefix.values())
    known.current = args.name
    screen.result({"name": args.name, "current": True}, f"commands now use {args.name} ({url})")
    if variable := next((one for one in ("TOPICS_URL", "TOPICS_CONTEXT") if os.environ.get(one)), None):
        screen.warn(f"{variable} is set in this shell and comes before the current context: unset {variable}")
    return True


def _rm(args: argparse.Namespace, known: Contexts, screen: Screen) -> bool:
    find(known, args.name)
    del known.by_name[args.name]
    known.current = None if known.current == args.name else known.current
    screen.result({"name": args.name, "removed": True}, f"removed {args.name}")
    return True


def _ls(args: argparse.Namespace, known: Contexts, screen: Screen) -> bool:
    rows = [
        {
            "name": name,
            "url": row.url,
            "routes": row.routes or {},
            "token_file": row.token_file,
            "current": name == known.current,
        }
        for name, row in sorted(known.by_name.items())
    ]
    empty = "no contexts; `topics context add NAME --url URL` adds one"
    screen.rows(rows, COLUMNS, empty=empty)
    return False
