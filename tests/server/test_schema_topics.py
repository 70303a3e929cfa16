"""Topics with schemas, by Google's own clients."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core.exceptions import FailedPrecondition, InvalidArgument, NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1
from google.pubsub_v1.services.schema_service.transports.grpc import SchemaServiceGrpcTransport
from google.pubsub_v1.types import Encoding, PublishRequest, PublishResponse, Schema

from inorder.broker import MessageQueue
from inorder.commits import Sync
from inorder.protocol import PRODUCER_KEY
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.admin import THREADS
from inorder.server.sqlite_documents import SqliteDocuments

from .conftest import Running
from .test_streaming import wait_until

TOPIC = "projects/shop/topics/states"
SUBSCRIPTION = "projects/shop/subscriptions/states"
SCHEMA = "projects/shop/schemas/state"


def avro(*names: str) -> str:
    fields = [{"name": name, "type": "string", "default": ""} for name in names]
    return json.dumps({"type": "record", "name": "State", "fields": fields})


def test_what_was_stored_is_answered_when_it_comes_again_whatever_the_schema_says_by_then() -> None:
    """Refused, it would be published once more, with what it lacks by now."""
    broker = MessageQueue()
    server: Any = Running(broker)
    schemas = pubsub_v1.SchemaServiceClient(
        transport=SchemaServiceGrpcTransport(channel=server.channel(), credentials=AnonymousCredentials())
    )
    schema = Schema(name=SCHEMA, type_=Schema.Type.AVRO, definition=avro("name"))
    schemas.create_schema(parent="projects/shop", schema=schema, schema_id="state")
    publisher = server.publisher()
    publisher.create_topic(request={"name": TOPIC, "schema_settings": {"schema": SCHEMA, "encoding": Encoding.JSON}})
    call = server.channel().unary_unary("/google.pubsub.v1.Publisher/Publish")

    def publish(number: int) -> list[str]:
        request = PublishRequest(topic=TOPIC, messages=[{"data": b'{"name": "Alaska"}'}])
        attempt = v1.Attempt(producer="p", number=number).SerializeToString()
        answer = call(PublishRequest.serialize(request), metadata=[(PRODUCER_KEY, attempt)], timeout=10)
        return list(PublishResponse.deserialize(answer).message_ids)

    stored = publish(0)
    schema.definition = avro("name", "capital")
    second = schemas.commit_schema(name=SCHEMA, schema=schema).revision_id
    publisher.update_topic(
        topic={"name": TOPIC, "schema_settings": {"first_revision_id": second}},
        update_mask={"paths": ["schema_settings.first_revision_id"]},
    )
    assert publish(0) == stored
    with pytest.raises(grpc.RpcError, match="Message failed schema validation"):
        publish(1)
    schemas.delete_schema(name=SCHEMA)
    assert publish(0) == stored
    with pytest.raises(grpc.RpcError, match="was deleted"):
        publish(1)
    metadata = broker.get_topic(broker.get_all_topics()[0].name)
    assert metadata is not None
    assert metadata.published == 1
    server.stop()


def test_messages_of_a_topic_fit_its_schema() -> None:
    server: Any = Running(MessageQueue())
    schemas = pubsub_v1.SchemaServiceClient(
        transport=SchemaServiceGrpcTransport(channel=server.channel(), credentials=AnonymousCredentials())
    )
    publisher, subscriber = server.publisher(), server.subscriber()
    settings = {"schema": SCHEMA, "encoding": Encoding.JSON}
    with pytest.raises(NotFound):
        publisher.create_topic(request={"name": TOPIC, "schema_settings": settings})
    schema = Schema(name=SCHEMA, type_=Schema.Type.AVRO, definition=avro("name"))
    first = schemas.create_schema(parent="projects/shop", schema=schema, schema_id="state").revision_id
    made = publisher.create_topic(request={"name": TOPIC, "schema_settings": settings})
    assert made.schema_settings.schema == SCHEMA
    assert made.schema_settings.encoding == Encoding.JSON
    subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)

    publisher.publish(TOPIC, b'{"name": "Alaska"}', color="blue").result(10)
    with pytest.raises(InvalidArgument, match="Message failed schema validation") as error:
        publisher.publish(TOPIC, b'{"name": 5}').result(10)
    assert error.value.reason == "INVALID_JSON_AVRO_MESSAGE"
    with pytest.raises(InvalidArgument, match="Message failed schema validation") as error:
        # What is wrong with it takes more room than clients have for that, and they would send it again and again.
        publisher.publish(TOPIC, json.dumps({"name": "", "\N{DROMEDARY CAMEL}" * 5_000: 5}).encode()).result(10)
    assert error.value.reason == "INVALID_JSON_AVRO_MESSAGE"
    with pytest.raises(InvalidArgument, match=r"validation. \?: there is no such field"):
        publisher.publish(TOPIC, b'{"name": "", "\\ud800": 5}').result(10)
    schema.definition = avro("name", "capital")
    second = schemas.commit_schema(name=SCHEMA, schema=schema).revision_id
    publisher.publish(TOPIC, b'{"name": "Alaska", "capital": "Juneau"}').result(10)
    publisher.update_topic(
        topic={"name": TOPIC, "schema_settings": {"first_revision_id": second}},
        update_mask={"paths": ["schema_settings.first_revision_id"]},
    )
    with pytest.raises(InvalidArgument):
        publisher.publish(TOPIC, b'{"name": "Alaska"}').result(10)

    got = subscriber.pull(subscription=SUBSCRIPTION, max_messages=10, timeout=10).received_messages
    marks = [one.message.attributes["googclient_schemarevisionid"] for one in got]
    assert marks == [first, second]
    assert got[0].message.attributes["color"] == "blue"
    assert got[0].message.attributes["googclient_schemaencoding"] == "JSON"

    schemas.delete_schema(name=SCHEMA)
    gone = publisher.get_topic(topic=TOPIC)
    assert gone.schema_settings.schema == "_deleted-schema_"
    with pytest.raises(FailedPrecondition, match="was deleted"):
        publisher.publish(TOPIC, b'{"name": "Alaska"}').result(10)
    gone.labels = {"team": "north"}
    publisher.update_topic(topic=gone, update_mask={"paths": ["labels", "schema_settings"]})  # it may stay
    with pytest.raises(NotFound, match="_deleted-schema_"):
        publisher.create_topic(request={"name": f"{TOPIC}-2", "schema_settings": gone.schema_settings})
    publisher.create_topic(name=f"{TOPIC}-2")
    gone.name = f"{TOPIC}-2"
    with pytest.raises(NotFound, match="_deleted-schema_"):
        publisher.update_topic(topic=gone, update_mask={"paths": ["schema_settings"]})
    server.stop()


@contextmanager
def serving(folder: Path, sync: Sync) -> Iterator[tuple[pubsub_v1.PublisherClient, pubsub_v1.SchemaServiceClient]]:
    with (
        closing(MessageQueue.open(folder, journal="sqlite", sync=sync)) as broker,
        closing(SqliteDocuments(folder)) as documents,
    ):
        server: Any = Running(broker, documents=documents)
        transport = SchemaServiceGrpcTransport(channel=server.channel(), credentials=AnonymousCredentials())
        yield server.publisher(), pubsub_v1.SchemaServiceClient(transport=transport)
        server.stop()


def test_a_topic_knows_after_a_kill_that_its_schema_was_deleted_also_where_answers_do_not_wait_for_the_disk(
    tmp_path: Path,
) -> None:
    """Else it would name a schema that is not there, and could not even be given other labels."""
    with serving(tmp_path / "now", "commit") as (publisher, schemas):
        schema = Schema(name=SCHEMA, type_=Schema.Type.AVRO, definition=avro("name"))
        schemas.create_schema(parent="projects/shop", schema=schema, schema_id="state")
        settings = {"schema": SCHEMA, "encoding": Encoding.JSON}
        publisher.create_topic(request={"name": TOPIC, "schema_settings": settings})
    with serving(tmp_path / "now", "none") as (publisher, schemas):
        schemas.delete_schema(name=SCHEMA)
        shutil.copytree(tmp_path / "now", tmp_path / "killed")  # SQLite has undone what was not committed
    with serving(tmp_path / "killed", "commit") as (publisher, schemas):
        with pytest.raises(NotFound):
            schemas.get_schema(name=SCHEMA)
        assert publisher.get_topic(topic=TOPIC).schema_settings.schema == "_deleted-schema_"


class BusyAdmin:
    """A server with a schema whose calls that change something wait until `free`."""

    def __init__(self) -> None:
        self.server: Any = Running(MessageQueue())
        channel, credentials = self.server.channel(), AnonymousCredentials()
        transport = SchemaServiceGrpcTransport(channel=channel, credentials=credentials)
        self.schemas = pubsub_v1.SchemaServiceClient(transport=transport)
        schema = Schema(name=SCHEMA, type_=Schema.Type.AVRO, definition=avro("name"))
        self.schemas.create_schema(parent="projects/shop", schema=schema, schema_id="state")
        self.publisher = self.server.publisher()
        self._free = threading.Event()
        self._threads = self.server.server._admin._threads
        self._begun: list[Future[Any]] = []
        self._clients = ThreadPoolExecutor()

    def create(self, topic: str) -> None:
        settings = {"schema": SCHEMA, "encoding": Encoding.JSON}
        self.publisher.create_topic(request={"name": topic, "schema_settings": settings})

    def busy(self) -> None:
        for _ in range(THREADS):
            self._threads.submit(self._free.wait)

    def begin(self, call: Callable[[], Any], waits: Callable[[], bool]) -> None:
        """Call, and go on when it `waits`."""
        self._begun.append(self._clients.submit(call))
        wait_until(waits)

    def queued(self) -> int:
        """How many calls wait for a thread."""
        return self._threads._work_queue.qsize()  # type: ignore[no-any-return]

    def free(self) -> None:
        """All goes on; returns when all that was begun has ended."""
        self._free.set()
        for one in self._begun:
            one.result(30)


@pytest.fixture
def admin() -> Iterator[BusyAdmin]:
    admin = BusyAdmin()
    yield admin
    admin.server.close()


def test_what_is_changed_in_a_topic_while_its_schema_is_deleted_stays(admin: BusyAdmin) -> None:
    for topic in (TOPIC, f"{TOPIC}-2"):
        admin.create(topic)
    admin.busy()
    admin.begin(lambda: admin.schemas.delete_schema(name=SCHEMA), lambda: admin.queued() == 1)
    change = {"topic": {"name": f"{TOPIC}-2", "labels": {"team": "north"}}, "update_mask": {"paths": ["labels"]}}
    lock = admin.server.server._admin.changing
    admin.begin(lambda: admin.publisher.update_topic(request=change), lambda: admin.queued() == 2 or lock._waiters)
    admin.free()
    changed = admin.publisher.get_topic(topic=f"{TOPIC}-2")
    assert (dict(changed.labels), changed.schema_settings.schema) == ({"team": "north"}, "_deleted-schema_")


def test_a_topic_that_is_made_while_its_schema_is_deleted_says_so(admin: BusyAdmin) -> None:
    admin.busy()
    admin.begin(lambda: admin.create(TOPIC), lambda: admin.queued() == 1)
    lock = admin.server.server._admin.changing
    deletion = admin.schemas.delete_schema
    admin.begin(lambda: deletion(name=SCHEMA), lambda: admin.queued() == 2 or lock._waiters)
    admin.free()
    assert admin.publisher.get_topic(topic=TOPIC).schema_settings.schema == "_deleted-schema_"


def test_a_schema_is_deleted_although_a_topic_that_has_it_goes_meanwhile(admin: BusyAdmin) -> None:
    admin.create(TOPIC)
    admin.busy()
    admin.begin(lambda: admin.publisher.delete_topic(topic=TOPIC), lambda: admin.queued() == 1)
    admin.begin(lambda: admin.schemas.delete_schema(name=SCHEMA), lambda: admin.queued() == 2)
    admin.free()
    with pytest.raises(NotFound):
        admin.schemas.get_schema(name=SCHEMA)
