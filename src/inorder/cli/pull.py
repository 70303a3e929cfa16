"""`inorder pull`: what waits in a subscription, to look at or to take."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from inorder.cli.exits import DONE
from inorder.cli.showing import CLOSED, GAP_FIELDS, MESSAGE_FIELDS, Messages
from inorder.cli.targets import add_target, connected
from inorder.cli.verbs import Verbs, add_verb
from inorder.client.subscription import Subscription
from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.pending import Pending

_AT_ONCE: Final = 1_000
_MORE: Final = """\
Without --ack or --nack the messages are leased, and come again: at once from a folder, whose leases end with the
command, and after the ack deadline from a server. Of an ordered key only as many come at once as may be out. A gap
record is told once, and is gone then.

  inorder pull billing --max 10 --ack
  inorder pull billing --json | jq -r .data
"""


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    text = "print messages that wait in a subscription"
    fields = {**GAP_FIELDS, **MESSAGE_FIELDS, "delivery_attempt": "1 for the first, one more after each that failed"}
    verb = add_verb(nouns, "pull", _pull, text, fields=fields, more=_MORE)
    verb.add_argument("subscription", metavar="SUBSCRIPTION", help="its name")
    verb.add_argument("--max", type=int, default=1, metavar="N", help="so many at most (%(default)s)")
    answer = verb.add_mutually_exclusive_group()
    answer.add_argument("--ack", action="store_true", help="take them: they are done once they are printed")
    answer.add_argument("--nack", action="store_true", help="give them back as failed")
    add_target(verb)


def _pull(given: argparse.Namespace) -> int:
    if given.max < 1:
        raise InvalidArgument(f"--max: at least 1, not {given.max}")
    if given.ack and "stdout" in CLOSED:
        raise FailedPrecondition("--ack: standard output is closed, so nobody would ever see the messages")
    messages = Messages(as_json=given.json)
    with connected(given) as pubsub:
        subscription = pubsub.subscription(given.subscription).on("gap", messages.gap)
        if given.ack:
            _take(subscription, messages, given.max)
        else:
            pulled = subscription.pull(given.max).result()
            for message in pulled:
                messages.message(message, {"delivery_attempt": message.delivery_attempt})
            if given.nack:
                sys.stdout.flush()
                Pending.all([message.nack() for message in pulled]).result()
    return DONE


def _take(subscription: Subscription, messages: Messages, wanted: int) -> None:
    while wanted and (pulled := subscription.pull(min(wanted, _AT_ONCE)).result()):
        for message in pulled:
            messages.message(message, {"delivery_attempt": message.delivery_attempt})
        sys.stdout.flush()  # whoever does not get them must not have them acked
        Pending.all([message.ack() for message in pulled]).result()
        wanted -= len(pulled)
