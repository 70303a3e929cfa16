"""The commands as they are declared: what completion and the reference are made of."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from inorder.cli.verbs import Command


class Argument(NamedTuple):
    """What can be given to a command: a word of its place, or an option."""

    names: tuple[str, ...]  # of an option; none for a word
    metavar: str  # what stands for its value; "" if it has none
    choices: tuple[str, ...]
    text: str
    required: bool
    many: bool
    is_path: bool


class Node(NamedTuple):
    """A command, with those below it."""

    path: tuple[str, ...]  # its words, without the program's
    help: str  # as it is listed
    description: str
    more: str
    words: Sequence[Argument]
    options: Sequence[Argument]
    one_of: Sequence[Sequence[Argument]]  # options of which one must be given
    fields: Mapping[str, str]
    children: Sequence[Node]

    def walk(self) -> Iterator[Node]:
        """This one, and all below, in the order in which they were declared."""
        yield self
        for child in self.children:
            yield from child.walk()


def tree(parser: argparse.ArgumentParser, path: tuple[str, ...] = (), text: str = "") -> Node:
    """What a parser understands."""
    words, options, children = [], [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            children = [tree(child, (*path, name), texts[name]) for name, child in action.choices.items()]
        elif action.option_strings:
            options.append(_argument(parser, action))
        else:
            words.append(_argument(parser, action))
    return Node(
        path=path,
        help=text,
        description=parser.description or "",
        more=parser.epilog or "",
        words=words,
        options=options,
        one_of=[
            [_argument(parser, action) for action in group._group_actions]
            for group in parser._mutually_exclusive_groups
            if group.required
        ],
        fields=parser.fields if isinstance(parser, Command) else {},
        children=children,
    )


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> Argument:
    choices = tuple(str(choice) for choice in action.choices or ())
    metavar = "" if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction) else _metavar(action)
    return Argument(
        names=tuple(action.option_strings),
        metavar=metavar,
        choices=choices,
        text=parser._get_formatter()._expand_help(action) if action.help else "",
        required=action.required and action.nargs not in ("*", "?"),
        many=action.nargs in ("*", "+") or isinstance(action, argparse._AppendAction),
        is_path=metavar in ("FILE", "FOLDER", "SOURCE"),
    )


def _metavar(action: argparse.Action) -> str:
    if action.choices and action.metavar is None:
        return "|".join(str(choice) for choice in action.choices)
    return str(action.metavar or action.dest.upper())
