"""google.pubsub.v1.SchemaService over a book of schemas and a place for documents."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeAlias

import grpc
from google.protobuf import empty_pb2
from google.pubsub_v1.types import schema as types
from google.rpc import error_details_pb2

from inorder.clock import MICROSECONDS, Clock
from inorder.errors import InvalidArgument
from inorder.server.documents import Documents, in_turn, to_the_end
from inorder.server.schemas.book import (
    MessageRefused,
    Revision,
    Schema,
    SchemaBook,
    check_parent,
    check_schema_id,
    plain_name,
    split_name,
)
from inorder.server.schemas.definition import (
    Definition,
    checked_encoding,
    compile_definition,
    precompiled_definition,
)
from inorder.server.schemas.mismatch import Mismatch
from inorder.server.status import Context, RawCall, Refusal, detailed, unary

SERVICE = "google.pubsub.v1.SchemaService"
KIND = "schema"  # of its documents
MAX_COMPILING = 2  # definitions at once; others wait

Proto: TypeAlias = Any  # a message of google.pubsub.v1: these have no types
Deleting: TypeAlias = Callable[[str], AbstractAsyncContextManager[object]]

_BASIC, _FULL = types.SchemaView.BASIC, types.SchemaView.FULL
_COMPILED = "compiled_proto_schema"  # older versions of Google's package do not have it


class SchemaService:
    """The calls of the service. `deleting` a schema is entered before it goes, and left when it is gone."""

    def __init__(self, book: SchemaBook, documents: Documents, clock: Clock, deleting: Deleting) -> None:
        self._book = book
        self._documents = documents
        self._clock = clock
        self._deleting = deleting
        self._changing = asyncio.Lock()  # between what is decided and what is durable nobody else decides
        self._compiling = asyncio.Semaphore(MAX_COMPILING)

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {
            "CreateSchema": unary(types.CreateSchemaRequest.pb(), self.create_schema),
            "GetSchema": unary(types.GetSchemaRequest.pb(), self.get_schema),
            "ListSchemas": unary(types.ListSchemasRequest.pb(), self.list_schemas),
            "ListSchemaRevisions": unary(types.ListSchemaRevisionsRequest.pb(), self.list_schema_revisions),
            "CommitSchema": unary(types.CommitSchemaRequest.pb(), self.commit_schema),
            "RollbackSchema": unary(types.RollbackSchemaRequest.pb(), self.rollback_schema),
            "DeleteSchemaRevision": unary(types.DeleteSchemaRevisionRequest.pb(), self.delete_schema_revision),
            "DeleteSchema": unary(types.DeleteSchemaRequest.pb(), self.delete_schema),
            "ValidateSchema": unary(types.ValidateSchemaRequest.pb(), self.validate_schema),
            "ValidateMessage": unary(types.ValidateMessageRequest.pb(), self.validate_message),
        }

    async def create_schema(self, request: Proto, context: Context) -> Proto:
        check_parent(request.parent)  # what is cheap to refuse is refused before anything is compiled
        check_schema_id(request.schema_id)
        definition = await self._compiled(request.schema)
        salt, now_us = secrets.randbits(32), self._clock.now_us()
        schema = await self._change(
            lambda: self._book.create(request.parent, request.schema_id, definition, salt, now_us)
        )
        return schema_of(schema, schema.latest)

    async def get_schema(self, request: Proto, context: Context) -> Proto:
        return schema_of(*self._named(request.name), full=request.view != _BASIC)

    async def list_schemas(self, request: Proto, context: Context) -> Proto:
        schemas, following = self._book.page(request.parent, request.page_size, request.page_token)
        response: Proto = types.ListSchemasResponse.pb()(next_page_token=following)
        full = request.view == _FULL
        response.schemas.extend(schema_of(schema, schema.latest, full=full) for schema in schemas)
        return response

    async def list_schema_revisions(self, request: Proto, context: Context) -> Proto:
        name = plain_name(request.name)
        revisions, following = self._book.revision_page(name, request.page_size, request.page_token)
        response: Proto = types.ListSchemaRevisionsResponse.pb()(next_page_token=following)
        schema, full = self._book.get(name), request.view == _FULL
        response.schemas.extend(schema_of(schema, revision, full=full) for revision in revisions)
        return response

    async def commit_schema(self, request: Proto, context: Context) -> Proto:
        name = plain_name(request.name)
        if request.schema.name and split_name(request.schema.name)[0] != name:
            raise InvalidArgument(f"schema.name: {request.schema.name} is not the schema {name} that is to be revised")
        self._book.get(name)
        definition = await self._compiled(request.schema)
        now_us = self._clock.now_us()
        schema = await self._change(lambda: self._book.commit(name, definition, now_us))
        return schema_of(schema, schema.latest)

    async def rollback_schema(self, request: Proto, context: Context) -> Proto:
        name, now_us = plain_name(request.name), self._clock.now_us()
        if not request.revision_id:
            raise InvalidArgument(f"revision_id: say to which revision {name} is to go back")
        schema = await self._change(lambda: self._book.rollback(name, request.revision_id, now_us))
        return schema_of(schema, schema.latest)

    async def delete_schema_revision(self, request: Proto, context: Context) -> Proto:
        name, revision_id = split_name(request.name)
        revision_id = revision_id or request.revision_id
        if not revision_id:
            raise InvalidArgument(f"name: {request.name} names no revision; append @ and its id")
        schema = self._book.get(name)
        gone = schema.revision(revision_id)
        await self._change(lambda: self._book.get(name).without(revision_id))
        return schema_of(schema, gone)

    async def delete_schema(self, request: Proto, context: Context) -> Proto:
        name = plain_name(request.name)

        async def delete() -> None:
            async with self._changing:
                self._book.get(name)
                async with self._deleting(name):
                    await self._documents.put(KIND, name, None)
                    self._book.put(name, None)

        await to_the_end(delete())
        return empty_pb2.Empty()

    async def validate_schema(self, request: Proto, context: Context) -> Proto:
        check_parent(request.parent)
        await self._compiled(request.schema)
        return types.ValidateSchemaResponse.pb()()

    async def validate_message(self, request: Proto, context: Context) -> Proto:
        check_parent(request.parent)
        encoding = checked_encoding(request.encoding)
        match request.WhichOneof("schema_spec"):
            case "name":
                schema, revision = self._named(request.name)
                name, revision_id, definition = schema.name, revision.revision_id, revision.definition
            case "schema":
                name, revision_id = request.schema.name or "the one in the request", "none"
                definition = await self._compiled(request.schema)
            case _:
                raise InvalidArgument("schema_spec: give the name of a schema, or a schema")
        try:
            await asyncio.to_thread(lambda: definition.check(encoding)(request.message))
        except Mismatch as mismatch:
            raise refused(MessageRefused(name, definition.type, encoding, revision_id, str(mismatch))) from None
        return types.ValidateMessageResponse.pb()()

    def _named(self, resource: str) -> tuple[Schema, Revision]:
        """The newest revision, unless the name says which."""
        name, revision_id = split_name(resource)
        schema = self._book.get(name)
        return schema, schema.revision(revision_id) if revision_id else schema.latest

    async def _compiled(self, schema: Proto) -> Definition:
        """The definition in a request; checking it may take long, so the loop goes on meanwhile."""
        if _COMPILED in schema.DESCRIPTOR.fields_by_name and schema.HasField(_COMPILED):
            if schema.definition:
                raise InvalidArgument(f"schema: either a definition or {_COMPILED}, not both")
            given = schema.compiled_proto_schema
            check = partial(precompiled_definition, schema.type_, given.compiled_bytes, given.root_message)
        else:
            check = partial(compile_definition, schema.type_, schema.definition)
        return await in_turn(self._compiling, check)

    async def _change(self, decide: Callable[[], Schema]) -> Schema:
        """What a verb of the book decides, once it is durable. Deciding may take long, too."""

        def decided() -> tuple[Schema, bytes]:
            schema = decide()
            return schema, schema.encode()

        async def change() -> Schema:
            async with self._changing:
                schema, document = await asyncio.to_thread(decided)
                await self._documents.put(KIND, schema.name, document)
                self._book.put(schema.name, schema)
                return schema

        return await to_the_end(change())


def schema_of(schema: Schema, revision: Revision, *, full: bool = True) -> Proto:
    """A revision as Google describes it."""
    described: Proto = types.Schema.pb()(name=schema.name, type_=int(schema.type), revision_id=revision.revision_id)
    seconds, microseconds = divmod(revision.created_us, MICROSECONDS)
    described.revision_create_time.seconds = seconds
    described.revision_create_time.nanos = microseconds * 1_000
    if full and revision.definition.precompiled:
        described.compiled_proto_schema.root_message = revision.definition.root
        described.compiled_proto_schema.compiled_bytes = revision.definition.descriptors
    elif full:
        described.definition = revision.definition.text
    return described


def refused(error: MessageRefused) -> Refusal:
    """With the details by which clients tell this refusal from others. Publish answers with it, too."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain="pubsub.googleapis.com", metadata=error.metadata)
    return detailed(grpc.StatusCode.INVALID_ARGUMENT, str(error), info)
