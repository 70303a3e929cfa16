"""What reading and writing by columns need of this server: a broker on disk, and Arrow."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from inorder.broker import MessageQueue
from inorder.errors import FailedPrecondition
from inorder.server.status import absent


def folder_of(broker: MessageQueue) -> Path:
    """The folder of a broker."""
    if broker.folder is None:
        raise FailedPrecondition("this broker keeps nothing on disk, and only that can be read and written by columns")
    if find_spec("pyarrow") is None:
        raise absent("This server has no pyarrow, which reading and writing by columns need: pip install pyarrow.")
    return broker.folder
