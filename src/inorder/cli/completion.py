"""`inorder completion`: a script that lets a shell complete commands, options and their values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from shlex import quote
from typing import Final

from inorder.cli.commands import parser
from inorder.cli.exits import DONE
from inorder.cli.tree import Argument, Node, tree
from inorder.cli.verbs import Verbs, add_verb

_MORE: Final = """\
  bash   source <(inorder completion bash)                                          in ~/.bashrc
  zsh    source <(inorder completion zsh)                                           in ~/.zshrc, behind compinit
  fish   inorder completion fish > ~/.config/fish/completions/inorder.fish
"""


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    text = "print a script that lets a shell complete commands, options and their values"
    verb = add_verb(nouns, "completion", _completion, text, more=_MORE)
    verb.add_argument("shell", choices=list(_SCRIPTS), help="for which it is")


def _completion(given: argparse.Namespace) -> int:
    print(_SCRIPTS[given.shell](tree(parser())), end="")
    return DONE


def _name(path: tuple[str, ...]) -> str:
    return " ".join(("inorder", *path))


def _values(node: Node) -> Iterator[tuple[Argument, str]]:
    """Each option that has a value, under each of its names."""
    for option in node.options:
        if option.metavar:
            yield from ((option, name) for name in option.names)


def _offered(node: Node) -> Iterator[tuple[str, str]]:
    """What may come next, with its line of help."""
    for child in node.children:
        yield child.path[-1], child.help
    for word in node.words:
        yield from ((choice, "") for choice in word.choices)
    for option in node.options:
        yield from ((name, option.text) for name in option.names)


# -- bash ------------------------------------------------------------------------------------------


def _bash(root: Node) -> str:
    nodes = [*root.walk()]
    commands = "|".join(quote(_name(node.path)) for node in nodes if node.path)
    values, words = [], []
    for node in nodes:
        for option, name in _values(node):
            values.append(f"        {quote(f'{_name(node.path)} {name}')}) {_bash_values(option)}; return ;;")
        offered = " ".join(word for word, _ in _offered(node))
        words.append(f"        {quote(_name(node.path))}) words={quote(offered)} ;;")
    lines = "\n".join
    return f"""\
# Completion of inorder for bash, made by `inorder completion bash`.
_inorder() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" path=inorder words= word
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$path $word" in
            {commands}) path="$path $word" ;;
        esac
    done
    case "$path $previous" in
{lines(values)}
    esac
    case "$path" in
{lines(words)}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _inorder inorder
"""


def _bash_values(option: Argument) -> str:
    if option.choices:
        return f'COMPREPLY=($(compgen -W {quote(" ".join(option.choices))} -- "$current"))'
    return 'COMPREPLY=($(compgen -f -- "$current"))' if option.is_path else "COMPREPLY=()"


# -- zsh -------------------------------------------------------------------------------------------


def _zsh(root: Node) -> str:
    nodes = [*root.walk()]
    commands = "|".join(quote(_name(node.path)) for node in nodes if node.path)
    values, offers = [], []
    for node in nodes:
        for option, name in _values(node):
            values.append(f"        {quote(f'{_name(node.path)} {name}')}) {_zsh_values(option)}; return ;;")
        offered = " ".join(quote(f"{word.replace(':', chr(92) + ':')}:{text}") for word, text in _offered(node))
        files = " && _files" if any(word.is_path for word in node.words) else ""
        offers.append(f"        {quote(_name(node.path))}) offered=({offered}){files} ;;")
    lines = "\n".join
    return f"""\
#compdef inorder
# Completion of inorder for zsh, made by `inorder completion zsh`.
_inorder() {{
    local path_so_far=inorder word previous="${{words[CURRENT-1]}}"
    local -a offered
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$path_so_far $word" in
            {commands}) path_so_far="$path_so_far $word" ;;
        esac
    done
    case "$path_so_far $previous" in
{lines(values)}
    esac
    case "$path_so_far" in
{lines(offers)}
    esac
    _describe inorder offered
}}
compdef _inorder inorder
"""


def _zsh_values(option: Argument) -> str:
    if option.choices:
        return f"compadd -- {' '.join(map(quote, option.choices))}"
    return "_files" if option.is_path else "_message value"


# -- fish ------------------------------------------------------------------------------------------


def _fish(root: Node) -> str:
    nodes = [*root.walk()]
    known = " ".join(quote(_name(node.path)) for node in nodes if node.path)
    lines = [
        "# Completion of inorder for fish, made by `inorder completion fish`.",
        "function __inorder_at",
        "    set -l path inorder",
        "    for word in (commandline -opc)[2..]",
        f'        if contains -- "$path $word" {known}',
        '            set path "$path $word"',
        "        end",
        "    end",
        '    test "$path" = "$argv"',
        "end",
        "complete -c inorder -f",
    ]
    for node in nodes:
        at = f"complete -c inorder -n {quote(f'__inorder_at {_name(node.path)}')}"
        lines += [f"{at} -a {quote(child.path[-1])} -d {_fish_text(child.help)}" for child in node.children]
        for word in node.words:
            if word.choices:
                lines.append(f"{at} -a {quote(' '.join(word.choices))}")
            elif word.is_path:
                lines.append(f"{at} -F")
        lines += [f"{at} {_fish_option(option)}" for option in node.options]
    return "\n".join(lines) + "\n"


def _fish_option(option: Argument) -> str:
    names = [f"-l {quote(name[2:])}" if name.startswith("--") else f"-s {quote(name[1:])}" for name in option.names]
    value = ""
    if option.metavar:
        value = f" -x -a {quote(' '.join(option.choices))}" if option.choices else " -r -F" if option.is_path else " -x"
    return f"{' '.join(names)}{value} -d {_fish_text(option.text)}"


def _fish_text(text: str) -> str:
    """In the quotes of fish, within which only these two need a backslash."""
    escaped = re.sub(r"([\\'])", r"\\\1", text)
    return f"'{escaped}'"


_SCRIPTS: Final[Mapping[str, Callable[[Node], str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
