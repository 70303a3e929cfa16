"""How a command is declared: its line of help, what it runs, and what its JSON holds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Run: TypeAlias = Callable[[argparse.Namespace], int]
Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class Command(argparse.ArgumentParser):
    """A parser that also knows the fields of its command's JSON; none: the command has no `--json`."""

    fields: Mapping[str, str] = {}
    _apart = False  # while options and arguments are looked at one after the other

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Where there may be any number of arguments, options may stand before, between and behind them.

        What is not known is refused here, as the usage of this command says what is; that of the program does not.
        """
        if self._apart:
            return super().parse_known_args(args, namespace)
        self._apart = True
        try:
            many = any(action.nargs in ("*", "+") for action in self._get_positional_actions())
            parse = self.parse_known_intermixed_args if many else super().parse_known_args
            found, unknown = parse(args, namespace)
        finally:
            self._apart = False
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def add_noun(nouns: Verbs, name: str, text: str, *, more: str = "") -> Verbs:
    """A command that has commands of its own; `more` is said below them."""
    noun = nouns.add_parser(
        name,
        help=text,
        description=_sentence(text),
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return noun.add_subparsers(title="commands", metavar="COMMAND", required=True)


def add_verb(
    verbs: Verbs, name: str, run: Run, text: str, *, fields: Mapping[str, str] | None = None, more: str = ""
) -> Command:
    """A command that does something; `more` is said below its options."""
    verb = verbs.add_parser(
        name,
        help=text,
        description=_sentence(text),
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    assert isinstance(verb, Command)
    verb.set_defaults(run=run)
    if fields is not None:
        verb.fields = fields
        verb.add_argument("--json", action="store_true", help="one JSON object a line")
    return verb


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
