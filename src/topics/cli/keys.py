"""`topics key …`: create, list, rotate and revoke the keys of a server."""

from __future__ import annotations

from topics.cli.command import Args, Call, Command, group, removal
from topics.cli.connect import get, post
from topics.cli.options import option
from topics.cli.output.failures import usage
from topics.cli.output.screen import Columns, Styled
from topics.cli.output.units import moment
from topics.client.call import Request, given, key_path
from topics.keys import SCOPES

KEY = option("KEY", "name of the key")
COLUMNS: Columns = {
    "key": lambda row: Styled(row["key"], "bold"),
    "scopes": lambda row: "+".join(row["rights"].get("scopes", SCOPES)),
    "names": lambda row: " ".join(
        [f"{one}*" for one in row["rights"].get("prefixes", ())] + row["rights"].get("names", [])
    ) or "*",
    "from": lambda row: row["source"],
    "expires": lambda row: moment(row["expires_at"]),
    "used": lambda row: moment(row["last_used_at"]),
    "note": lambda row: row["note"],
}  # fmt: skip


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _create(args: Args) -> Request:
    scopes = _list(args.scopes)
    if scopes is not None and not set(scopes) <= set(SCOPES):
        raise usage("--scopes: not a list of scopes", f"use {', '.join(SCOPES)}, separated by commas")
    body = given(
        key=args.key, scopes=scopes, prefixes=_list(args.prefixes), names=_list(args.names), note=args.note,
        origins=_list(args.origins), ttl_ms=args.expires, create=False if args.no_create else None,
    )  # fmt: skip
    return post("/v0/keys", body)


@Command(
    "create",
    "create a key, and print its secret once",
    (
        KEY,
        option("--scopes SCOPES", "read, write, delete, admin, separated by commas [those of your key]"),
        option("--prefixes PREFIXES", "prefixes of the names that it may use, separated by commas"),
        option("--names NAMES", "exact names that it may use, separated by commas"),
        option("--origins ORIGINS", "origins of pages in a browser, separated by commas"),
        option("--no-create", "its writes create no topics"),
        option("--expires DURATION", "valid for this time, such as 30d [without end]"),
        option("--note TEXT", "what the key is for"),
    ),
    request=_create,
    examples="  topics key create billing --scopes read,write --prefixes orders.\n",
)
def create(call: Call) -> None:
    call.screen.note("the secret is shown once: store it now")
    call.result(lambda args, answer: answer["secret"])


@Command(
    "ls",
    "list the keys that your key covers",
    (),
    request=lambda args: get("/v0/keys"),
    examples="  topics key ls\n",
)
def ls(call: Call) -> None:
    call.screen.rows(call.ask()["keys"], COLUMNS, empty="no keys; `topics key create NAME` creates one")


rotate = Command(
    "rotate",
    "give a key a new secret, and print it once",
    (KEY, option("--overlap DURATION", "how long the old secret stays valid [1d]")),
    request=lambda args: post(key_path(args.key, "rotate"), given(overlap_ms=args.overlap)),
    examples="  topics key rotate billing --overlap 1h\n",
)(create.run)

revoke = removal(
    "key", "remove a key: its requests, streams and tokens end", KEY,
    path=lambda args: key_path(args.key), verbs=("revoke", "revoked"), looks=False,
    question=lambda args, found: f"revoke {args.key}? Its requests, streams and tokens end at once.",
    examples="  topics key revoke billing\n",
)  # fmt: skip

register = group("key", create, ls, rotate, revoke)
