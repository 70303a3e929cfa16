"""Options of topics and subscriptions as JSON, by their names in Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from inorder.errors import InvalidArgument
from inorder.options import POLICIES, SubscriptionOptions, TopicOptions, build

T = TypeVar("T", TopicOptions, SubscriptionOptions)


def to_json(options: TopicOptions | SubscriptionOptions | Mapping[str, Any]) -> str:
    """Options, or changes of them, in which policies and limits may be values or mappings."""
    given = options if isinstance(options, Mapping) else asdict(options)
    return json.dumps(given, default=asdict, separators=(",", ":"), ensure_ascii=False)


def from_json(kind: type[T], text: str) -> T:
    """Options, checked; an empty text asks for nothing in particular."""
    return build(kind, changes_of(text))


def told(kind: type[T], text: str) -> T:
    """Options as a server tells them. A later one may have more: those that are not known here are left out."""
    found = _known(kind, changes_of(text))
    for name, policy in POLICIES.items():
        if isinstance(found.get(name), dict):
            found[name] = _known(policy, found[name])
    return build(kind, found)


def _known(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in given.items() if name in names}


def changes_of(text: str) -> dict[str, Any]:
    """Some options by their names; whether they are right is for whoever puts them beside the others."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"options: not JSON, {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"options: a JSON object, not {text[:100]}")
    return found
