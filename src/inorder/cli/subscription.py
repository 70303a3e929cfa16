"""`inorder subscription`: create subscriptions, look at them, change and delete them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from inorder.cli.asking import add_yes, agreed
from inorder.cli.exits import DONE, NO
from inorder.cli.flags import add_flags, given_options
from inorder.cli.looking import Standing, looking
from inorder.cli.showing import options_text, print_json, print_note, print_pairs, print_table, topic_of, utc
from inorder.cli.targets import add_target, connected
from inorder.cli.verbs import Command, Run, Verbs, add_noun, add_verb
from inorder.cli.wording import counted, duration
from inorder.client.pubsub import PubSub
from inorder.errors import InvalidArgument, PermissionDenied
from inorder.metadata import SubscriptionMetadata
from inorder.options import SubscriptionOptions

_SUBSCRIPTION: Final = {
    "subscription": "its name",
    "topic": "of which it gets the messages",
    "created": "in UTC",
    "detached": "whether nothing will come any more",
    "topic_deleted": "because its topic was deleted",
    "options": "by their names in Python",
}
_STANDING: Final = {
    "backlog_messages": "that wait to be acked",
    "parked_keys": "that wait for somebody to resume or skip them",
    "outstanding_messages": "that are out; this and the rest is known of a broker that runs, and else null",
    "oldest_unacked_seconds": "age of the oldest message that waits",
    "blocked_keys": "whose first message keeps others waiting",
    "head_of_line_seconds": "of the key that has been blocked longest",
    "counters": "what has happened so far",
}


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    verbs = add_noun(nouns, "subscription", "create subscriptions, look at them, change and delete them")

    text = "create a subscription, which gets what is published from now on"
    verb = _verb(verbs, "create", _create, text, _SUBSCRIPTION)
    verb.add_argument("topic", metavar="TOPIC", help="of which it gets the messages")
    add_flags(verb, SubscriptionOptions)

    text = "list all subscriptions; works beside the broker that owns a folder"
    verb = add_verb(verbs, "list", _list, text, fields=_SUBSCRIPTION)
    verb.add_argument("--topic", help="only those of this topic")
    add_target(verb)

    text = "show a subscription and what waits in it; works beside the broker that owns a folder"
    _verb(verbs, "show", _show, text, {**_SUBSCRIPTION, **_STANDING})

    verb = _verb(verbs, "update", _update, "change options; what is not given stays as it is", _SUBSCRIPTION)
    add_flags(verb, SubscriptionOptions)

    text = "delete a subscription and all that waits in it"
    add_yes(_verb(verbs, "delete", _delete, text, {"subscription": "its name", "deleted": "true"}))


def _verb(verbs: Verbs, name: str, run: Run, text: str, fields: dict[str, str]) -> Command:
    verb = add_verb(verbs, name, run, text, fields=fields)
    verb.add_argument("subscription", metavar="SUBSCRIPTION", help="its name")
    add_target(verb)
    return verb


def _create(given: argparse.Namespace) -> int:
    options = _told_source(given.subscription, given_options(given, SubscriptionOptions))
    with connected(given) as pubsub:
        subscription = pubsub.topic(given.topic).subscription(given.subscription)
        created = subscription.create(**options).result().metadata().result()
        _note_missing_topic(pubsub, created)
    return _tell(given, created, f"created subscription {given.subscription} of topic {given.topic}")


def _update(given: argparse.Namespace) -> int:
    with connected(given) as pubsub:
        subscription = pubsub.subscription(given.subscription)
        current = subscription.metadata().result().options
        changes = given_options(given, SubscriptionOptions, current)
        if not changes:
            raise InvalidArgument("no option to change was given; --help lists them")
        subscription.set_options(**_told_source(given.subscription, changes)).result()
        updated = subscription.metadata().result()
        _note_missing_topic(pubsub, updated)
    return _tell(given, updated, f"updated subscription {given.subscription}")


def _note_missing_topic(pubsub: PubSub, subscription: SubscriptionMetadata) -> None:
    """Of dead letters. It may be created later, or its name be misspelt."""
    policy = subscription.options.dead_letter_policy
    if policy is None:
        return
    with suppress(PermissionDenied):  # who may not look at it has got what was asked for all the same
        if not pubsub.topic(policy.dead_letter_topic).exists().result():
            print_note(
                f"topic {policy.dead_letter_topic} does not exist: until it does, dead letters stay and are retried"
            )


def _told_source(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Dead letters tell where they came from, or `inorder dead-letters` could not tell it either."""
    policy = options.get("dead_letter_policy")
    if policy is not None and "source" not in policy:
        policy["source"] = name
    return options


def _list(given: argparse.Namespace) -> int:
    with looking(given) as look:
        if given.topic is not None:
            look.topic(given.topic)  # which must exist
        found = look.subscriptions(given.topic)
    if given.json:
        for subscription in found:
            print_json(_plain(subscription))
    else:
        print_table(
            ("subscription", "topic", "ordered", "ack deadline", "dead letters", "poison"),
            [
                (
                    one.name,
                    topic_of(one),
                    "yes" if one.options.enable_message_ordering else "no",
                    duration(one.options.ack_deadline_seconds),
                    "" if (policy := one.options.dead_letter_policy) is None else policy.dead_letter_topic,
                    one.options.on_poison,
                )
                for one in found
            ],
        )
    return DONE


def _show(given: argparse.Namespace) -> int:
    with looking(given) as look:
        subscription = look.subscription(given.subscription)
        standing = look.standing(given.subscription)
    if given.json:
        print_json({**_plain(subscription), **asdict(standing)})
    else:
        print_pairs(_told(subscription, standing))
    return DONE


def _told(subscription: SubscriptionMetadata, standing: Standing) -> Iterator[tuple[str, str]]:
    yield "subscription", subscription.name
    yield "topic", topic_of(subscription)
    yield "created", utc(subscription.created)
    yield "options", options_text(subscription.options)
    yield "backlog", counted(standing.backlog_messages, "message")
    yield "parked", counted(standing.parked_keys, "key")
    if standing.outstanding_messages is not None:
        yield "out", counted(standing.outstanding_messages, "message")
    if standing.oldest_unacked_seconds:
        yield "oldest", f"{standing.oldest_unacked_seconds:.1f} s"
    if standing.blocked_keys:
        yield "blocked", f"{counted(standing.blocked_keys, 'key')}, for up to {standing.head_of_line_seconds:.1f} s"
    if standing.counters is not None:
        yield "so far", ", ".join(f"{count:,} {name}" for name, count in asdict(standing.counters).items() if count)


def _delete(given: argparse.Namespace) -> int:
    with connected(given) as pubsub:
        subscription = pubsub.subscription(given.subscription)
        subscription.metadata().result()  # it must exist
        if not agreed(given, f"Delete subscription {given.subscription} and all that waits in it?"):
            return NO
        subscription.delete().result()
    if given.json:
        print_json({"subscription": given.subscription, "deleted": True})
    else:
        print(f"deleted subscription {given.subscription}")
    return DONE


def _tell(given: argparse.Namespace, subscription: SubscriptionMetadata, sentence: str) -> int:
    if given.json:
        print_json(_plain(subscription))
    else:
        print(sentence)
    return DONE


def _plain(subscription: SubscriptionMetadata) -> dict[str, Any]:
    return {
        "subscription": subscription.name,
        "topic": subscription.topic,
        "created": utc(subscription.created),
        "detached": subscription.detached,
        "topic_deleted": subscription.topic_deleted,
        "options": asdict(subscription.options),
    }
