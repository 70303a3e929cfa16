"""google.pubsub.v1.SchemaService by Google's own client."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import (
    AlreadyExists,
    FailedPrecondition,
    GoogleAPICallError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from google.pubsub_v1.types import Encoding, Schema, SchemaView
from google.pubsub_v1.types import schema as types

from inorder.clock import SYSTEM_CLOCK
from inorder.server.documents import MemoryDocuments
from inorder.server.schemas import service
from inorder.server.schemas.book import SchemaBook, SchemaSettings
from inorder.server.schemas.definition import Definition, SchemaType, compile_definition
from inorder.server.schemas.definition import Encoding as OurEncoding
from inorder.server.sqlite_documents import SqliteDocuments

from .admin_server import Clients, serving

PARENT = "projects/shop"
NAME = f"{PARENT}/schemas/state"
AVRO, PROTOBUF = Schema.Type.AVRO, Schema.Type.PROTOCOL_BUFFER
STATE = {
    "type": "record",
    "name": "State",
    "namespace": "geo",
    "fields": [{"name": "name", "type": "string"}, {"name": "post_abbr", "type": "string"}],
}
STATE_PROTO = 'syntax = "proto3"; message State { string name = 1; string post_abbr = 2; }'
ALASKA = b'{"name": "Alaska", "post_abbr": "AK"}'
ALASKA_BINARY = b"\x0cAlaska\x04AK"
ALASKA_PROTO = b"\n\x06Alaska\x12\x02AK"


@pytest.fixture(scope="module")
def served() -> Iterator[Clients]:
    with serving(MemoryDocuments()) as clients:
        yield clients


@pytest.fixture
def clients(served: Clients) -> Clients:
    for schema in served.schemas.list_schemas(parent=PARENT):
        served.schemas.delete_schema(name=schema.name)
    return served


def avro(*more: str) -> str:
    """The definition with more fields, each of which has a default."""
    fields = [*STATE["fields"], *({"name": name, "type": "string", "default": ""} for name in more)]
    return json.dumps({**STATE, "fields": fields})


def create(clients: Clients, definition: str | None = None, type_: Any = AVRO, schema_id: str = "state") -> Schema:
    schema = Schema(name=f"{PARENT}/schemas/{schema_id}", type_=type_, definition=definition or avro())
    return clients.schemas.create_schema(parent=PARENT, schema=schema, schema_id=schema_id)


def commit(clients: Clients, definition: str, type_: Any = AVRO) -> Schema:
    return clients.schemas.commit_schema(name=NAME, schema=Schema(name=NAME, type_=type_, definition=definition))


def test_a_schema_is_created_read_and_deleted(clients: Clients) -> None:
    created = create(clients)
    assert created.name == NAME
    assert created.type_ == AVRO
    assert created.definition == avro()
    assert len(created.revision_id) == 8
    assert created.revision_create_time.timestamp() > 1_500_000_000
    assert clients.schemas.get_schema(name=NAME) == created
    assert clients.schemas.get_schema(name=f"{NAME}@{created.revision_id}") == created
    with pytest.raises(AlreadyExists):
        create(clients)
    clients.schemas.delete_schema(name=NAME)
    with pytest.raises(NotFound):
        clients.schemas.get_schema(name=NAME)
    with pytest.raises(NotFound):
        clients.schemas.delete_schema(name=NAME)


def test_views_leave_the_definition_out_or_not(clients: Clients) -> None:
    create(clients)

    def listed(view: SchemaView) -> str:
        (schema,) = clients.schemas.list_schemas(request={"parent": PARENT, "view": view})
        assert schema.name == NAME
        assert schema.type_ == AVRO
        return schema.definition

    def revisions(view: SchemaView) -> str:
        (schema,) = clients.schemas.list_schema_revisions(request={"name": NAME, "view": view})
        assert len(schema.revision_id) == 8
        return schema.definition

    def got(view: SchemaView) -> str:
        return clients.schemas.get_schema(request={"name": NAME, "view": view}).definition

    for asked in (listed, revisions):
        assert asked(SchemaView.FULL) == avro()
        assert asked(SchemaView.BASIC) == ""
        assert asked(SchemaView.SCHEMA_VIEW_UNSPECIFIED) == ""
    assert got(SchemaView.FULL) == got(SchemaView.SCHEMA_VIEW_UNSPECIFIED) == avro()
    assert got(SchemaView.BASIC) == ""


def test_lists_come_in_pages(clients: Clients) -> None:
    for schema_id in ("one", "two", "three"):
        create(clients, schema_id=schema_id)
    pages = list(clients.schemas.list_schemas(request={"parent": PARENT, "page_size": 2}).pages)
    assert [[schema.name.rsplit("/", 1)[-1] for schema in page.schemas] for page in pages] == [
        ["one", "three"],
        ["two"],
    ]
    assert not list(clients.schemas.list_schemas(parent="projects/other"))
    with pytest.raises(InvalidArgument):
        clients.schemas.list_schemas(parent="shop")


def test_revisions_are_committed_listed_rolled_back_and_deleted(clients: Clients) -> None:
    first = create(clients)
    second = commit(clients, avro("capital"))
    assert second.name == NAME
    assert second.revision_id != first.revision_id
    assert clients.schemas.get_schema(name=NAME) == second
    assert clients.schemas.get_schema(name=f"{NAME}@{first.revision_id}") == first

    third = clients.schemas.rollback_schema(name=NAME, revision_id=first.revision_id)
    assert third.definition == first.definition
    assert third.revision_id not in (first.revision_id, second.revision_id)
    pages = clients.schemas.list_schema_revisions(request={"name": NAME, "view": SchemaView.FULL, "page_size": 2})
    assert list(pages) == [third, second, first]

    assert clients.schemas.delete_schema_revision(name=f"{NAME}@{second.revision_id}", revision_id="") == second
    with pytest.raises(NotFound):
        clients.schemas.get_schema(name=f"{NAME}@{second.revision_id}")
    clients.schemas.delete_schema_revision(name=NAME, revision_id=third.revision_id)  # as older clients say it
    with pytest.raises(FailedPrecondition):
        clients.schemas.delete_schema_revision(name=f"{NAME}@{first.revision_id}", revision_id="")
    assert clients.schemas.get_schema(name=NAME) == first


def test_there_are_twenty_revisions_at_most(clients: Clients) -> None:
    create(clients)
    for _ in range(19):
        commit(clients, avro())
    with pytest.raises(ResourceExhausted, match="has 20 revisions"):
        commit(clients, avro())


REFUSED: dict[str, tuple[Any, type[GoogleAPICallError], str]] = {
    "a definition that is none": (
        lambda c: create(c, "{"),
        InvalidArgument,
        "Invalid avro schema definition: not JSON",
    ),
    "an empty one": (lambda c: create(c, " "), InvalidArgument, "not JSON"),
    "a protobuf that is none": (lambda c: create(c, "x", PROTOBUF), InvalidArgument, "Expected top-level statement"),
    "one that is too long": (lambda c: create(c, " " * 307_201), InvalidArgument, "more than the maximum of 307200"),
    "no type": (lambda c: create(c, type_=0), InvalidArgument, "schema type: PROTOCOL_BUFFER"),
    "a name": (lambda c: create(c, schema_id="goog-state"), InvalidArgument, "Invalid resource name given"),
    "a short name": (lambda c: create(c, schema_id="ab"), InvalidArgument, "3 to 255 characters"),
    "a project": (
        lambda c: c.schemas.create_schema(parent="shop", schema=Schema(), schema_id="state"),
        InvalidArgument,
        "Expected projects/PROJECT",
    ),
    "a commit to nothing": (lambda c: commit(c, avro()), NotFound, "resource=state"),
    "a rollback to nowhere": (
        lambda c: c.schemas.rollback_schema(name=NAME, revision_id=""),
        InvalidArgument,
        "revision_id: say to which",
    ),
    "a rollback of nothing": (
        lambda c: c.schemas.rollback_schema(name=NAME, revision_id="00000000"),
        NotFound,
        "resource=state",
    ),
    "a revision's id": (lambda c: c.schemas.get_schema(name=f"{NAME}@1"), InvalidArgument, "8 hexadecimal digits"),
    "revisions of a revision": (
        lambda c: list(c.schemas.list_schema_revisions(name=f"{NAME}@00000000")),
        InvalidArgument,
        "without a revision",
    ),
    "no revision to delete": (
        lambda c: c.schemas.delete_schema_revision(name=NAME, revision_id=""),
        InvalidArgument,
        "names no revision",
    ),
    "a negative page": (
        lambda c: c.schemas.list_schemas(request={"parent": PARENT, "page_size": -1}),
        InvalidArgument,
        "page_size",
    ),
}


@pytest.mark.parametrize(("call", "error", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused(clients: Clients, call: Any, error: type[GoogleAPICallError], reason: str) -> None:
    with pytest.raises(error) as refused:
        call(clients)
    assert reason in refused.value.message


def test_a_commit_keeps_type_name_and_readability(clients: Clients) -> None:
    create(clients)
    with pytest.raises(InvalidArgument, match="keeps the type"):
        commit(clients, STATE_PROTO, PROTOBUF)
    with pytest.raises(InvalidArgument, match="incompatible with the revision before it: name: "):
        commit(clients, avro().replace('"string"', '"int"'))
    other = Schema(name=f"{PARENT}/schemas/other", type_=AVRO, definition=avro())
    with pytest.raises(InvalidArgument, match="is not the schema"):
        clients.schemas.commit_schema(name=NAME, schema=other)


def test_definitions_are_validated_without_being_kept(clients: Clients) -> None:
    for type_, definition in ((AVRO, avro()), (PROTOBUF, STATE_PROTO)):
        clients.schemas.validate_schema(parent=PARENT, schema=Schema(type_=type_, definition=definition))
        with pytest.raises(InvalidArgument):
            clients.schemas.validate_schema(parent=PARENT, schema=Schema(type_=type_, definition="nonsense"))
    assert not list(clients.schemas.list_schemas(parent=PARENT))


MESSAGES = {
    "Avro, JSON": (AVRO, Encoding.JSON, ALASKA, b'{"name": "Alaska"}', "INVALID_JSON_AVRO_MESSAGE"),
    "Avro, binary": (AVRO, Encoding.BINARY, ALASKA_BINARY, ALASKA_BINARY + b"!", "INVALID_BINARY_AVRO_MESSAGE"),
    "protobuf, JSON": (PROTOBUF, Encoding.JSON, ALASKA, b'{"size": 1}', "INVALID_JSON_PROTO_MESSAGE"),
    "protobuf, binary": (PROTOBUF, Encoding.BINARY, ALASKA_PROTO, ALASKA, "INVALID_BINARY_PROTO_MESSAGE"),
}


@pytest.mark.parametrize(("type_", "encoding", "good", "bad", "reason"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages_are_validated(
    clients: Clients, type_: Any, encoding: Encoding, good: bytes, bad: bytes, reason: str
) -> None:
    definition = avro() if type_ == AVRO else STATE_PROTO
    revision_id = create(clients, definition, type_).revision_id
    by_name = {"name": NAME}
    by_revision = {"name": f"{NAME}@{revision_id}"}
    given = {"schema": {"type_": type_, "definition": definition}}
    for spec in (by_name, by_revision, given):
        request = {"parent": PARENT, "encoding": encoding, **spec}
        clients.schemas.validate_message(request={**request, "message": good})
        with pytest.raises(InvalidArgument) as refused:
            clients.schemas.validate_message(request={**request, "message": bad})
        assert refused.value.message.startswith("Invalid data in message: Message failed schema validation.")
        assert refused.value.reason == reason
        assert refused.value.domain == "pubsub.googleapis.com"
        assert "last checked revision" in refused.value.metadata["revisionInfo"]


def test_a_message_is_validated_against_something_in_an_encoding(clients: Clients) -> None:
    create(clients)
    for request, reason in (
        ({"encoding": Encoding.JSON}, "schema_spec"),
        ({"name": NAME}, "encoding: JSON"),
        ({"name": NAME, "encoding": Encoding.JSON, "parent": ""}, "Expected projects/PROJECT"),
    ):
        with pytest.raises(InvalidArgument, match=reason):
            clients.schemas.validate_message(request={"parent": PARENT, "message": ALASKA, **request})
    with pytest.raises(NotFound):
        clients.schemas.validate_message(
            request={"parent": PARENT, "name": f"{NAME}s", "encoding": Encoding.JSON, "message": ALASKA}
        )


def test_descriptors_compiled_elsewhere_come_back_as_they_were_given(clients: Clients) -> None:
    if "compiled_proto_schema" not in Schema.meta.fields:
        pytest.skip("this version of Google's package has no compiled schemas")
    compiled = compile_definition(SchemaType.PROTOCOL_BUFFER, STATE_PROTO)
    given = {"root_message": "State", "compiled_bytes": compiled.descriptors}
    schema = Schema(type_=PROTOBUF, compiled_proto_schema=given)
    created = clients.schemas.create_schema(parent=PARENT, schema=schema, schema_id="state")
    assert created.compiled_proto_schema == schema.compiled_proto_schema
    assert created.definition == ""
    request = {"parent": PARENT, "name": NAME, "encoding": Encoding.BINARY}
    clients.schemas.validate_message(request={**request, "message": ALASKA_PROTO})
    with pytest.raises(InvalidArgument):
        clients.schemas.validate_message(request={**request, "message": ALASKA})
    with pytest.raises(InvalidArgument, match="not both"):
        clients.schemas.validate_schema(
            parent=PARENT, schema=Schema(type_=PROTOBUF, definition=STATE_PROTO, compiled_proto_schema=given)
        )


def test_a_publisher_asks_the_book_which_revision_a_message_fits(clients: Clients) -> None:
    first = create(clients).revision_id
    second = commit(clients, avro("capital")).revision_id
    settings = SchemaSettings(NAME, OurEncoding.JSON)
    assert clients.book.check_message(settings, ALASKA) == first
    assert clients.book.check_message(settings, ALASKA[:-1] + b', "capital": "Juneau"}') == second


def test_of_many_who_create_one_schema_one_does_and_commits_do_not_collide(clients: Clients) -> None:
    def outcome(_: int) -> str:
        try:
            return create(clients).revision_id
        except AlreadyExists:
            return ""

    with ThreadPoolExecutor(8) as threads:
        assert len([created for created in threads.map(outcome, range(8)) if created]) == 1
        committed = list(threads.map(lambda _: commit(clients, avro()).revision_id, range(19)))
    assert len({*committed, clients.schemas.get_schema(name=NAME).revision_id}) == 19
    assert len(list(clients.schemas.list_schema_revisions(name=NAME))) == 20


def test_schemas_survive_a_restart(tmp_path: Path) -> None:
    with closing(SqliteDocuments(tmp_path)) as documents, serving(documents) as clients:
        first, second = create(clients), commit(clients, avro("capital"))
        kept = create(clients, STATE_PROTO, PROTOBUF, schema_id="kept")
        create(clients, schema_id="gone")
        clients.schemas.delete_schema(name=f"{PARENT}/schemas/gone")
    with closing(SqliteDocuments(tmp_path)) as documents, serving(documents) as clients:
        assert [schema.name for schema in clients.schemas.list_schemas(parent=PARENT)] == [kept.name, NAME]
        assert list(clients.schemas.list_schema_revisions(request={"name": NAME, "view": SchemaView.FULL})) == [
            second,
            first,
        ]
        assert clients.schemas.get_schema(name=kept.name) == kept
        third = commit(clients, avro("capital", "motto"))
        assert third.revision_id not in (first.revision_id, second.revision_id)


def test_definitions_of_clients_that_went_away_count_until_they_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[str] = []
    go_on = threading.Event()

    def compiled(type_: int, text: str) -> Definition:
        running.append(text)
        assert go_on.wait(30)
        return compile_definition(type_, text)

    async def run() -> None:
        schemas = service.SchemaService(SchemaBook(), MemoryDocuments(), SYSTEM_CLOCK, nullcontext)
        request = types.ValidateSchemaRequest.pb()(parent=PARENT, schema={"type_": AVRO, "definition": avro()})
        gone = [asyncio.create_task(schemas.validate_schema(request, None)) for _ in range(service.MAX_COMPILING)]
        while len(running) < service.MAX_COMPILING:  # noqa: ASYNC110  threads begin them
            await asyncio.sleep(0.001)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        waiting = asyncio.create_task(schemas.validate_schema(request, None))
        await asyncio.sleep(0.05)
        begun = len(running)
        go_on.set()
        await waiting
        assert begun == service.MAX_COMPILING

    monkeypatch.setattr(service, "compile_definition", compiled)
    asyncio.run(run())
