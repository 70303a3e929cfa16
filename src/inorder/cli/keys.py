"""`inorder keys`: which keys of a subscription wait, and what to do about those that are parked."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Final

from inorder.cli.exits import DONE
from inorder.cli.showing import print_json, print_table, visible
from inorder.cli.targets import add_target, connected
from inorder.cli.verbs import Command, Run, Verbs, add_noun, add_verb
from inorder.errors import InvalidArgument, KeyNotBlocked
from inorder.metadata import BlockedKey

_PARKED: Final = "parked"
_BLOCKED: Final = {
    "ordering_key": "the key",
    "reason": "out (being handled), backoff (waits for its retry) or parked",
    "waiting": "messages that have no turn before this is over",
    "position": "of its first message",
    "failures": "of its first message",
    "age_seconds": "since its first message was published",
    "head_of_line_seconds": "since its first message was first delivered",
}


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    verbs = add_noun(nouns, "keys", "which keys of a subscription wait, and what to do about those that are parked")
    _verb(verbs, "blocked", _blocked, "list the keys that wait for their first message, and why", _BLOCKED)
    _verb(verbs, _PARKED, _parked, "list the keys that are parked: their first message failed too often", _BLOCKED)

    fields = {"ordering_key": "the key", "resumed": "true"}
    told = "try keys again that are parked or wait for a retry, as if nothing had failed"
    verb = _verb(verbs, "resume", _resume, told, fields)
    verb.add_argument("key", metavar="KEY", nargs="*", default=[], help="more than one for several")
    verb.add_argument("--all", action="store_true", help="all that are parked")

    fields = {"ordering_key": "the key", "skipped": "the id of the message"}
    verb = _verb(verbs, "skip", _skip, "give up the first message of keys that are parked or wait for a retry", fields)
    verb.add_argument("key", metavar="KEY", nargs="+", help="more than one for several")


def _verb(verbs: Verbs, name: str, run: Run, text: str, fields: dict[str, str]) -> Command:
    verb = add_verb(verbs, name, run, text, fields=fields)
    verb.add_argument("subscription", metavar="SUBSCRIPTION", help="its name")
    add_target(verb)
    return verb


def _blocked(given: argparse.Namespace) -> int:
    with connected(given) as pubsub:
        return _list(given, pubsub.subscription(given.subscription).blocked_keys().result())


def _parked(given: argparse.Namespace) -> int:
    with connected(given) as pubsub:
        found = pubsub.subscription(given.subscription).blocked_keys().result()
    return _list(given, [key for key in found if key.reason == _PARKED])


def _list(given: argparse.Namespace, found: list[BlockedKey]) -> int:
    if given.json:
        for key in found:
            print_json(asdict(key))
    else:
        print_table(
            ("key", "why", "waiting", "position", "failures", "age", "blocked for"),
            [
                (
                    key.ordering_key,
                    key.reason,
                    key.waiting,
                    key.position,
                    key.failures,
                    f"{key.age_seconds:.1f} s",
                    f"{key.head_of_line_seconds:.1f} s",
                )
                for key in found
            ],
        )
    return DONE


def _resume(given: argparse.Namespace) -> int:
    if bool(given.key) == given.all:
        raise InvalidArgument("resume: name keys, or give --all")
    with connected(given) as pubsub:
        subscription = pubsub.subscription(given.subscription)
        keys: list[str] = given.key
        if given.all:
            keys = [key.ordering_key for key in subscription.blocked_keys().result() if key.reason == _PARKED]
        for key in keys:
            try:
                subscription.resume_key(key).result()
            except KeyNotBlocked:
                if given.all:  # somebody was faster, and the others are still parked
                    continue
                raise
            if given.json:
                print_json({"ordering_key": key, "resumed": True})
            else:
                print(f"resumed {visible(key)}")
    return DONE


def _skip(given: argparse.Namespace) -> int:
    with connected(given) as pubsub:
        subscription = pubsub.subscription(given.subscription)
        for key in given.key:
            message = subscription.skip(key).result()
            if given.json:
                print_json({"ordering_key": key, "skipped": message})
            else:
                print(f"skipped {message} of {visible(key)}")
    return DONE
