"""The schemas of the server and their revisions: values, and verbs that return the next value or refuse.

Nothing here waits or stores. A verb decides what a schema becomes; `put` makes it so, once that is durable.

A revision's id is its number, made unrecognisable. So ids never repeat, and the place of a revision in their order
is known even after it was deleted: topics name ranges of revisions, and those ends may go.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from inorder.errors import AlreadyExists, FailedPrecondition, ForeignState, InvalidArgument, NotFound, ResourceExhausted
from inorder.server.schemas.definition import Definition, Encoding, SchemaType
from inorder.server.schemas.mismatch import Mismatch

MAX_REVISIONS = 20  # Pub/Sub's limit
MAX_SCHEMAS = 10_000  # Pub/Sub's limit, per project there and for the whole server here
PAGE = 100
LONGEST_PAGE = 1_000
MAX_PROBLEM_LENGTH = 250  # characters, told three times in the 8 KB of metadata that clients take
MAX_PLANS = 10_000  # topics with schemas whose checks are kept ready
DELETED_SCHEMA = "_deleted-schema_"  # what a topic shows in place of a schema that is gone

_SCHEMA = re.compile(r"(projects/[A-Za-z0-9\-_.:]+)/schemas/([^/@]*)(?:@([^/@]*))?")
_ID = re.compile(r"[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}")
_PARENT = re.compile(r"projects/[A-Za-z0-9\-_.:]+")
_REVISION = re.compile(r"[0-9a-f]{8}")

# Any odd number is a bijection of 32 bits; this one scatters well.
_SCATTER = 0x9E3779B1
_GATHER = pow(_SCATTER, -1, 2**32)


class SchemaNotFound(NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(f"Resource not found (resource={_last(name)}).")


class InvalidSchemaName(InvalidArgument):
    """In Google's words, and then in ours."""

    def __init__(self, name: str, expected: str) -> None:
        super().__init__(
            f"Invalid resource name given (name={name[:300]}). Refer to "
            f"https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more information. {expected}"
        )


class RevisionNotFound(NotFound):
    def __init__(self, name: str, revision_id: str) -> None:
        super().__init__(f"Resource not found (resource={_last(name)}@{revision_id[:60]}).")


class SchemaAlreadyExists(AlreadyExists):
    def __init__(self, name: str) -> None:
        super().__init__(f"Schema already exists (resource={_last(name)}).")


class MessageRefused(InvalidArgument):
    """The message fits no revision that its topic allows. `reason` and `metadata` are Google's ErrorInfo of it."""

    def __init__(self, schema: str, type_: SchemaType, encoding: Encoding, revision_id: str, problem: str) -> None:
        problem = problem[:MAX_PROBLEM_LENGTH]
        super().__init__(f"Invalid data in message: Message failed schema validation. {problem}")
        self.problem = problem
        kind = "PROTO" if type_ is SchemaType.PROTOCOL_BUFFER else type_.name
        self.reason = f"INVALID_{encoding.name}_{kind}_MESSAGE"
        checked = f"last checked revision: revision_id={revision_id} failed with status: {problem}"
        self.metadata = {
            "message": "Message failed schema validation",
            "revisionInfo": f"Could not validate message with any schema revision for schema: {schema}, {checked}",
        }


