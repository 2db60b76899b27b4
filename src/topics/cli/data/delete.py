"""`topics delete`: delete records by tag or seq, after showing how many."""

from __future__ import annotations

from topics.cli.command import Args, Call, Command
from topics.cli.connect.server import post, tag_match
from topics.cli.options import TOPIC, option
from topics.cli.output.failures import usage
from topics.cli.output.screen import confirm
from topics.cli.output.units import parse_seqs
from topics.client.call import Request, given, topic_path
from topics.plurals import counted


def _request(args: Args, *, dry_run: bool = False) -> Request:
    seqs = [seq for part in args.seq for seq in part] or None
    body = given(match=tag_match(args.tag), before_seq=args.before, seqs=seqs)
    if seqs and len(body) > 1:
        raise usage("--seq cannot be combined with --tag or --before", "delete in two commands, one for each condition")
    if not body:
        raise usage("name the records: --tag, --before or --seq", "`topics rm` removes a whole topic")
    dry = {"dry_run": True} if args.dry_run or dry_run else {}
    return post(topic_path(args.topic, "delete"), body | dry)


@Command(
    "delete",
    options=(
        TOPIC,
        option("--tag TAG", "records with this tag; a trailing * matches the beginning"),
        option("--before SEQ", "records with a seq below this one"),
        option("--seq SEQ", "one record, or a range such as 7-9", type=parse_seqs, action="append", default=[]),
        option("-n --dry-run", "count the records, and delete none"),
    ),
    asks=True,
    request=_request,
    curl_notes=lambda args, curl: [] if args.dry_run else ["The request does not count the records or ask first."],
    details="Shows the number of records and asks first. Readers see no gap where records were deleted.",
    examples="""\
  topics delete chat --tag 'bob:*'
  topics delete orders --before 1000 --yes
  topics delete orders --seq 7 --seq 20-29
""",
)
def delete(call: Call) -> None:
    if not call.args.yes and not call.args.dry_run:
        found = call.server.json(_request(call.args, dry_run=True))["deleted"]
        if not found:
            call.screen.note("no record matches")
            return
        confirm(f"delete {counted(found, 'record')} of {call.args.topic}?")
    answer = call.server.json(_request(call.args))
    verb = "would delete" if call.args.dry_run else "deleted"
    # A dry run deletes nothing, so its answer still counts the records that match.
    left = answer["count"] - (answer["deleted"] if call.args.dry_run else 0)
    call.screen.result(answer, f"{verb} {counted(answer['deleted'], 'record')}; {counted(left, 'record')} left")


register = delete.register
