"""Requests from paths, parameters and JSON, and JSON from answers, by the rules of protobuf for JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from string import ascii_letters, digits, whitespace
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from google.protobuf import json_format
from google.rpc import status_pb2

from inorder.protocol.facts import DETAILS
from inorder.server.rest.routes import WHOLE, Route
from inorder.server.status import invalid

Proto: TypeAlias = Any  # a message of protobuf, which has no types

# Parameters of all of Google's APIs, which are not fields of a request; others of them begin with a dollar.
_SYSTEM = {
    *("access_token", "alt", "callback", "fields", "key", "oauth_token"),
    *("prettyPrint", "quotaUser", "uploadType", "upload_protocol"),
}

# Base 64 in either alphabet, and where its lines end. protobuf's parser skips all else, and takes what is left.
_BASE64 = f"{ascii_letters}{digits}+/-_{whitespace}".encode()
_BASE64_END = f"={whitespace}".encode()


def request_of(route: Route, kind: Any, query: Iterable[tuple[str, str]], body: bytes) -> bytes:
    """What is asked for: a message of this kind, as gRPC would bring it."""
    request = kind()
    own = [(name, value) for name, value in query if name not in _SYSTEM and not name.startswith("$")]
    try:
        if route.body == WHOLE:
            if own:
                raise ValueError(f"{own[0][0]!r} is a parameter, and belongs into the body, which is the whole request")
            _parse(body, request)
        else:
            json_format.ParseDict(_tree(request.DESCRIPTOR, own), request)
            if route.body:
                _parse(body, getattr(request, route.body))
    except (json_format.Error, ValueError, RecursionError) as error:
        raise invalid(f"The request is not valid JSON for {request.DESCRIPTOR.full_name}: {error}") from None
    *parents, last = route.field.split(".")
    holder = request
    for parent in parents:
        holder = getattr(holder, parent)
    setattr(holder, last, route.value)
    raw: bytes = request.SerializeToString()
    return raw


def _parse(body: bytes, message: Proto) -> None:
    if body.strip():
        text = body.decode()
        json_format.Parse(text, message)
        _check_bytes(message.DESCRIPTOR, json.loads(text), message.DESCRIPTOR.name)


def _check_bytes(descriptor: Any, tree: Any, path: str) -> None:
    """Refuse what would not be the bytes that were meant: text that somebody forgot to encode, for instance."""
    if not isinstance(tree, dict):
        raise ValueError(f"{path}: an object is expected")
    fields = _bytes_or_messages(descriptor)
    for name, value in tree.items():
        field = fields.get(name)
        if field is None:
            continue
        if field.type == field.TYPE_BYTES:
            if isinstance(value, str) and value.encode().rstrip(_BASE64_END).translate(None, _BASE64):
                raise ValueError(f"{path}.{name}: this is no base 64: {value[:40]!r}")
        elif isinstance(value, dict):
            _check_bytes(field.message_type, value, f"{path}.{name}")
        elif isinstance(value, list):
            for number, one in enumerate(value):
                _check_bytes(field.message_type, one, f"{path}.{name}[{number}]")


@cache
def _bytes_or_messages(descriptor: Any) -> Mapping[str, Any]:
    """Those fields of a message, by both spellings of their names, but maps, which are of text here."""
    messages = [one for one in descriptor.fields if one.message_type and not one.message_type.GetOptions().map_entry]
    found = [one for one in descriptor.fields if one.type == one.TYPE_BYTES] + messages
    return {name: field for field in found for name in (field.name, field.camelcase_name)}


def _tree(descriptor: Any, parameters: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Parameters as the JSON of a message: `options.version=3` is a field of a field."""
    tree: dict[str, Any] = {}
    for name, value in parameters:
        *parents, last = name.split(".")
        fields, branch = descriptor, tree
        for parent in parents:
            field = _field(fields, parent)
            fields, branch = getattr(field, "message_type", None), branch.setdefault(parent, {})
            if not isinstance(branch, dict):
                raise ValueError(f"{parent!r} has a value, and so no field for {name!r}")
        field = _field(fields, last)
        known: Any = value
        if field is not None and field.type == field.TYPE_BOOL:
            known = {"true": True, "false": False}.get(value, value)
        if field is not None and field.is_repeated:
            branch.setdefault(last, []).append(known)
        else:
            branch[last] = known
    return tree


def _field(descriptor: Any, name: str) -> Any:
    """The field with this name, in either spelling; None if there is none, of which json_format complains later."""
    if descriptor is None:
        return None
    return descriptor.fields_by_camelcase_name.get(name) or descriptor.fields_by_name.get(name)


def json_of(kind: Any, raw: bytes, enums_as_numbers: bool) -> bytes:
    """An answer, a message of this kind."""
    return _dumped(json_format.MessageToDict(kind.FromString(raw), use_integers_for_enums=enums_as_numbers))


def parameters_of(query: str) -> list[tuple[str, str]]:
    return parse_qsl(query, keep_blank_values=True)


def wants_numbers(query: Iterable[tuple[str, str]]) -> bool:
    """Whether enums are to be numbers."""
    return any(name in ("alt", "$alt") and "enum-encoding=int" in value for name, value in query)


def error_of(http: int, status: str, text: str, metadata: Iterable[tuple[str, bytes]] = ()) -> bytes:
    """What went wrong, in the form of all of Google's APIs."""
    error: dict[str, Any] = {"code": http, "message": text, "status": status}
    for name, value in metadata:
        if name == DETAILS:
            with suppress(TypeError):  # of a kind that nobody here knows
                details = status_pb2.Status.FromString(value).details
                error["details"] = [json_format.MessageToDict(detail) for detail in details]
    return _dumped({"error": error})


def _dumped(tree: object) -> bytes:
    # What is told of a request may have half a character of it.
    return json.dumps(tree, indent=2, ensure_ascii=False).encode(errors="replace") + b"\n"
