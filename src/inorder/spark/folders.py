"""A folder of records and Arrow tables, on any file system that pyarrow reaches. A file is there whole or not.

Each file ends with a checksum of what is before it, so a byte that has changed since is found and never used. On a
local disk a file is on the disk itself, and so is its name, before anybody is told that it was written.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4
from zlib import crc32

import pyarrow as pa
import pyarrow.ipc as ipc
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from inorder.errors import StateDamaged

_AS_ARROW_SAYS = {"s3a": "s3", "s3n": "s3"}  # what Hadoop calls otherwise
_UNFINISHED = "~"  # in the name of a file
_CHECKSUM_BYTES: Final = 9  # a line of its own: eight hexadecimal digits
_MAGIC_BYTES: Final = 8  # with which a file of Arrow begins; its schema is next

_MAX_SOUND: Final = 1_000

_sound: dict[str, tuple[int, ...]] = {}  # local tables that this process has checked, as they were then


class Folder:
    """Names are relative, with slashes. Two that write one file at once must write the same."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._files, self._root = _opened(self.uri)
        self._is_local = isinstance(self._files, LocalFileSystem)

    def __reduce__(self) -> tuple[Any, ...]:
        return Folder, (self.uri,)

    def exists(self, name: str) -> bool:
        return bool(self._files.get_file_info(self._path(name)).type != FileType.NotFound)

    def sizes(self, name: str) -> dict[str, int]:
        """The files in a folder below, with their bytes; of one that is not there, none."""
        return {info.base_name: info.size for info in self._list(name) if _UNFINISHED not in info.base_name}

    def read_json(self, name: str) -> Any:
        """A file of somebody else."""
        return self._parsed(name, self._content(name))

    def read_record(self, name: str) -> Any:
        """What `write_record` wrote."""
        return self._parsed(name, self._checked(name, self._content(name)))

    def write_record(self, name: str, value: Any) -> None:
        self._write(name, json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")

    def read_table(self, name: str) -> pa.Table:
        """A table, or an error if it is not as it was written.

        From a local disk a process reads all of a file once, to check it, and then only what is touched.
        """
        try:
            content = self._mapped(name) if self._is_local else self._checked(name, self._content(name))
            return ipc.open_file(pa.BufferReader(content)).read_all()
        except (OSError, pa.ArrowException) as error:
            raise StateDamaged(self.uri, f"{name} cannot be read: {error}") from error

    def read_schema(self, name: str) -> pa.Schema:
        """Of a table, without reading it."""
        try:
            with self._files.open_input_file(self._path(name)) as file:
                file.seek(_MAGIC_BYTES)
                return ipc.read_schema(file)
        except (OSError, pa.ArrowException) as error:
            raise StateDamaged(self.uri, f"{name} cannot be read: {error}") from error

    def write_table(self, name: str, table: pa.Table) -> None:
        content = pa.BufferOutputStream()
        with ipc.new_file(content, table.schema) as writer:
            writer.write_table(table.combine_chunks())  # in one piece, so that it is found by index
        self._write(name, content.getvalue())

    def delete(self, name: str) -> None:
        """Delete a file, or do nothing if there is none."""
        if self.exists(name):
            self._files.delete_file(self._path(name))

    def tidy(self, name: str) -> None:
        """Delete what was never finished in a folder below, and the folder if nothing else is in it."""
        found = self._list(name)
        for info in found:
            if _UNFINISHED in info.base_name:
                self.delete(f"{name}/{info.base_name}")
        if self._is_local and all(_UNFINISHED in info.base_name for info in found):
            with suppress(FileNotFoundError):  # who was killed right after it begins to tidy once more
                self._files.delete_dir(self._path(name))

    def sync(self, *names: str) -> None:
        """Have files of others on the disk itself, of those that are there; elsewhere than on a local disk they are."""
        found = [path for name in names if self._is_local for path in Path(self._root).glob(name)]
        for path in {*found, *(path.parent for path in found)}:
            _sync(str(path))

    def _list(self, name: str) -> list[FileInfo]:
        found = self._files.get_file_info(FileSelector(self._path(name), allow_not_found=True))
        return [info for info in found if info.type == FileType.File]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _mapped(self, name: str) -> pa.Buffer:
        path = self._path(name)
        with pa.memory_map(path) as file:
            content = file.read_buffer()
        status = os.stat(path)
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if _sound.get(path) == seen:
            return content[:-_CHECKSUM_BYTES]
        content = self._checked(name, content)
        if len(_sound) >= _MAX_SOUND:  # most of them are long gone
            _sound.clear()
        _sound[path] = seen
        return content

    def _content(self, name: str) -> pa.Buffer:
        try:
            with self._files.open_input_file(self._path(name)) as file:
                return file.read_buffer()
        except OSError as error:
            raise StateDamaged(self.uri, f"{name} cannot be read: {error}") from error

    def _checked(self, name: str, content: pa.Buffer) -> pa.Buffer:
        """The same without its checksum, which must be right."""
        end = max(0, content.size - _CHECKSUM_BYTES)
        if content[end:].to_pybytes() != _checksum(content[:end]):
            raise StateDamaged(
                self.uri,
                f"{name} is not as it was written: its checksum is another one; restore it from a copy, or start with "
                "a new checkpoint, from the beginning",
            )
        return content[:end]

    def _parsed(self, name: str, content: pa.Buffer) -> Any:
        try:
            return json.loads(content.to_pybytes())
        except ValueError as error:
            raise StateDamaged(self.uri, f"{name} cannot be read: {error}") from error

    def _write(self, name: str, content: Any) -> None:
        path = self._path(name)
        folder = path.rpartition("/")[0]
        self._files.create_dir(folder, recursive=True)
        if not self._is_local:  # there a file appears when it is closed
            with self._files.open_output_stream(path) as stream:
                stream.write(content)
                stream.write(_checksum(content))
            return
        unfinished = f"{path}{_UNFINISHED}{uuid4().hex}"
        with open(unfinished, "wb") as file:
            file.write(content)
            file.write(_checksum(content))
        _sync(unfinished)
        os.replace(unfinished, path)
        _sync(folder)
        _sync(folder.rpartition("/")[0])  # in which the folder itself may be new


def _checksum(content: Any) -> bytes:
    return b"%08x\n" % crc32(content)


def _sync(path: str) -> None:
    """Have a file or folder on the disk itself, if the system can."""
    # Windows opens no folders, and writes their names through. What its owner has deleted needs nothing.
    with suppress(PermissionError, FileNotFoundError):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def whole(uri: str) -> str:
    """The same for everybody: a relative path starts where this process is, and Spark and its workers may not be."""
    if not _is_local(uri) or _local_path(uri).is_absolute():
        return uri
    return f"{'file:' if uri.startswith('file:') else ''}{_local_path(uri).absolute()}"


def _is_local(uri: str) -> bool:
    scheme, colon, _ = uri.partition(":")
    return not colon or scheme == "file" or len(scheme) == 1


def _local_path(uri: str) -> Path:
    path = uri.removeprefix("file:")
    return Path(path.removeprefix("//") if path.startswith("///") else path)


def _opened(uri: str) -> tuple[FileSystem, str]:
    if _is_local(uri):
        return LocalFileSystem(), str(_local_path(uri).absolute())
    scheme, _, rest = uri.partition(":")
    opened: tuple[FileSystem, str] = FileSystem.from_uri(f"{_AS_ARROW_SAYS.get(scheme, scheme)}:{rest}")
    return opened
