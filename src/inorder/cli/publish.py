"""`inorder publish`: messages from arguments, files or standard input into a topic, in that order."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable
from typing import Final

from inorder.cli.exits import DONE
from inorder.cli.pairs import pairs
from inorder.cli.progress import Bar
from inorder.cli.reading import FORMATS, BadInput, Piece, Place, Reading
from inorder.cli.showing import print_json, print_note
from inorder.cli.targets import add_target, connected
from inorder.cli.verbs import Verbs, add_verb
from inorder.cli.wording import counted
from inorder.client.topic import Topic
from inorder.errors import Aborted, DeadlineExceeded, InvalidArgument, Unavailable

_BATCH: Final = 1_000  # of one request, as much as Pub/Sub allows
_BATCH_BYTES: Final = 5_000_000  # so that a batch is one request, and is published whole or not at all
_FIELDS: Final = {
    "topic": "its name",
    "messages": "that were published",
    "first_id": "of the first of them; null if there is none",
    "last_id": "of the last",
}
_MORE: Final = """\
What stands before a line that is no message is published, the line and what follows is not.

  inorder publish orders 'one message' 'and another' --ordering-key customer-7
  inorder publish orders --file orders.jsonl --ordering-key-field customer
  inorder tail orders --json -n 100 | inorder publish copies --format messages
"""


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    text = "publish messages from arguments, files or standard input, in that order"
    verb = add_verb(nouns, "publish", _publish, text, fields=_FIELDS, more=_MORE)
    verb.add_argument("topic", metavar="TOPIC", help="its name")
    verb.add_argument(
        "data", metavar="DATA", nargs="*", default=[], help="each is a message; without any, standard input is read"
    )
    verb.add_argument("--file", action="append", metavar="FILE", help="read it; more than once for several; - is stdin")
    formats = "; ".join(f"{name}: {meaning}" for name, meaning in FORMATS.items())
    verb.add_argument("--format", choices=list(FORMATS), help=f"{formats} (text; json where a field is named)")
    key = verb.add_mutually_exclusive_group()
    key.add_argument("--ordering-key", metavar="KEY", help="of all messages")
    key.add_argument("--ordering-key-field", metavar="NAME", help="the field of each JSON object that is its key")
    verb.add_argument(
        "--attribute", action="append", default=[], metavar="NAME=VALUE", help="of all messages; more than once"
    )
    verb.add_argument(
        "--attributes-field", metavar="NAME", help="the field of each JSON object that holds its attributes"
    )
    verb.add_argument("--batch", type=int, default=_BATCH, metavar="N", help="so many in one request (%(default)s)")
    add_target(verb)


def _publish(given: argparse.Namespace) -> int:
    if not 1 <= given.batch <= _BATCH:
        raise InvalidArgument(f"--batch: 1 to {_BATCH}, not {given.batch}")
    reading = Reading(given, pairs("--attribute", given.attribute))
    total = reading.total()
    with connected(given) as pubsub:
        topic = pubsub.topic(given.topic)
        options = topic.metadata().result().options  # it must exist, also where there is nothing to publish
        if options.message_retention_duration is None and not topic.subscriptions().result():
            print_note(f"topic {given.topic} has no subscription and retains nothing, so nobody will get this")
        if reading.waits_for_somebody():
            print_note("each line that you type is a message; Ctrl-D on an empty one ends it")
        sending = _Sending(topic, given.batch)
        try:
            with Bar("publishing", sys.stderr) as bar:
                sending.take(reading, lambda read: None if total is None else bar(read, total))
        except BaseException:
            _tell_rest(given, sending)
            raise
        finally:
            if given.json:
                print_json(sending.plain())
    if not given.json:
        print(f"published {counted(sending.messages, 'message')} to {given.topic}")
    return DONE


def _tell_rest(given: argparse.Namespace, sending: _Sending) -> None:
    """What was published before it stopped, and how to publish the rest."""
    place = sending.place
    print_note(f"published before that: {counted(sending.messages, 'message')}{sending.doubt()}")
    if place is not None and place.line and place.source in (given.file or ()):
        rest = shlex.join(["tail", "-n", f"+{place.line}", place.source])
        print_note(f"to go on from there: {rest} | inorder publish {given.topic} …")


class _Sending:
    """Collects messages, and sends them a batch at a time; the next when the one before is answered."""

    def __init__(self, topic: Topic, size: int) -> None:
        self._topic = topic
        self._size = size
        self._batch: list[Piece] = []
        self._bytes = 0
        self._unknown: Place | None = None
        self.place: Place | None = None  # of the first message that was not published
        self.messages = 0
        self._first: str | None = None
        self._last: str | None = None

    def take(self, reading: Iterable[Piece | None], progress: Callable[[int], None]) -> None:
        """All that is read; up to a line that is no message, if there is one."""
        try:
            for piece in reading:
                if piece is None:
                    self.send()
                else:
                    self.add(piece)
                    progress(piece.read)
        except BadInput as error:
            self.place = error.place
            self.send()
            raise
        self.send()

    def add(self, piece: Piece) -> None:
        if self._batch and self._bytes + piece.size > _BATCH_BYTES:
            self.send()
        self._batch.append(piece)
        self._bytes += piece.size
        if len(self._batch) == self._size:
            self.send()

    def send(self) -> None:
        if not self._batch:
            return
        batch, self._batch, self._bytes = self._batch, [], 0
        try:
            ids = self._topic.publish_many([piece.message for piece in batch]).result()
        except BaseException as error:
            self.place = batch[0].place
            # Nobody has said that it was not stored; nor if Ctrl-C, a TERM or a closed terminal came before the answer.
            if isinstance(error, Unavailable | DeadlineExceeded | Aborted) or not isinstance(error, Exception):
                self._unknown = batch[-1].place
            raise
        self.messages += len(ids)
        self._first, self._last = self._first or ids[0], ids[-1]

    def doubt(self) -> str:
        return f"; whether those from {self.place} to {self._unknown} were, is not known" if self._unknown else ""

    def plain(self) -> dict[str, object]:
        return {
            "topic": self._topic.name,
            "messages": self.messages,
            "first_id": self._first,
            "last_id": self._last,
        }
