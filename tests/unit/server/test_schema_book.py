"""The book of schemas: revisions, their ids and ranges, and what it refuses."""

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import (
    AlreadyExists,
    FailedPrecondition,
    ForeignState,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from inorder.server.schemas.book import (
    DELETED_SCHEMA,
    MAX_REVISIONS,
    MessageRefused,
    Schema,
    SchemaBook,
    SchemaSettings,
    plain_name,
    schema_attributes,
    split_name,
)
from inorder.server.schemas.definition import Definition, Encoding, SchemaType, compile_definition

NAME = "projects/p/schemas/orders"


def revised(number: int) -> Definition:
    """A record with that many fields, each of which has a default."""
    fields = [{"name": f"f{index}", "type": "int", "default": 0} for index in range(number)]
    return compile_definition(SchemaType.AVRO, json.dumps({"type": "record", "name": "R", "fields": fields}))


def message(number: int) -> bytes:
    """One that fits `revised(number)` and no other."""
    return json.dumps({f"f{index}": index for index in range(number)}).encode()


def book_of(revisions: int, salt: int = 7) -> SchemaBook:
    book = SchemaBook()
    book.put(NAME, book.create("projects/p", "orders", revised(1), salt, now_us=1))
    for number in range(2, revisions + 1):
        book.put(NAME, book.commit(NAME, revised(number), now_us=number))
    return book


def ids_of(book: SchemaBook) -> list[str]:
    return [revision.revision_id for revision in book.get(NAME).revisions]


def settings(first: str = "", last: str = "") -> SchemaSettings:
    return SchemaSettings(NAME, Encoding.JSON, first, last)


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1))
def test_a_revision_id_is_eight_digits_and_tells_its_number(salt: int, issued: int) -> None:
    schema = Schema(NAME, SchemaType.AVRO, salt, issued - 1, ()).followed_by(revised(1), 0)
    assert re.fullmatch("[0-9a-f]{8}", schema.latest.revision_id)
    assert schema.number_of(schema.latest.revision_id) == issued


def test_a_schema_is_there_once_it_is_put() -> None:
    book = SchemaBook()
    created = book.create("projects/p", "orders", revised(1), salt=1, now_us=5)
    assert NAME not in book
    book.put(NAME, created)
    assert book.get(NAME).latest.created_us == 5
    with pytest.raises(AlreadyExists, match="Schema already exists"):
        book.create("projects/p", "orders", revised(1), salt=2, now_us=6)
    book.put(NAME, None)
    with pytest.raises(NotFound, match=r"Resource not found \(resource=orders\)"):
        book.get(NAME)


@pytest.mark.parametrize("schema_id", ["", "ab", "1abc", "a b c", "a/b", "google-one", "a" * 256, "orders@00000000"])
def test_a_name_is_refused(schema_id: str) -> None:
    with pytest.raises(InvalidArgument, match="Invalid resource name given"):
        SchemaBook().create("projects/p", schema_id, revised(1), salt=1, now_us=1)


@pytest.mark.parametrize("parent", ["", "p", "projects/", "projects/p/", "projects/p/schemas/x"])
def test_a_parent_is_refused(parent: str) -> None:
    with pytest.raises(InvalidArgument, match="Expected projects/PROJECT"):
        SchemaBook().create(parent, "orders", revised(1), salt=1, now_us=1)


def test_a_name_may_end_with_a_revision() -> None:
    assert split_name(NAME) == (NAME, "")
    assert split_name(f"{NAME}@0123abcd") == (NAME, "0123abcd")
    for wrong in (f"{NAME}@", f"{NAME}@xyz", f"{NAME}@0123ABCD", f"{NAME}@0123abcd@0123abcd", "orders", f"{NAME}/x"):
        with pytest.raises(InvalidArgument):
            split_name(wrong)
    with pytest.raises(InvalidArgument, match="without a revision"):
        plain_name(f"{NAME}@0123abcd")


