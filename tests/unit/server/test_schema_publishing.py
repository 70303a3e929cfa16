"""A batch that is published to a topic with a schema."""

import pytest
from google.pubsub_v1.types import SchemaSettings as Described

from inorder.errors import FailedPrecondition, InvalidArgument, NotFound
from inorder.message import Message, batch_of
from inorder.server.schemas.book import DELETED_SCHEMA, MessageRefused, SchemaBook, SchemaSettings, schema_attributes
from inorder.server.schemas.definition import Encoding, SchemaType, compile_definition
from inorder.server.schemas.publishing import fitting, settings_of

NAME = "projects/p/schemas/numbers"
SETTINGS = SchemaSettings(NAME, Encoding.JSON)


@pytest.fixture
def book() -> SchemaBook:
    book = SchemaBook()
    book.put(NAME, book.create("projects/p", "numbers", compile_definition(SchemaType.AVRO, '"int"'), 1, 1))
    return book


def test_each_message_carries_its_revision_and_counts_for_it(book: SchemaBook) -> None:
    batch = batch_of([Message(b"1"), Message(b"2", {"color": "réd"}, "key")])
    keys, data, attributes, sizes = fitting(book, SETTINGS, batch)
    mark = schema_attributes(SETTINGS, book.get(NAME).latest.revision_id)
    assert list(keys) == ["", "key"]
    assert list(data) == [b"1", b"2"]
    assert list(attributes) == [mark, {"color": "réd", **mark}]
    width = sum(len(name) + len(value) for name, value in mark.items())
    assert list(sizes) == [size + width for size in batch[3]]


def test_a_message_that_was_published_before_is_marked_anew(book: SchemaBook) -> None:
    mark = schema_attributes(SETTINGS, book.get(NAME).latest.revision_id)
    plain = fitting(book, SETTINGS, batch_of([Message(b"1")]))
    old = {**mark, "googclient_schemaname": "projects/p/schemas/other-numbers"}
    width = sum(len(name) + len(value) for name, value in old.items())
    again = fitting(book, SETTINGS, ([""], [b"1"], [old], [1 + width]))
    assert (list(again[2]), list(again[3])) == (list(plain[2]), list(plain[3]))


def test_one_that_does_not_fit_refuses_the_batch(book: SchemaBook) -> None:
    with pytest.raises(MessageRefused, match="expected an integer"):
        fitting(book, SETTINGS, batch_of([Message(b"1"), Message(b'"2"')]))


def test_settings_are_read_as_google_describes_them() -> None:
    described = Described(schema=NAME, encoding=2, first_revision_id="0123abcd")
    assert settings_of(Described.pb(described)) == SchemaSettings(NAME, Encoding.BINARY, "0123abcd")
    gone = settings_of(Described.pb(Described(schema=DELETED_SCHEMA, encoding=1)))
    with pytest.raises(NotFound):
        SchemaBook().check_settings(gone)
    with pytest.raises(FailedPrecondition, match="was deleted"):
        fitting(SchemaBook(), gone, batch_of([Message(b"1")]))
    for wrong in (Described(schema=NAME), Described(schema="numbers", encoding=1), Described()):
        with pytest.raises(InvalidArgument):
            settings_of(Described.pb(wrong))