@dataclass(frozen=True, slots=True)
class Revision:
    """One state of a schema's definition. It never changes."""

    number: int  # 1, 2, 3 …
    revision_id: str
    definition: Definition
    created_us: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema with those of its revisions that are not deleted, oldest first; there is always one."""

    name: str
    type: SchemaType
    salt: int  # so that another schema of the same name, later, has other ids
    issued: int  # the number of the latest revision that ever was
    revisions: tuple[Revision, ...]

    @property
    def latest(self) -> Revision:
        return self.revisions[-1]

    def revision(self, revision_id: str) -> Revision:
        for revision in self.revisions:
            if revision.revision_id == revision_id:
                return revision
        raise RevisionNotFound(self.name, revision_id)

    def number_of(self, revision_id: str) -> int:
        """The number of a revision, which may be deleted."""
        if _REVISION.fullmatch(revision_id):
            number = (int(revision_id, 16) ^ self.salt) * _GATHER % 2**32
            if 1 <= number <= self.issued:
                return number
        raise RevisionNotFound(self.name, revision_id)

    def followed_by(self, definition: Definition, now_us: int) -> Schema:
        """The same with one more revision."""
        if len(self.revisions) >= MAX_REVISIONS:
            raise ResourceExhausted(
                f"schema {self.name} has {len(self.revisions)} revisions, as many as it may: "
                "delete one before another can be committed"
            )
        number = self.issued + 1
        revision = Revision(number, _revision_id(number, self.salt), definition, now_us)
        return replace(self, issued=number, revisions=(*self.revisions, revision))

    def without(self, revision_id: str) -> Schema:
        """The same with one revision less."""
        gone = self.revision(revision_id)
        if len(self.revisions) == 1:
            raise FailedPrecondition(
                f"schema revision {self.name}@{revision_id} is the only one left: delete the schema instead"
            )
        return replace(self, revisions=tuple(revision for revision in self.revisions if revision is not gone))

    def encode(self) -> bytes:
        """For storage."""
        document: dict[str, Any] = {
            "format": 1,
            "type": self.type.name,
            "salt": self.salt,
            "issued": self.issued,
            "revisions": [
                {
                    "number": revision.number,
                    "created_us": revision.created_us,
                    "text": revision.definition.text,
                    "descriptors": b64encode(revision.definition.descriptors).decode(),
                    "root": revision.definition.root,
                    "precompiled": revision.definition.precompiled,
                }
                for revision in self.revisions
            ],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, name: str, stored: bytes) -> Schema:
        try:
            document = json.loads(stored)
            if document["format"] != 1:
                raise ForeignState(f"schema {name}", f"format {document['format']}, and this version knows 1 only")
            type_ = SchemaType[document["type"]]
            revisions = tuple(
                Revision(
                    each["number"],
                    _revision_id(each["number"], document["salt"]),
                    Definition(type_, each["text"], b64decode(each["descriptors"]), each["root"], each["precompiled"]),
                    each["created_us"],
                )
                for each in document["revisions"]
            )
            return cls(name, type_, document["salt"], document["issued"], revisions)
        except (ValueError, KeyError, TypeError) as error:
            raise ForeignState(f"schema {name}", repr(error)) from None


@dataclass(frozen=True, slots=True)
class SchemaSettings:
    """What a topic asks of its messages; "" leaves that end of the range of revisions open."""

    schema: str
    encoding: Encoding
    first_revision_id: str = ""
    last_revision_id: str = ""


def schema_attributes(settings: SchemaSettings, revision_id: str) -> dict[str, str]:
    """What a message that fits carries from then on, so that subscribers know how to read it."""
    return {
        "googclient_schemaname": settings.schema,
        "googclient_schemaencoding": settings.encoding.name,
        "googclient_schemarevisionid": revision_id,
    }


Check = Callable[[bytes], None]
Plan = list[tuple[str, Check]]  # the revisions to try, newest first: their ids and checks


class SchemaBook:
    """All schemas by name, and the checks of messages that were made of them. Not thread-safe."""

    def __init__(self, stored: Mapping[str, bytes] | None = None) -> None:
        self._schemas = {name: Schema.decode(name, document) for name, document in (stored or {}).items()}
        self._plans: dict[SchemaSettings, Plan] = {}
        # A schema's checks by revision and encoding: topics with different settings share them.
        self._checks: dict[str, dict[tuple[int, Encoding], Check]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def get(self, name: str) -> Schema:
        if name not in self._schemas:
            raise SchemaNotFound(name)
        return self._schemas[name]

    def put(self, name: str, schema: Schema | None) -> None:
        """What a verb decided is true from now on. None: the schema is gone."""
        if schema is None:
            self._schemas.pop(name, None)
        else:
            self._schemas[name] = schema
        self._checks.pop(name, None)
        self._plans = {settings: plan for settings, plan in self._plans.items() if settings.schema != name}

    def create(self, parent: str, schema_id: str, definition: Definition, salt: int, now_us: int) -> Schema:
        name = f"{check_parent(parent)}/schemas/{check_schema_id(schema_id)}"
        if name in self._schemas:
            raise SchemaAlreadyExists(name)
        if len(self._schemas) >= MAX_SCHEMAS:
            raise ResourceExhausted(f"there are {MAX_SCHEMAS} schemas, as many as may be")
        return Schema(name, definition.type, salt % 2**32, 0, ()).followed_by(definition, now_us)

    def commit(self, name: str, definition: Definition, now_us: int) -> Schema:
        schema = self.get(name)
        schema.latest.definition.check_successor(definition)
        return schema.followed_by(definition, now_us)

    def rollback(self, name: str, revision_id: str, now_us: int) -> Schema:
        schema = self.get(name)
        return schema.followed_by(schema.revision(revision_id).definition, now_us)

    def page(self, parent: str, size: int, token: str) -> tuple[list[Schema], str]:
        """Schemas of a project by name, and the token of the next page ("": there is none)."""
        prefix = f"{check_parent(parent)}/schemas/"
        names = sorted(name for name in self._schemas if name.startswith(prefix))
        start = bisect_right(names, prefix + token) if token else 0
        chosen = names[start : start + _page_size(size)]
        more = start + len(chosen) < len(names)
        return [self._schemas[name] for name in chosen], chosen[-1].removeprefix(prefix) if more else ""

    def revision_page(self, name: str, size: int, token: str) -> tuple[list[Revision], str]:
        """Revisions of a schema, the newest first, and the token of the next page."""
        schema = self.get(name)
        revisions = schema.revisions[::-1]
        if token:
            try:
                before = schema.number_of(token)
            except RevisionNotFound:
                raise InvalidArgument(f"page_token: {token[:60]!r} is none") from None
            revisions = tuple(revision for revision in revisions if revision.number < before)
        chosen = revisions[: _page_size(size)]
        return list(chosen), chosen[-1].revision_id if len(chosen) < len(revisions) else ""

    def check_settings(self, settings: SchemaSettings) -> None:
        """Refuse what a topic cannot ask for: an unknown schema or revision, or a range that is backwards."""
        schema = self.get(settings.schema)
        first, last = _range(schema, settings)
        if first > last:
            raise InvalidArgument(
                f"schema_settings: first_revision_id {settings.first_revision_id} is newer than "
                f"last_revision_id {settings.last_revision_id}"
            )

    def check_message(self, settings: SchemaSettings, data: bytes) -> str:
        """The id of the newest revision in the topic's range that the message fits, or MessageRefused."""
        plan = self._plans.get(settings)
        if plan is None:
            plan = self._plan(settings)
        problem: Mismatch | None = None
        for revision_id, check in plan:
            try:
                check(data)
            except Mismatch as mismatch:
                problem = mismatch
            else:
                return revision_id
        if problem is None:
            raise FailedPrecondition(f"schema_settings: no revision is left in the range of {settings.schema}")
        schema = self.get(settings.schema)
        raise MessageRefused(schema.name, schema.type, settings.encoding, plan[-1][0], str(problem))

    def _plan(self, settings: SchemaSettings) -> Plan:
        if settings.schema == DELETED_SCHEMA:
            raise FailedPrecondition("the schema of the topic was deleted; nothing can be published to it")
        schema = self.get(settings.schema)
        first, last = _range(schema, settings)
        made = self._checks.setdefault(schema.name, {})
        plan: Plan = []
        for revision in reversed(schema.revisions):
            if first <= revision.number <= last:
                by = (revision.number, settings.encoding)
                if by not in made:
                    made[by] = revision.definition.check(settings.encoding)
                plan.append((revision.revision_id, made[by]))
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        self._plans[settings] = plan
        return plan


