"""`inorder tail`: the messages of a topic as they come, without taking them from anybody.

In a folder they are read from the journal, beside its owner. A server is asked by a subscription of our own, which is
removed at the end.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from secrets import token_hex
from time import sleep
from typing import Final

from inorder.cli.exits import DONE
from inorder.cli.showing import GAP_FIELDS, MESSAGE_FIELDS, Messages, print_note
from inorder.cli.targets import add_target, connected, folder_of, target_of
from inorder.cli.verbs import Verbs, add_verb
from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.errors import InorderError, InvalidArgument, NotRetained
from inorder.journal.reading import JournalReader
from inorder.message import Message
from inorder.pending import Pending

_LAST: Final = 10  # as tail does
_LOOK_SECONDS: Final = 0.1  # between two looks at a journal
_AT_ONCE: Final = 1_000
# Who is killed before it removes its subscription leaves so little behind, or what the topic retains anyway.
_KEPT_SECONDS: Final = 600
_MORE: Final = """\
A folder shows all that its journal still holds, also what was acked. Of a server only that can be had which its topic
retains (--message-retention-duration), and what is published from now on.

  inorder tail orders -f
  inorder tail orders --from 0 --json
"""


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    text = "print the last messages of a topic, without taking them from anybody"
    verb = add_verb(nouns, "tail", _tail, text, fields={**GAP_FIELDS, **MESSAGE_FIELDS}, more=_MORE)
    verb.add_argument("topic", metavar="TOPIC", help="its name")
    verb.add_argument("-f", "--follow", action="store_true", help="go on with what is published, until Ctrl-C")
    start = verb.add_mutually_exclusive_group()
    start.add_argument("-n", "--last", type=int, default=_LAST, metavar="N", help="so many of the last (%(default)s)")
    start.add_argument("--from", dest="first", type=int, metavar="POSITION", help="all from here on")
    add_target(verb)


def _tail(given: argparse.Namespace) -> int:
    for name, number in (("--last", given.last), ("--from", given.first)):
        if number is not None and number < 0:
            raise InvalidArgument(f"{name}: at least 0, not {number}")
    messages = Messages(as_json=given.json)
    if (folder := folder_of(target_of(given))) is not None:
        _of_journal(JournalReader(folder), given, messages)
        return DONE
    with connected(given) as pubsub:
        topic = pubsub.topic(given.topic)
        end = topic.metadata().result().published
        of_topic(topic, _first(given, end), None if given.follow else end, messages)
    return DONE


def _first(given: argparse.Namespace, end: int) -> int:
    first: int = max(0, end - given.last) if given.first is None else given.first
    return first


# -- beside the owner of a folder ------------------------------------------------------------------


def _of_journal(reader: JournalReader, given: argparse.Namespace, messages: Messages) -> None:
    topic = reader.topic(given.topic)
    first = _first(given, topic.end)
    while True:
        first = _print_from(reader, given.topic, first, messages)
        sys.stdout.flush()
        if not given.follow:
            return
        sleep(_LOOK_SECONDS)
        reader.refresh()
        if reader.topic(given.topic).serial != topic.serial:
            print_note(f"topic {given.topic} was deleted and created again")
            topic, first = reader.topic(given.topic), 0


def _print_from(reader: JournalReader, topic: str, first: int, messages: Messages) -> int:
    """Print what is there from a position on; returns the one behind."""
    view = reader.topic(topic)
    while True:
        try:
            for stretch in reader.read(topic, first):
                for record in stretch.records():
                    messages.record(record, view.id_prefix)
                first = stretch.end
            return first
        except NotRetained:
            reader.refresh()
            oldest = reader.begin(topic)
            if oldest <= first:
                raise
            print_note(f"positions {first} to {oldest - 1} are no longer in the journal")
            first = oldest


# -- of any other broker ---------------------------------------------------------------------------


def of_topic(topic: Topic, first: int, end: int | None, messages: Messages) -> None:
    """Print a topic from a position on, up to `end` or for ever."""
    name = f"inorder-tail-{token_hex(6)}"
    subscription = topic.subscription(name).on("gap", messages.gap)
    retained = topic.metadata().result().options.message_retention_duration or 0
    try:  # whoever is interrupted before the answer to this must not leave it behind either
        subscription.create(message_retention_duration=max(retained, _KEPT_SECONDS)).result()
        try:
            subscription.seek(position=first).result()
        except NotRetained as error:
            print_note(f"not all can be had: {error}")
            subscription.seek(time=0).result()  # all that there still is
        if end is None:
            _follow(subscription, messages)
        else:
            _print_until(subscription, end, messages)
    finally:
        with suppress(InorderError):  # the topic or the broker may be gone, and that was said
            subscription.delete().result()


# Messages are acked before they are printed: the subscription is ours alone, and whoever reads may take longer than any
# lease lasts, as a pager does.


def _print_until(subscription: Subscription, end: int, messages: Messages) -> None:
    while pulled := subscription.pull(_AT_ONCE).result():
        Pending.all([message.ack() for message in pulled]).result()
        wanted = [message for message in pulled if message.position < end]
        _print(wanted, messages)
        if len(wanted) < len(pulled):
            return


def _follow(subscription: Subscription, messages: Messages) -> None:
    batches = subscription.batches(_AT_ONCE)
    for batch in batches:
        batches.ack(batch).result()
        _print(batch, messages)


def _print(batch: list[Message], messages: Messages) -> None:
    for message in batch:
        messages.message(message)
    sys.stdout.flush()
