"""What Publish asks of the schemas, a batch at a time, and what a topic says about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inorder.message import Batch
from inorder.server.schemas.book import DELETED_SCHEMA, SchemaBook, SchemaSettings, plain_name, schema_attributes
from inorder.server.schemas.definition import checked_encoding


def settings_of(described: Any) -> SchemaSettings:
    """The settings of a topic as google.pubsub.v1 describes them; `SchemaBook.check_settings` knows if they can be."""
    return SchemaSettings(
        described.schema if described.schema == DELETED_SCHEMA else plain_name(described.schema),
        checked_encoding(described.encoding),
        described.first_revision_id,
        described.last_revision_id,
    )


def fitting(book: SchemaBook, settings: SchemaSettings, batch: Batch) -> Batch:
    """The batch, each message with the revision that it fits; MessageRefused for the first one that fits none."""
    keys, data, attributes, sizes = batch
    revisions = [book.check_message(settings, one) for one in data]
    added = {revision_id: schema_attributes(settings, revision_id) for revision_id in {*revisions}}
    widths = {revision_id: _width(own) for revision_id, own in added.items()}
    marked: list[Mapping[str, str] | None] = []
    grown: list[int] = []
    for revision_id, own, size in zip(revisions, attributes, sizes, strict=True):
        more = added[revision_id]
        grown.append(size + widths[revision_id])
        if not own:
            marked.append(more)
            continue
        marked.append({**own, **more})
        if not own.keys().isdisjoint(more):  # it was published before, perhaps to another topic
            grown[-1] -= _width({name: own[name] for name in own.keys() & more.keys()})
    return keys, data, marked, grown


def _width(attributes: Mapping[str, str]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())
