"""A folder of small files and Arrow tables, on any file system that pyarrow reaches. A file is there whole or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.ipc as ipc
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem

from inorder.errors import StateDamaged

_AS_ARROW_SAYS = {"s3a": "s3", "s3n": "s3"}  # what Hadoop calls otherwise
_UNFINISHED = "~"  # in the name of a file


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
        try:
            with self._files.open_input_stream(self._path(name)) as file:
                return json.loads(file.read())
        except (OSError, ValueError) as error:
            raise StateDamaged(self.uri, f"{name} cannot be read: {error}") from error

    def write_json(self, name: str, value: Any) -> None:
        data = json.dumps(value, indent=1, ensure_ascii=False).encode()
        self._write(name, lambda file: file.write(data))

    def read_table(self, name: str) -> pa.Table:
        """A table; on a local disk only what is touched of it is read."""
        path = self._path(name)
        try:
            file = pa.memory_map(path) if self._is_local else self._files.open_input_file(path)
            return ipc.open_file(file).read_all()
        except (OSError, pa.ArrowException) as error:
            raise StateDamaged(self.uri, f"{name} cannot be read: {error}") from error

    def read_schema(self, name: str) -> pa.Schema:
        """Of a table, without reading it."""
        try:
            with self._files.open_input_file(self._path(name)) as file:
                return ipc.open_file(file).schema
        except (OSError, pa.ArrowException) as error:
            raise StateDamaged(self.uri, f"{name} cannot be read: {error}") from error

    def write_table(self, name: str, table: pa.Table) -> None:
        def write(file: Any) -> None:
            with ipc.new_file(file, table.schema) as writer:
                writer.write_table(table.combine_chunks())  # in one piece, so that it is found by index

        self._write(name, write)

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
            self._files.delete_dir(self._path(name))

    def _list(self, name: str) -> list[FileInfo]:
        found = self._files.get_file_info(FileSelector(self._path(name), allow_not_found=True))
        return [info for info in found if info.type == FileType.File]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _write(self, name: str, write: Any) -> None:
        path = self._path(name)
        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        # A local file gets its name when it is whole. Elsewhere a file appears when it is closed.
        written = f"{path}{_UNFINISHED}{uuid4().hex}" if self._is_local else path
        with self._files.open_output_stream(written) as file:
            write(file)
        if self._is_local:
            self._files.move(written, path)


def _opened(uri: str) -> tuple[FileSystem, str]:
    scheme, colon, rest = uri.partition(":")
    if not colon or scheme == "file" or len(scheme) == 1:
        path = uri.removeprefix("file:")
        path = path.removeprefix("//") if path.startswith("///") else path
        return LocalFileSystem(), str(Path(path).absolute())
    opened: tuple[FileSystem, str] = FileSystem.from_uri(f"{_AS_ARROW_SAYS.get(scheme, scheme)}:{rest}")
    return opened
