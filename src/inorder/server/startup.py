"""A file, in TOML, of topics and subscriptions that a server creates when it starts, unless they are there.

Fields have the names of google.pubsub.v1, durations are seconds, and a name without a project is in the server's own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from inorder.broker import MessageQueue
from inorder.errors import InvalidArgument
from inorder.server.names import Names
from inorder.server.resources import (
    Proto,
    Subscription,
    Topic,
    push_target,
    subscription_options,
    topic_options,
    topic_schema,
)
from inorder.server.status import Refusal

_DURATIONS = ("message_retention_duration", "minimum_backoff", "maximum_backoff", "ttl")
_NAMES = {"topic": "topics", "dead_letter_topic": "topics", "schema": "schemas"}  # fields that name other resources
_WINDOW = "max_outstanding_per_key"  # the broker's own; Google's have no word for it


def create(path: Path, broker: MessageQueue, names: Names, *, window: int, push_anywhere: bool = False) -> None:
    """Create what the file names. What is there already stays as it is."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no TOML, or numbers and lists in lists beyond what Python takes
        raise InvalidArgument(f"{path}: {error}") from None
    if unknown := sorted(set(tables) - {"topics", "subscriptions"}):
        raise InvalidArgument(f"{path}: [[topics]] and [[subscriptions]], not {unknown[0]!r}")
    _each(path, tables, "topics", names, lambda table: _create_topic(table, broker, names))
    _each(
        path,
        tables,
        "subscriptions",
        names,
        lambda table: _create_subscription(table, broker, names, window, push_anywhere),
    )


def _each(
    path: Path, tables: Mapping[str, Any], kind: str, names: Names, make: Callable[[dict[str, Any]], None]
) -> None:
    found = tables.get(kind, [])
    if not isinstance(found, list) or not all(isinstance(table, dict) for table in found):
        raise InvalidArgument(f"{path}: write [[{kind}]], once for each")
    seen: set[object] = set()
    for number, table in enumerate(found, start=1):
        try:
            name = _full(table.get("name"), kind, names)
            if name in seen:  # it would be taken for one that is there already, whatever it says
                raise InvalidArgument("name: one before it has the same")
            seen.add(name)
            make({**table, "name": name})
        except (Refusal, InvalidArgument, json_format.ParseError) as error:
            raise InvalidArgument(f"{path}, {kind} {number} ({table.get('name', 'no name')}): {error}") from None


def _create_topic(table: dict[str, Any], broker: MessageQueue, names: Names) -> None:
    topic = _read(table, Topic(), names)
    name = names.new("topics", topic.name)
    options = topic_options(topic)
    topic_schema(options)  # refuses what is none; it need not be there yet
    if not broker.topic_exists(name):
        broker.register_topic(name, options)


def _create_subscription(
    table: dict[str, Any], broker: MessageQueue, names: Names, window: int, push_anywhere: bool
) -> None:
    own_window = table.pop(_WINDOW, None)
    if "topic" not in table:
        raise InvalidArgument("topic: say of which one it gets the messages")
    subscription = _read(table, Subscription(), names)
    name, topic = names.new("subscriptions", subscription.name), names.topic(subscription.topic)
    if broker.subscription_exists(name):
        return
    options = subscription_options(subscription, names, window=window, push_anywhere=push_anywhere)
    if own_window is not None:
        if push_target(options) is not None and own_window != 1:
            raise InvalidArgument(f"{_WINDOW}: 1, as this subscription is pushed, not {own_window!r}")
        options = replace(options, max_outstanding_per_key=own_window)
    if not broker.topic_exists(topic):
        raise InvalidArgument(f"topic {subscription.topic!r} is not there")
    broker.register_subscription(name, topic, options)


def _read(table: dict[str, Any], resource: Proto, names: Names) -> Proto:
    return json_format.ParseDict(_as_json(table, names), resource)


def _as_json(table: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """The same in the JSON of protobuf, whose durations are texts, and with names in full."""
    read: dict[str, Any] = {}
    for field, value in table.items():
        if isinstance(value, dict) and field != "labels":
            read[field] = _as_json(value, names)
        elif field in _DURATIONS and isinstance(value, int | float):
            read[field] = f"{value}s"
        elif field in _NAMES:
            read[field] = _full(value, _NAMES[field], names)
        else:
            read[field] = value
    return read


def _full(name: object, collection: str, names: Names) -> object:
    if not isinstance(name, str):
        raise InvalidArgument(f"name: a text, not {name!r}")
    return name if "/" in name else f"projects/{names.project}/{collection}/{name}"
