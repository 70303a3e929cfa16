"""JSON into what a handler wants: plain values, a dataclass, or a Pydantic model.

A dataclass is checked as strictly as its annotations say: no text where a number should be, no field missing. Fields
that it does not have are passed over, so that a producer may add some. An annotation that JSON cannot serve (a
datetime, say) is refused when the handler is registered; Pydantic knows how to read those. It is not imported here: a
model is whatever has `model_validate_json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from inorder.errors import InorderError, InvalidArgument, UndecodableEvent

Decode: TypeAlias = Callable[[bytes], Any]
Read: TypeAlias = Callable[[Any, str], Any]  # a JSON value and its place in the event, which errors name

# What data can be the reason for. Anything else, such as what a network raises, may be gone with the next attempt.
_UNFIT = (ValueError, TypeError, ArithmeticError, AssertionError, LookupError, InorderError)
_WRONG = (*_UNFIT, RecursionError)


def decoder(model: Any) -> Decode:
    """How to read the data of a message for a handler that takes `model`; None: as plain JSON."""
    if model is None:
        return decode_json
    if validate := getattr(model, "model_validate_json", None):
        return lambda data: _attempt(lambda: validate(data))
    if not isinstance(model, type) or not is_dataclass(model):
        raise InvalidArgument(f"model: a dataclass, a Pydantic model or None, not {model!r}")
    read = _reader(model, model.__name__, {})
    return lambda data: _attempt(lambda: read(decode_json(data), "event"))


def decode_json(data: bytes) -> Any:
    """The JSON in the data. NaN and the like, which JSON does not have, are refused."""
    return _attempt(lambda: json.loads(data, parse_constant=_no_constant))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _attempt(decode: Callable[[], Any]) -> Any:
    """What is wrong with the data becomes one error; a model's own checks raise what they like."""
    try:
        return decode()
    except UndecodableEvent:
        raise
    except _WRONG as error:
        raise UndecodableEvent(f"the data cannot be decoded: {str(error) or repr(error)}") from error


def _reader(annotation: Any, where: str, known: dict[type[Any], Read]) -> Read:
    """How to read a value of this annotation. `known` has the dataclasses on the way, which may hold themselves."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return lambda value, place: value
    if annotation in (str, bool, int, float, None, NoneType):
        return _scalar(annotation)
    if origin is Literal:
        return _choice(arguments)
    if origin in (Union, UnionType):
        return _first_of([_reader(one, where, known) for one in arguments])
    if (origin is list and len(arguments) == 1) or (origin is tuple and arguments[1:] == (...,)):
        return _array(origin, _reader(arguments[0], where, known))
    if origin is dict and arguments[:1] == (str,):
        return _object(_reader(arguments[1], where, known))
    if annotation in (list, dict):
        return _scalar(annotation)
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _dataclass(annotation, known)
    raise InvalidArgument(f"model: {where} has the type {annotation}, which JSON does not have; use a Pydantic model")


def _scalar(kind: type[Any] | None) -> Read:
    wanted = NoneType if kind is None else kind

    def read(value: Any, place: str) -> Any:
        if type(value) is wanted:
            return value
        if wanted is float and type(value) is int:
            return float(value)
        raise UndecodableEvent(f"{place}: {wanted.__name__} expected, not {value!r}")

    return read


def _choice(choices: tuple[Any, ...]) -> Read:
    def read(value: Any, place: str) -> Any:
        for choice in choices:
            if type(choice) is type(value) and choice == value:
                return choice
        raise UndecodableEvent(f"{place}: one of {', '.join(map(repr, choices))} expected, not {value!r}")

    return read


def _first_of(readers: list[Read]) -> Read:
    def read(value: Any, place: str) -> Any:
        problems: list[str] = []
        for reader in readers:
            try:
                return reader(value, place)
            except _UNFIT as error:  # also what the model itself refuses: the next one may take it
                problems.append(str(error) or repr(error))
        raise UndecodableEvent("; or ".join(problems))

    return read


def _array(kind: type[Any], item: Read) -> Read:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, list):
            raise UndecodableEvent(f"{place}: an array expected, not {value!r}")
        return kind(item(one, f"{place}[{index}]") for index, one in enumerate(value))

    return read


def _object(item: Read) -> Read:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise UndecodableEvent(f"{place}: an object expected, not {value!r}")
        return {key: item(one, f"{place}.{key}") for key, one in value.items()}

    return read


def _dataclass(model: type[Any], known: dict[type[Any], Read]) -> Read:
    if model in known:
        return lambda value, place: known[model](value, place)
    known[model] = lambda value, place: read(value, place)  # for a model that holds itself
    hints = get_type_hints(model)
    taken = [field for field in fields(model) if field.init]
    readers = {field.name: _reader(hints[field.name], f"{model.__name__}.{field.name}", known) for field in taken}
    needed = [field.name for field in taken if field.default is MISSING and field.default_factory is MISSING]

    def read(value: Any, place: str) -> Any:
        if not isinstance(value, Mapping):
            raise UndecodableEvent(f"{place}: an object expected for {model.__name__}, not {value!r}")
        if missing := [name for name in needed if name not in value]:
            raise UndecodableEvent(f"{place}: {model.__name__} needs {', '.join(missing)}")
        return model(
            **{name: reader(value[name], f"{place}.{name}") for name, reader in readers.items() if name in value}
        )

    return read
