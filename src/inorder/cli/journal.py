"""`inorder journal`: what a broker's folder holds, whether it is whole, and how to save what can be read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from inorder.cli.asking import add_yes, agreed
from inorder.cli.dumping import Wanted, lines
from inorder.cli.exits import DONE, NO
from inorder.cli.progress import Bar
from inorder.cli.showing import print_json, topic_of
from inorder.cli.targets import path_of
from inorder.cli.verbs import Command, Run, Verbs, add_noun, add_verb
from inorder.cli.wording import counted, duration, moment, size, table
from inorder.clock import SYSTEM_CLOCK
from inorder.errors import InorderError, InvalidArgument, JournalInUse
from inorder.journal.decoding import EVENTS, MEANING
from inorder.journal.findings import Finding, Repaired, Verified
from inorder.journal.frames import OFFSET_MASK, segment_of
from inorder.journal.info import JournalInfo, info
from inorder.journal.layout import DATABASE, log_name
from inorder.journal.lock import owner_of
from inorder.journal.reading import JournalReader, existing_journal
from inorder.journal.tools import repair, verify

_INFO: Final = {
    "folder": "its path",
    "kind": "segments or sqlite",
    "format": "the number of it",
    "size": "bytes of all its files",
    "parts": "how many",
    "end": "the location up to which it is durable",
    "snapshot": "before, the location before which it stands for all, and size; null if there is none",
    "owner": "in words; null if there is none",
    "topics": "a list: name, messages, begin, end, bytes, oldest_us, newest_us, retention_seconds",
    "subscriptions": "a list: name, topic, detached, topic_deleted, backlog, oldest_unacked, parked, waiting, gaps",
}
_VERIFIED: Final = {
    "frames": "that can be read",
    "size": "bytes of these",
    "damaged": "whether anything is lost",
    "findings": "a list: file, position, problem, lost, unreadable, frames_before, meaningless",
}
_DUMPED: Final = {"event": "its name; the rest, with and without --json, is what the journal has of it"}
_REPAIRED: Final = {
    "findings": "a list of what was damaged, as with verify",
    "actions": "a list of what was done, in words; none if nothing was damaged",
    "copies": "the folder with all that was changed, as it was; null if there is none",
    "lost_bytes": "that could not be read",
    "lost_frames": "that came behind",
    "damaged": "whether anything still is",
}


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    verbs = add_noun(nouns, "journal", "look into a broker's folder")

    _verb(verbs, "info", _info, "say what a journal holds; works beside the broker that owns it", _INFO)

    text = "read everything and say what is damaged; exit code 1 if anything is"
    _verb(verbs, "verify", _verify, text, _VERIFIED)

    verb = _verb(verbs, "dump", _dump, "print events as lines of JSON; works beside the broker that owns it", _DUMPED)
    verb.add_argument("--topic", help="only messages of this topic, and events of it and of its subscriptions")
    verb.add_argument("--from", dest="first", type=int, metavar="POSITION", help="messages and acks from here on")
    verb.add_argument("--to", dest="end", type=int, metavar="POSITION", help="and before this one")
    verb.add_argument("--events", metavar="NAMES", help=f"only these, as in published,acked; of {', '.join(EVENTS)}")

    text = "keep what can be read up to the first damage, and a copy of the rest"
    add_yes(_verb(verbs, "repair", _repair, text, _REPAIRED))


def _verb(verbs: Verbs, name: str, run: Run, text: str, fields: Mapping[str, str]) -> Command:
    verb = add_verb(verbs, name, run, text, fields=fields)
    verb.add_argument("folder", type=path_of, metavar="FOLDER", help="that of PubSub('file:FOLDER')")
    return verb


# -- info ------------------------------------------------------------------------------------------


def _info(given: argparse.Namespace) -> int:
    found = info(given.folder, SYSTEM_CLOCK.now_us())
    if given.json:
        print_json(_plain(found))
    else:
        print("\n".join(_told(found)))
    return DONE


def _plain(found: JournalInfo) -> dict[str, Any]:
    topics = [
        {
            "name": topic.name,
            "messages": topic.end - topic.begin,
            "begin": topic.begin,
            "end": topic.end,
            "bytes": topic.size,
            "oldest_us": topic.oldest_us,
            "newest_us": topic.newest_us,
            "retention_seconds": topic.options.message_retention_duration,
        }
        for topic in found.topics
    ]
    return {
        **found._asdict(),
        "snapshot": found.snapshot and found.snapshot._asdict(),
        "topics": topics,
        "subscriptions": [subscription._asdict() for subscription in found.subscriptions],
    }


def _told(found: JournalInfo) -> Iterator[str]:
    yield f"folder        {found.folder}"
    yield f"journal       {found.kind}, format {found.format}"
    yield f"size          {size(found.size)} in {counted(found.parts, 'part')}"
    yield f"durable until {_place(found, found.end)}"
    snapshot = found.snapshot
    yield f"snapshot      {f'{size(snapshot.size)}, before {_place(found, snapshot.before)}' if snapshot else 'none'}"
    yield f"owner         {found.owner or 'nobody'}"
    yield ""
    yield from table(
        ("topic", "messages", "positions", "bytes", "oldest (UTC)", "newest (UTC)", "retention"),
        [
            (
                topic.name,
                topic.end - topic.begin,
                f"{topic.begin}–{topic.end - 1}" if topic.begin < topic.end else "",
                size(topic.size),
                moment(topic.oldest_us),
                moment(topic.newest_us),
                "until acked" if (kept := topic.options.message_retention_duration) is None else duration(kept),
            )
            for topic in found.topics
        ],
    )
    yield ""
    yield from table(
        ("subscription", "topic", "backlog", "oldest unacked", "parked keys", "waiting", "gaps"),
        [
            (
                subscription.name,
                topic_of(subscription),
                subscription.backlog,
                "" if (oldest := subscription.oldest_unacked) is None else f"{oldest}",
                len(subscription.parked),
                subscription.waiting,
                subscription.gaps,
            )
            for subscription in found.subscriptions
        ],
    )


def _place(found: JournalInfo, location: int) -> str:
    if found.kind == "sqlite":
        return f"frame {location}"
    return f"{log_name(segment_of(location))}, byte {location & OFFSET_MASK}"


# -- verify ----------------------------------------------------------------------------------------


def _verify(given: argparse.Namespace) -> int:
    verified = _looked_over(given.folder)
    if given.json:
        plain = {
            "frames": verified.frames,
            "size": verified.size,
            "damaged": bool(verified.lost),
            "findings": [finding._asdict() for finding in verified.findings],
        }
        print_json(plain)
    else:
        _tell_findings(verified)
        print(f"{'damaged' if verified.lost else 'whole'}: {_amount(verified)}")
    return NO if verified.lost else DONE


def _looked_over(folder: Path) -> Verified:
    existing_journal(folder)
    with Bar("verifying", sys.stderr) as bar:
        return verify(folder, bar, MEANING)


def _tell_findings(verified: Verified) -> None:
    for finding in verified.findings:
        print(_sentence(finding))


def _sentence(finding: Finding) -> str:
    unit = "frame" if finding.file == DATABASE else "byte"
    text = f"{finding.file}, {unit} {finding.position}: {finding.problem}"
    if finding.unreadable:
        text += f"; {size(finding.unreadable)} cannot be read"
    return text if finding.lost else f"{text}; it never was durable, and the next start cuts it"


def _amount(verified: Verified) -> str:
    return f"{counted(verified.frames, 'frame')} can be read, in {size(verified.size)}"


# -- dump ------------------------------------------------------------------------------------------


def _dump(given: argparse.Namespace) -> int:
    wanted = _wanted(given)
    for line in lines(JournalReader(given.folder), wanted):
        sys.stdout.write(line + "\n")
    return DONE


def _wanted(given: argparse.Namespace) -> Wanted:
    wanted = Wanted(given.topic)
    if given.topic is None and (given.first, given.end) != (None, None):
        raise InvalidArgument("positions belong to a topic: give --topic with --from and --to")
    if given.first is not None:
        wanted = wanted._replace(first=given.first)
    if given.end is not None:
        wanted = wanted._replace(end=given.end)
    if given.events is not None:
        names = given.events.split(",")
        for name in names:
            if name not in EVENTS:
                raise InvalidArgument(f"--events: some of {', '.join(EVENTS)}, not {name!r}")
        wanted = wanted._replace(events=frozenset(names))
    return wanted


# -- repair ----------------------------------------------------------------------------------------


def _repair(given: argparse.Namespace) -> int:
    before = _looked_over(given.folder)
    if not given.json:
        _tell_findings(before)
    if all(finding.meaningless for finding in before.lost):
        return _left_alone(given, before)
    if owner := owner_of(given.folder):
        raise JournalInUse(str(given.folder), owner)
    if not agreed(given, "Cut it at the first damage, and keep a copy?"):
        return NO
    repaired = repair(given.folder)
    after = _looked_over(given.folder)
    unreadable = sum(finding.unreadable for finding in before.lost)
    lost = before.frames - after.frames
    if given.json:
        _print_repaired(before, repaired, unreadable, lost, damaged=bool(after.lost))
        return NO if after.lost else DONE
    for action in repaired.actions:
        print(action)
    print(f"lost: {size(unreadable)} that cannot be read, and {counted(lost, 'frame')} that came behind")
    if repaired.copies is not None:
        print(f"as it was: {repaired.copies}")
    _tell_ends(given.folder)
    print(f"{'still damaged' if after.lost else 'whole'}: {_amount(after)}")
    return NO if after.lost else DONE


def _left_alone(given: argparse.Namespace, found: Verified) -> int:
    """There is nothing that a repair could do."""
    if given.json:
        _print_repaired(found, Repaired([], None), 0, 0, damaged=bool(found.lost))
    else:
        print("nothing is left to repair: the frames are as they were written" if found.lost else "nothing is damaged")
    return NO if found.lost else DONE


def _print_repaired(before: Verified, repaired: Repaired, lost_bytes: int, lost_frames: int, *, damaged: bool) -> None:
    plain = {
        "findings": [finding._asdict() for finding in before.findings],
        "actions": repaired.actions,
        "copies": None if repaired.copies is None else str(repaired.copies),
        "lost_bytes": lost_bytes,
        "lost_frames": lost_frames,
        "damaged": damaged,
    }
    print_json(plain)


def _tell_ends(folder: Path) -> None:
    with suppress(InorderError):  # what cannot be decoded was told before
        for topic in JournalReader(folder).topics():
            print(f"topic {topic.name!r} now ends before position {topic.end}")
