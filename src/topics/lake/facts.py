"""Facts about a topic in the log of its Delta table: progress, gaps, trims and erasures.

Each fact is an application transaction (`txn`), a part of Delta that a commit changes together with its files and that
stays in the table for good, through merges, vacuums and checkpoints of any program. A fact is a name and a number:

    topics/archived/<epoch>                           the last archived seq
    topics/gap/<epoch>/<first>/<met at, ms>/<reason>  the last seq of the gap
    topics/trimmed/<epoch>                            the last seq that a trim has deleted from the topic
    topics/erased                                     the number of erasures
    topics/removed                                    the number of the last erasure that has replaced files
    topics/purged                                     the number of the last erasure whose old files were removed

So a gap is not a row, and no reader can take it for a record. Two commits that set the same fact conflict: Delta
refuses the second one unless it was made from the result of the first.
"""

from __future__ import annotations

from msgspec import Struct

from topics.lake.archived import Change, Gap, TopicState
from topics.lake.delta.log_facts import Facts

ERASED, REMOVED, PURGED = "topics/erased", "topics/removed", "topics/purged"


class EpochFacts(Struct):
    """The facts of one epoch."""

    archived_to: int = 0
    trimmed_to: int = 0
    gaps: list[Gap] = []


def of_change(change: Change, base: TopicState) -> dict[str, int]:
    """Return the facts that a change sets.

    An archive change sets the number of erasures to its old value: if an erasure was committed meanwhile, the change
    may contain erased records and must conflict.
    """
    facts: dict[str, int] = {}
    if change.covered is not None:
        facts[f"topics/archived/{change.epoch}"] = change.covered[1]
        facts[ERASED] = base.erasures
    for gap in change.gaps:
        facts.update(of_gap(change.epoch, gap))
    if change.trimmed_to is not None:
        known = base.epoch(change.epoch).trimmed_to
        facts[f"topics/trimmed/{change.epoch}"] = max(known, change.trimmed_to)
    if change.op == "erase":
        facts[ERASED] = base.erasures + 1
        if change.removes:
            facts[REMOVED] = base.erasures + 1
    if change.op == "purge":
        facts[PURGED] = base.removed
    return facts


def of_gap(epoch: int, gap: Gap) -> dict[str, int]:
    """Return the fact of a gap."""
    return {f"topics/gap/{epoch}/{gap.first}/{gap.met_at}/{gap.reason}": gap.last}


def by_epoch(facts: Facts) -> dict[int, EpochFacts]:
    """Return the facts of each epoch, with the gaps sorted. Facts of other programs are ignored."""
    found: dict[int, EpochFacts] = {}
    for name, value in facts.items():
        program, _, rest = name.partition("/")
        kind, _, rest = rest.partition("/")
        if program != "topics" or kind not in ("archived", "trimmed", "gap"):
            continue
        epoch, _, rest = rest.partition("/")
        of = found.setdefault(int(epoch), EpochFacts(gaps=[]))
        if kind == "archived":
            of.archived_to = value
        elif kind == "trimmed":
            of.trimmed_to = value
        elif kind == "gap":
            first, met_at, reason = rest.split("/", 2)
            of.gaps.append(Gap(int(first), value, reason, int(met_at)))
    for of in found.values():
        of.gaps.sort(key=lambda gap: gap.first)
    return found