def test_a_commit_keeps_the_type_and_stays_readable() -> None:
    book = book_of(1)
    with pytest.raises(InvalidArgument, match="keeps the type of its schema, AVRO, not PROTOCOL_BUFFER"):
        book.commit(NAME, Definition(SchemaType.PROTOCOL_BUFFER, "", b"", "A"), now_us=2)
    with pytest.raises(InvalidArgument, match="incompatible with the revision before it"):
        book.commit(NAME, compile_definition(SchemaType.AVRO, '"int"'), now_us=2)
    with pytest.raises(NotFound):
        book.commit("projects/p/schemas/other", revised(1), now_us=2)


def test_there_are_twenty_revisions_at_most() -> None:
    book = book_of(MAX_REVISIONS)
    assert len(set(ids_of(book))) == MAX_REVISIONS
    for one_more in (lambda: book.commit(NAME, revised(30), 9), lambda: book.rollback(NAME, ids_of(book)[0], 9)):
        with pytest.raises(ResourceExhausted, match="has 20 revisions"):
            one_more()
    book.put(NAME, book.get(NAME).without(ids_of(book)[3]))
    book.put(NAME, book.commit(NAME, revised(30), now_us=9))
    assert book.get(NAME).latest.number == MAX_REVISIONS + 1


def test_a_rollback_is_a_new_revision_with_an_old_definition() -> None:
    book = book_of(3)
    first = ids_of(book)[0]
    book.put(NAME, book.rollback(NAME, first, now_us=9))
    latest = book.get(NAME).latest
    assert latest.definition == revised(1)
    assert latest.revision_id not in ids_of(book)[:-1]
    assert latest.created_us == 9
    with pytest.raises(NotFound, match="orders@00000000"):
        book.rollback(NAME, "00000000", now_us=10)


def test_the_last_revision_is_not_deleted() -> None:
    book = book_of(2)
    first, second = ids_of(book)
    book.put(NAME, book.get(NAME).without(second))
    with pytest.raises(NotFound):
        book.get(NAME).without(second)
    with pytest.raises(FailedPrecondition, match="the only one left"):
        book.get(NAME).without(first)


def test_schemas_come_in_pages_by_name_and_project() -> None:
    book = SchemaBook()
    for schema_id in ("ccc", "aaa", "bbb"):
        for project in ("p", "q"):
            schema = book.create(f"projects/{project}", schema_id, revised(1), 1, 1)
            book.put(schema.name, schema)
    first, token = book.page("projects/p", 2, "")
    second, end = book.page("projects/p", 2, token)
    assert [schema.name.rsplit("/", 1)[-1] for schema in (*first, *second)] == ["aaa", "bbb", "ccc"]
    assert end == ""
    assert book.page("projects/p", 3, "")[1] == ""
    assert book.page("projects/none", 0, "") == ([], "")
    with pytest.raises(InvalidArgument, match="page_size"):
        book.page("projects/p", -1, "")


def test_revisions_come_in_pages_the_newest_first() -> None:
    book = book_of(5)
    seen, token = [], ""
    while True:
        revisions, token = book.revision_page(NAME, 2, token)
        seen += [revision.number for revision in revisions]
        if not token:
            break
        book.put(NAME, book.get(NAME).without(token))  # a page goes on where it was, even if that is deleted
    assert seen == [5, 4, 3, 2, 1]
    with pytest.raises(InvalidArgument, match="page_token"):
        book.revision_page(NAME, 2, "nonsense")


def test_a_message_fits_the_newest_revision_of_the_range() -> None:
    book = book_of(4)
    ids = ids_of(book)
    for number in range(1, 5):
        assert book.check_message(settings(), message(number)) == ids[number - 1]
    both_ends = settings(ids[1], ids[2])
    assert book.check_message(both_ends, message(2)) == ids[1]
    assert book.check_message(both_ends, message(3)) == ids[2]
    for number in (1, 4):
        with pytest.raises(MessageRefused):
            book.check_message(both_ends, message(number))
    book.put(NAME, book.rollback(NAME, ids[0], now_us=9))
    assert book.check_message(settings(), message(1)) == ids_of(book)[-1]


