"""A protocol buffer definition: compiled by protoc, then kept as descriptors, so that nobody compiles it again.

protoc runs as a process of its own: its complaints come as text, and a definition that takes it too long or brings
it down does so there. Everything of Google's is imported by the first who uses it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from inorder.server.schemas.mismatch import Mismatch

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

COMPILE_SECONDS = 30  # a definition of 300 KB takes a second
FILE = "schema.proto"

_NO_ERROR = re.compile(r"^[WI]\d{4} |^WARNING: |warning: ")  # what protoc says beside


def compile_text(definition: str) -> tuple[bytes, str]:
    """A definition's FileDescriptorSet and the full name of its one message; a Mismatch says what is wrong."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with TemporaryDirectory(prefix="inorder-schema-") as folder:
        compiled = Path(folder, "compiled")
        Path(folder, FILE).write_text(definition, encoding="utf-8")
        command = [sys.executable, "-I", "-m", "grpc_tools.protoc", f"--proto_path={folder}"]
        try:
            run = subprocess.run(
                [*command, f"--descriptor_set_out={compiled}", FILE],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMPILE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise Mismatch(f"the definition does not compile within {COMPILE_SECONDS} s") from None
        if run.returncode:
            raise Mismatch(_complaint(run.stderr.decode(errors="replace"), folder))
        descriptors = FileDescriptorSet.FromString(compiled.read_bytes())
    (file,) = descriptors.file
    return descriptors.SerializeToString(), _only_message(file)


def _complaint(stderr: str, folder: str) -> str:
    lines = [line.replace(f"{folder}/", "").removeprefix(f"{FILE}:").strip() for line in stderr.splitlines()]
    errors = [line for line in lines if line and not _NO_ERROR.search(line)]
    if any(line.endswith("was not found or had errors.") for line in errors):
        return f"imports are not supported: {errors[-1]}"
    return "; ".join(errors[:5]) or "protoc refused it without a reason"


def _only_message(file: FileDescriptorProto) -> str:
    if file.dependency:
        raise Mismatch(f"imports are not supported: {file.dependency[0]!r}")
    if file.service:
        raise Mismatch(f"a service ({file.service[0].name}) has no place in a schema")
    if file.extension:
        raise Mismatch(f"a top-level extension ({file.extension[0].name}) has no place in a schema")
    names = [message.name for message in file.message_type]
    if len(names) != 1:
        raise Mismatch(f"exactly one top-level message is needed, not {len(names)}: {', '.join(names) or 'none'}")
    return f"{file.package}.{names[0]}" if file.package else names[0]


class ProtobufType:
    """One message type out of compiled descriptors, and what is asked of it."""

    def __init__(self, descriptors: bytes, root: str) -> None:
        """A Mismatch says why these are no descriptors, or have no such message."""
        from google.protobuf import descriptor_pool, message_factory
        from google.protobuf.message import DecodeError

        pool = descriptor_pool.DescriptorPool()
        try:
            for file in _in_order(descriptors):
                pool.Add(file)
            self._descriptor = pool.FindMessageTypeByName(root.removeprefix("."))
        except DecodeError:
            raise Mismatch("the compiled bytes are no FileDescriptorSet") from None
        except KeyError:
            raise Mismatch(f"there is no message {root!r} in the descriptors") from None
        except TypeError as error:
            raise Mismatch(f"the descriptors cannot be used: {error}") from None
        self._message = message_factory.GetMessageClass(self._descriptor)

    def json_check(self) -> Callable[[bytes], None]:
        """A function that raises a Mismatch unless the bytes are the message in JSON."""
        from google.protobuf import json_format

        message = self._message

        def check(data: bytes) -> None:
            parsed = message()
            try:
                text = data.decode()
                if not text.lstrip().startswith("{"):  # an empty list passes for a message, too
                    raise Mismatch(f"expected a JSON object, not {_short(text, 40)!r}")
                json_format.Parse(text, parsed)
            except UnicodeDecodeError as error:
                raise Mismatch(f"not UTF-8 at byte {error.start}") from None
            except (json_format.Error, ValueError, TypeError, AttributeError, RecursionError) as error:
                raise Mismatch(_short(str(error))) from None
            _check_initialized(parsed)

        return check

    def binary_check(self) -> Callable[[bytes], None]:
        """A function that raises a Mismatch unless the bytes are the message, without fields that it does not have."""
        from google.protobuf.message import DecodeError

        message = self._message

        def check(data: bytes) -> None:
            parsed = message()
            try:
                parsed.MergeFromString(data)
            except DecodeError as error:
                raise Mismatch(_short(str(error))) from None
            _check_initialized(parsed)
            # Almost any bytes are a message of unknown fields: then a schema would promise nothing.
            size = parsed.ByteSize()
            parsed.DiscardUnknownFields()
            if parsed.ByteSize() != size:
                raise Mismatch("the data has fields that the message does not have")

        return check

    def check_successor(self, later: ProtobufType) -> None:
        """Raise a Mismatch unless a revision that follows this one only adds or removes optional fields."""
        _check_successor(self._descriptor, later._descriptor, set())


def _in_order(descriptors: bytes) -> list[Any]:
    """The files, each after those that it imports."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    files: FileDescriptorSet = FileDescriptorSet.FromString(descriptors)
    left = {file.name: file for file in files.file}
    ordered: list[Any] = []
    while left:
        ready = [file for file in left.values() if not any(name in left for name in file.dependency)]
        if not ready:
            raise Mismatch(f"the descriptors import each other: {', '.join(sorted(left))}")
        for file in ready:
            ordered.append(file)
            del left[file.name]
    return ordered


def _check_initialized(parsed: Any) -> None:
    if not parsed.IsInitialized():
        raise Mismatch(f"required fields are missing: {', '.join(parsed.FindInitializationErrors())}")


def _check_successor(before: Any, after: Any, seen: set[str]) -> None:
    if before.full_name in seen:
        return
    seen.add(before.full_name)
    old, new = ({field.number: field for field in message.fields} for message in (before, after))
    names = {field.name: field.number for field in after.fields}
    for number in sorted({*old, *new}):
        was, becomes = old.get(number), new.get(number)
        if was is None or becomes is None:
            field: Any = was or becomes
            if field.is_required:
                raise Mismatch(f"{field.full_name}: a required field can be neither added nor removed")
            if was is not None and was.name in names:
                raise Mismatch(f"{was.full_name}: its number cannot change from {number} to {names[was.name]}")
            continue
        if _shape(was) != _shape(becomes):
            raise Mismatch(f"{was.full_name}: field {number} cannot change from {_shape(was)} to {_shape(becomes)}")
        if was.message_type is not None:
            _check_successor(was.message_type, becomes.message_type, seen)


def _shape(field: Any) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    label = "repeated " if field.is_repeated else "required " if field.is_required else ""
    named = field.message_type or field.enum_type
    type_ = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower() if named is None else named.name
    return f"{label}{type_} {field.name}"


def _short(text: str, limit: int = 300) -> str:
    line = " ".join(text[: 2 * limit].split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."
