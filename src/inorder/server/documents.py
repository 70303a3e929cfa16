"""Where the server keeps what is no message: small documents by kind and name.

Schemas and policies change seldom and are read whole when the server starts. So this is all they ask of a place.
"""

from collections.abc import Awaitable, Mapping
from typing import Protocol

from inorder.pending import Pending


class Documents(Protocol):
    """Bytes by kind and name. What was awaited survives."""

    def load(self, kind: str) -> Mapping[str, bytes]:
        """All documents of a kind, by name."""

    def put(self, kind: str, name: str, document: bytes | None) -> Awaitable[None]:
        """Replace a document, or delete it (None); done when that is durable."""


class MemoryDocuments:
    """Documents that end with the process."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, bytes]] = {}

    def load(self, kind: str) -> Mapping[str, bytes]:
        return dict(self._kinds.get(kind, {}))

    def put(self, kind: str, name: str, document: bytes | None) -> Awaitable[None]:
        documents = self._kinds.setdefault(kind, {})
        if document is None:
            documents.pop(name, None)
        else:
            documents[name] = document
        return Pending.of(None)
