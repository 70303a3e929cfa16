"""Every option has a flag, and every flag is explained."""

from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest

from inorder.cli.commands import parser
from inorder.cli.flags import HELP, flags_of
from inorder.cli.tree import tree
from inorder.options import ALIASES, SubscriptionOptions, TopicOptions

COMMANDS = {
    ("topic", "create"): TopicOptions,
    ("subscription", "create"): SubscriptionOptions,
    ("subscription", "update"): SubscriptionOptions,
}


def options_of(cls: Any) -> list[str]:
    """All options, by a way of its own."""
    found = []
    for field in fields(cls):
        found.append(field.name)
        for kind in (get_type_hints(cls)[field.name], *get_args(get_type_hints(cls)[field.name])):
            if is_dataclass(kind):
                found += [f"{field.name}.{part.name}" for part in fields(kind)]
    return sorted(found)


@pytest.mark.parametrize("cls", [TopicOptions, SubscriptionOptions])
def test_no_option_is_missing(cls: type) -> None:
    assert sorted(".".join(flag.path) for flag in flags_of(cls)) == options_of(cls) == sorted(HELP[cls])


@pytest.mark.parametrize(("path", "cls"), COMMANDS.items(), ids=lambda value: str(value))
def test_each_option_is_a_flag_of_the_command(path: tuple[str, ...], cls: type) -> None:
    [node] = [node for node in tree(parser()).walk() if node.path == path]
    names = {name for option in node.options for name in option.names}
    for flag in flags_of(cls):
        expected = f"--no-{flag.path[0].replace('_', '-')}" if is_dataclass(flag.kind) else flag.name
        assert expected in names
    for alias in ALIASES.get(cls, ()):
        assert f"--{alias.replace('_', '-')}" in names


def test_a_part_of_an_option_has_a_short_name() -> None:
    names = {flag.path: flag.name for flag in flags_of(SubscriptionOptions)}
    assert names["retry_policy", "minimum_backoff"] == "--retry-minimum-backoff"
    assert names["dead_letter_policy", "dead_letter_topic"] == "--dead-letter-topic"
    assert names["flow_control", "max_bytes"] == "--flow-control-max-bytes"
    assert len(set(names.values())) == len(names)
