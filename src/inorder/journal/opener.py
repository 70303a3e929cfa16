"""Opens the journal in a folder, of the kind that is asked for."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path
from typing import Literal

from inorder.errors import InvalidArgument, JournalFailed
from inorder.journal import Store
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.layout import no_folder
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.options import check_choice

JournalKind = Literal["segments", "sqlite"]


def open_journal(folder: str | Path, kind: JournalKind = "segments") -> Journal:
    """The journal in a folder, which is made if it is missing. One owner at a time."""
    check_choice("journal", kind, JournalKind)
    if str(folder).startswith("file:"):  # else it would be the name of a new folder
        raise InvalidArgument(f"folder: a path, not {str(folder)!r}: such an address is for PubSub")
    if not str(folder):  # as of a variable that is not set; for Python it is the folder where the program was started
        raise InvalidArgument("folder: a path, not ''")
    try:
        place = Folder(Path(folder))
    except OSError as error:
        if isfile(folder):
            raise no_folder(folder) from None
        raise JournalFailed("create", str(folder), error) from error
    except ValueError as error:
        raise InvalidArgument(f"folder: {str(folder)!r} cannot be the name of one: {error}") from None
    store: Store = SegmentStore(place) if kind == "segments" else SqliteStore(place)
    return Journal(store)
