"""`inorder seek`: a subscription goes back to messages that it had, or forward over those that wait."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Final

from inorder.cli.exits import DONE
from inorder.cli.showing import print_json, utc
from inorder.cli.targets import add_target, connected
from inorder.cli.verbs import Verbs, add_verb
from inorder.errors import InvalidArgument

_FIELDS: Final = {
    "subscription": "its name",
    "position": "from which on it delivers; null if a time was given",
    "time": "from which on it delivers, in UTC; null if a position was given",
}
_DATE_DIGITS: Final = (4, 8)  # in ISO 8601 2026 is a year and 20261115 a day; as seconds, times in 1970 nobody means
_MORE: Final = """\
How far back it can go depends on what is kept: see --retain-acked-messages of `inorder subscription create` and
--message-retention-duration of `inorder topic create`.

  inorder seek billing --position 1200
  inorder seek billing --time 2026-11-15T16:00:00Z
"""


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    text = "have a subscription deliver from a time or a position on; what is older counts as acked"
    verb = add_verb(nouns, "seek", _seek, text, fields=_FIELDS, more=_MORE)
    verb.add_argument("subscription", metavar="SUBSCRIPTION", help="its name")
    to = verb.add_mutually_exclusive_group(required=True)
    to.add_argument("--time", metavar="TIME", help="in ISO 8601, UTC unless it says otherwise, or seconds since 1970")
    to.add_argument("--position", type=int, metavar="N", help="in its topic")
    add_target(verb)


def _seek(given: argparse.Namespace) -> int:
    time = None if given.time is None else _time(given.time)
    with connected(given) as pubsub:
        pubsub.subscription(given.subscription).seek(time=time, position=given.position).result()
    if given.json:
        plain = {"subscription": given.subscription, "position": given.position, "time": time and utc(time)}
        print_json(plain)
    else:
        where = f"position {given.position}" if time is None else utc(time)
        print(f"subscription {given.subscription} delivers from {where} on")
    return DONE


def _time(text: str) -> datetime:
    try:
        if text.replace(".", "", 1).isdecimal() and ("." in text or len(text) not in _DATE_DIGITS):
            return datetime.fromtimestamp(float(text), UTC)
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidArgument(f"--time: as in 2026-11-15T16:00:00Z, or seconds since 1970, not {text!r}") from error