def split_name(name: str) -> tuple[str, str]:
    """A schema's name without its revision, and the revision's id, "" if it names none."""
    match = _SCHEMA.fullmatch(name)
    if not match or not _ID.fullmatch(match[2]):
        raise InvalidSchemaName(name, "Expected projects/PROJECT/schemas/SCHEMA, or that and @REVISION.")
    if match[3] is None:
        return name, ""
    if not _REVISION.fullmatch(match[3]):
        raise InvalidSchemaName(name, "A revision id is 8 hexadecimal digits.")
    return name[: -len(match[3]) - 1], match[3]


def plain_name(name: str) -> str:
    """A schema's name, which must not name a revision."""
    schema, revision_id = split_name(name)
    if revision_id:
        raise InvalidSchemaName(name, "The schema is meant, without a revision.")
    return schema


def check_parent(parent: str) -> str:
    if not _PARENT.fullmatch(parent):
        raise InvalidSchemaName(parent, "Expected projects/PROJECT.")
    return parent


def check_schema_id(schema_id: str) -> str:
    if not _ID.fullmatch(schema_id) or schema_id.startswith("goog"):
        raise InvalidSchemaName(
            schema_id,
            "A schema_id has 3 to 255 characters, a letter first, then letters, digits and -_.~+% only, "
            "and does not start with 'goog'.",
        )
    return schema_id


def _range(schema: Schema, settings: SchemaSettings) -> tuple[int, int]:
    first = schema.number_of(settings.first_revision_id) if settings.first_revision_id else 1
    last = schema.number_of(settings.last_revision_id) if settings.last_revision_id else schema.issued
    return first, last


def _revision_id(number: int, salt: int) -> str:
    return f"{(number * _SCATTER) % 2**32 ^ salt:08x}"


def _page_size(size: int) -> int:
    if size < 0:
        raise InvalidArgument(f"page_size: 0 or more, not {size}")
    return min(size or PAGE, LONGEST_PAGE)


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1]
