"""docs/cli.md: every command, option, field and exit code, written from the code. `make reference` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from inorder.cli.commands import parser
from inorder.cli.exits import MEANING
from inorder.cli.targets import VARIABLE
from inorder.cli.tree import Argument, Node, tree

_BEGIN = f"""\
# The command line

Written by `make reference` from the code; a test compares.

```bash
export {VARIABLE}=file:./data
inorder topic create orders
inorder subscription create billing orders --enable-message-ordering
inorder publish orders 'first' 'second' --ordering-key customer-7
inorder tail orders
inorder pull billing --max 10 --ack
```

## The target

Every command that works on a broker takes `--target`, and else `{VARIABLE}` of the environment:

| target | what it is |
|---|---|
| `file:FOLDER` | a broker in a folder, which one process owns at a time; a second one is told who that is |
| `grpc://HOST:PORT` | a server, as `inorder serve` starts it |

Options stand behind a `?`, as in `file:./data?journal=sqlite`, which a folder needs whose journal is in SQLite, or
`'grpc://host:8085?project=shop'`: [those of a folder](guide.md#on-disk), [those of a server](client.md#the-address). A
server that cannot be reached is given up after 10 seconds, unless `timeout` says otherwise. `memory:` is refused: it
would end with the command. Only `inorder topic create` and `inorder bench` make a folder that is not there. `list` and
`show` of topics and subscriptions, `tail` and `dead-letters list` read a folder beside its owner, and show what is
durable; whatever changes something, `pull`, `seek` and `keys` need the folder for themselves.

## What it prints

`--json` prints one JSON object a line, with the fields that are listed with each command. Without it, tables and
sentences are for people and may change. Colours and progress bars are only for terminals; `NO_COLOR` turns colours off.
Errors go to standard error: a line that says what is wrong, and one that says what to do next, if that is known.

## Exit codes

| code | meaning |
|---|---|
"""


def page() -> str:
    """The whole page."""
    lines = [f"| {code} | {meaning} |" for code, meaning in MEANING.items()]
    root = tree(parser())
    lines += ["", "## Commands", "", "| command | what it does |", "|---|---|"]
    for node in root.walk():
        if node.path and not node.children:
            lines.append(f"| [`{_name(node)}`](#{_anchor(node)}) | {_cell(node.help)} |")
    for node in root.walk():
        if node.path and (node.more or not node.children):
            lines += _section(node)
    return _BEGIN + "\n".join(lines) + "\n"


def _section(node: Node) -> Iterator[str]:
    yield from ("", f"### {_name(node)}", "", node.description.strip(), "")
    if not node.children:
        yield from ("```text", _usage(node), "```")
    arguments = [*node.words, *(option for option in node.options if "--help" not in option.names)]
    if arguments:
        yield from ("", "| argument | what it is |", "|---|---|")
        yield from (f"| `{_cell(_shown(argument))}` | {_cell(argument.text)} |" for argument in arguments)
    if node.fields:
        yield from ("", "| field of `--json` | what it is |", "|---|---|")
        yield from (f"| `{name}` | {_cell(text)} |" for name, text in node.fields.items())
    if node.more:
        yield from ("", "```text", node.more.strip("\n"), "```")


def _usage(node: Node) -> str:
    words = [
        (word.metavar if word.required else f"[{word.metavar}]") + (" ..." if word.many else "") for word in node.words
    ]
    required = [f"{option.names[-1]} {option.metavar}" for option in node.options if option.required]
    one_of = [
        f"({' | '.join(f'{option.names[-1]} {option.metavar}'.strip() for option in group)})" for group in node.one_of
    ]
    return " ".join([_name(node), *words, *required, *one_of, "[OPTION ...]"])


def _shown(argument: Argument) -> str:
    if not argument.names:
        return argument.metavar
    value = f" {argument.metavar}" if argument.metavar else ""
    return ", ".join(argument.names) + value


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _name(node: Node) -> str:
    return " ".join(("inorder", *node.path))


def _anchor(node: Node) -> str:
    return "-".join(("inorder", *node.path))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
