"""Settings of a command from a flag, the environment or a file, in this order, or else by default.

A setting `drain_seconds` is `--drain-seconds`, `INORDER_DRAIN_SECONDS` and, in the file, `drain_seconds`. Each value
knows where it came from.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from os.path import expanduser
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from inorder.cli.targets import path_of
from inorder.errors import InvalidArgument

Value: TypeAlias = str | int | float | bool | Path | None

CONFIG = "config"  # the setting that names the file
PREFIX = "INORDER_"
ALIKE = 0.9  # names that share so much of their letters are one, misspelt; platforms set variables of their own
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One of a command's settings, whose value is of one kind."""

    name: str
    kind: type[str] | type[int] | type[float] | type[bool] | type[Path]
    default: Value
    help: str
    choices: Sequence[str] = ()
    metavar: str | None = None

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.name.upper()}"

    @property
    def of_text(self) -> Callable[[str], Value]:
        """What makes a value of a word."""
        return _path if self.kind is Path else self.kind

    def read(self, text: str) -> Value:
        """A value as it stands in the environment."""
        try:
            value = _WORDS[text.strip().lower()] if self.kind is bool else self.of_text(text)
        except (ValueError, KeyError):
            raise InvalidArgument(f"{_KINDS[self.kind]}, not {text!r}") from None
        return self.checked(value)

    def checked(self, value: object) -> Value:
        """A value as it stands in a file."""
        if self.kind is Path and isinstance(value, str):
            return _path(value)
        if self.kind is float and type(value) is int:
            return float(value)
        if type(value) is not self.kind and not isinstance(value, Path):
            raise InvalidArgument(f"{_KINDS[self.kind]}, not {value!r}")
        if self.choices and value not in self.choices:
            raise InvalidArgument(f"one of {', '.join(self.choices)}, not {value!r}")
        return value


def _path(text: str) -> Path:
    if text.startswith("file:") and "?" in text:
        raise InvalidArgument(f"a path; what stands behind the ? of {text!r} are settings of their own")
    return Path(expanduser(path_of(text)))  # no shell does so in a file, and nobody wants a folder "~"


class Given(NamedTuple):
    """A value, and who gave it: the lower the rank, the more it counts."""

    value: Value
    source: str
    rank: int


FLAG, ENVIRONMENT, FILE, DEFAULT = range(4)


def add_flags(parser: argparse.ArgumentParser, settings: Iterable[Setting]) -> None:
    """One flag for each setting, and one for the file. A flag that is not given leaves no trace."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"settings in TOML, under the names of the flags ({PREFIX}CONFIG)"
    )
    for setting in settings:
        default = "" if setting.default in (None, False) else f" ({setting.default})"
        options: dict[str, Any] = {"help": setting.help + default, "default": argparse.SUPPRESS}
        if setting.kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"type": setting.of_text, "metavar": setting.metavar, "choices": setting.choices or None}
        parser.add_argument(setting.flag, dest=setting.name, **options)


def resolved(
    given: argparse.Namespace, settings: Sequence[Setting], environment: Mapping[str, str]
) -> dict[str, Given]:
    """Each setting by its name."""
    _check_spelling(settings, environment)
    flags = vars(given)
    path = flags.get(CONFIG) or (Path(environment[PREFIX + "CONFIG"]) if environment.get(PREFIX + "CONFIG") else None)
    file = {} if path is None else _file(path, settings)
    found = {}
    for setting in settings:
        name = setting.name
        if name in flags:
            found[name] = Given(flags[name], setting.flag, FLAG)
        elif environment.get(setting.variable, ""):
            found[name] = Given(
                _named(setting.variable, setting.read, environment[setting.variable]), setting.variable, ENVIRONMENT
            )
        elif name in file:
            value = _named(f"{path}, {name}", setting.checked, file[name])
            assert path is not None
            # As whoever wrote the file means it, from wherever the program is started.
            found[name] = Given(path.parent / value if isinstance(value, Path) else value, str(path), FILE)
        else:
            found[name] = Given(setting.default, "default", DEFAULT)
    return found


def _check_spelling(settings: Iterable[Setting], environment: Iterable[str]) -> None:
    """Refuse a variable that nearly has the name of a setting: whoever set it would not get what was asked for."""
    known = {setting.variable for setting in settings} | {PREFIX + "CONFIG"}
    for variable in environment:
        if variable.startswith(PREFIX) and variable not in known:
            for alike in get_close_matches(variable, known, n=1, cutoff=ALIKE):
                raise InvalidArgument(f"{variable} is no setting; {alike} is")


def _named(where: str, read: Any, value: Any) -> Value:
    try:
        result: Value = read(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from None
    return result


def _file(path: Path, settings: Iterable[Setting]) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no TOML, or numbers and lists in lists beyond what Python takes
        raise InvalidArgument(f"{path}: {error}") from None
    known = {setting.name for setting in settings}
    if unknown := sorted(set(table) - known):
        raise InvalidArgument(f"{path}: {unknown[0]!r} is no setting; there are {', '.join(sorted(known))}")
    return table


def shown(values: Mapping[str, Given]) -> list[str]:
    """Each setting as a line of TOML that says where it came from; those without a value as comments."""
    lines = []
    for name, given in values.items():
        if given.value is None:
            lines.append((f"# {name} is not set", given.source))
        else:
            value = str(given.value) if isinstance(given.value, Path) else given.value
            lines.append((f"{name} = {json.dumps(value, ensure_ascii=False)}", given.source))
    width = max(len(text) for text, _ in lines)
    return [f"{text:{width}}  # {source}" for text, source in lines]