def test_a_range_holds_when_its_ends_are_deleted() -> None:
    book = book_of(4)
    ids = ids_of(book)
    for gone in (ids[0], ids[3]):
        book.put(NAME, book.get(NAME).without(gone))
    ends = settings(ids[0], ids[3])
    book.check_settings(ends)
    assert book.check_message(ends, message(2)) == ids[1]
    with pytest.raises(MessageRefused):
        book.check_message(ends, message(4))
    book.put(NAME, book.commit(NAME, revised(4), now_us=9))
    with pytest.raises(MessageRefused):
        book.check_message(ends, message(4))
    with pytest.raises(FailedPrecondition, match="no revision is left"):
        book.check_message(settings(ids[3], ids[3]), message(4))


def test_a_refusal_says_why_as_google_does() -> None:
    book = book_of(1)
    with pytest.raises(MessageRefused) as refused:
        book.check_message(settings(), b'{"f0": "x"}')
    error = refused.value
    assert str(error).startswith("Invalid data in message: Message failed schema validation.")
    assert 'f0: expected an integer (int), not a string "x"' in str(error)
    assert error.reason == "INVALID_JSON_AVRO_MESSAGE"
    assert error.metadata["message"] == "Message failed schema validation"
    assert (
        f"for schema: {NAME}, last checked revision: revision_id={ids_of(book)[0]} failed"
        in (error.metadata["revisionInfo"])
    )


def test_a_message_carries_the_revision_that_it_fits() -> None:
    assert schema_attributes(settings(), "0123abcd") == {
        "googclient_schemaname": NAME,
        "googclient_schemaencoding": "JSON",
        "googclient_schemarevisionid": "0123abcd",
    }


def test_settings_are_checked_when_they_are_made() -> None:
    book = book_of(2)
    first, second = ids_of(book)
    book.check_settings(settings(first, second))
    with pytest.raises(InvalidArgument, match="is newer than"):
        book.check_settings(settings(second, first))
    with pytest.raises(NotFound):
        book.check_settings(settings("00000000"))
    with pytest.raises(NotFound):
        book.check_settings(SchemaSettings("projects/p/schemas/none", Encoding.JSON))


def test_nothing_is_published_when_the_schema_is_gone() -> None:
    book = book_of(1)
    book.check_message(settings(), message(1))
    book.put(NAME, None)
    with pytest.raises(NotFound):
        book.check_message(settings(), message(1))
    with pytest.raises(FailedPrecondition, match="the schema of the topic was deleted"):
        book.check_message(SchemaSettings(DELETED_SCHEMA, Encoding.JSON), message(1))


def test_a_book_is_the_same_after_storage() -> None:
    book = book_of(3, salt=2**32 - 1)
    protobuf = compile_definition(SchemaType.PROTOCOL_BUFFER, 'syntax = "proto3"; message A { string x = 1; }')
    other = book.create("projects/p", "other", protobuf, salt=3, now_us=4)
    book.put(other.name, other)
    book.put(NAME, book.get(NAME).without(ids_of(book)[1]))
    again = SchemaBook({name: book.get(name).encode() for name in (NAME, other.name)})
    assert again.get(NAME) == book.get(NAME)
    assert again.get(other.name) == other
    assert again.check_message(SchemaSettings(other.name, Encoding.BINARY), b"\n\x01a") == other.latest.revision_id


@pytest.mark.parametrize("stored", [b"", b"{}", b"[]", b'{"format": 2}', b'{"format": 1, "type": "XML"}'])
def test_damaged_storage_is_an_error_that_names_the_schema(stored: bytes) -> None:
    with pytest.raises(ForeignState, match=NAME):
        SchemaBook({NAME: stored})


def test_checks_are_made_once() -> None:
    class Counted(Definition):
        def check(self, encoding: Encoding) -> Callable[[bytes], None]:
            made.append(encoding)
            return super().check(encoding)

    made: list[Encoding] = []
    book = SchemaBook()
    book.put(NAME, book.create("projects/p", "orders", Counted(SchemaType.AVRO, revised(1).text), 1, 1))
    for _ in range(3):
        book.check_message(settings(), message(1))
        book.check_message(settings(ids_of(book)[0]), message(1))
    assert made == [Encoding.JSON]
