"""`inorder topic`: create topics, look at them, delete them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any, Final

from inorder.cli.asking import add_yes, agreed
from inorder.cli.exits import DONE, NO
from inorder.cli.flags import add_flags, given_options
from inorder.cli.looking import looking
from inorder.cli.showing import options_text, print_json, print_pairs, print_table, utc
from inorder.cli.targets import add_target, connected
from inorder.cli.verbs import Command, Run, Verbs, add_noun, add_verb
from inorder.cli.wording import counted, duration
from inorder.metadata import TopicMetadata
from inorder.options import TopicOptions, build, check_name

_TOPIC: Final = {
    "topic": "its name",
    "created": "in UTC",
    "published": "messages so far, and so the position of the next",
    "options": "by their names in Python",
}


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    verbs = add_noun(nouns, "topic", "create topics, look at them, delete them")

    verb = _verb(verbs, "create", _create, "create a topic; the folder of the target too, if there is none", _TOPIC)
    add_flags(verb, TopicOptions)

    text = "list all topics; works beside the broker that owns a folder"
    add_target(add_verb(verbs, "list", _list, text, fields=_TOPIC))

    fields = {**_TOPIC, "subscriptions": "their names"}
    _verb(verbs, "show", _show, "show a topic; works beside the broker that owns a folder", fields)

    text = "delete a topic and its messages; its subscriptions stay, detached"
    add_yes(_verb(verbs, "delete", _delete, text, {"topic": "its name", "deleted": "true"}))


def _verb(verbs: Verbs, name: str, run: Run, text: str, fields: dict[str, str]) -> Command:
    verb = add_verb(verbs, name, run, text, fields=fields)
    verb.add_argument("topic", metavar="TOPIC", help="its name")
    add_target(verb)
    return verb


def _create(given: argparse.Namespace) -> int:
    options = given_options(given, TopicOptions)
    check_name("topic", given.topic)  # what is refused must not leave a new folder behind
    build(TopicOptions, options)
    with connected(given, create=True) as pubsub:
        topic = pubsub.topic(given.topic).create(**options).result()
        created = topic.metadata().result()
    if given.json:
        print_json(_plain(created))
    else:
        print(f"created topic {given.topic}")
    return DONE


def _list(given: argparse.Namespace) -> int:
    with looking(given) as look:
        found = look.topics()
    if given.json:
        for topic in found:
            print_json(_plain(topic))
    else:
        print_table(
            ("topic", "published", "created (UTC)", "retention"),
            [(topic.name, topic.published, f"{topic.created:%Y-%m-%d %H:%M:%S}", _retention(topic)) for topic in found],
        )
    return DONE


def _show(given: argparse.Namespace) -> int:
    with looking(given) as look:
        topic = look.topic(given.topic)
        names = [subscription.name for subscription in look.subscriptions(given.topic)]
    if given.json:
        print_json({**_plain(topic), "subscriptions": names})
    else:
        print_pairs(
            [
                ("topic", topic.name),
                ("created", utc(topic.created)),
                ("published", counted(topic.published, "message")),
                ("retention", _retention(topic)),
                ("options", options_text(topic.options)),
                ("subscriptions", ", ".join(names)),
            ]
        )
    return DONE


def _delete(given: argparse.Namespace) -> int:
    with connected(given) as pubsub:
        topic = pubsub.topic(given.topic)
        messages = counted(topic.metadata().result().published, "message")
        if not agreed(given, f"Delete topic {given.topic}, to which {messages} were published?"):
            return NO
        topic.delete().result()
    if given.json:
        print_json({"topic": given.topic, "deleted": True})
    else:
        print(f"deleted topic {given.topic}")
    return DONE


def _plain(topic: TopicMetadata) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "created": utc(topic.created),
        "published": topic.published,
        "options": asdict(topic.options),
    }


def _retention(topic: TopicMetadata) -> str:
    kept = topic.options.message_retention_duration
    return "until acked" if kept is None else duration(kept)
