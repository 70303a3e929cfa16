"""A topic as users see it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from inorder.client.connection import Connection
from inorder.client.subscription import Subscription
from inorder.errors import InvalidMessage, TopicNotFound
from inorder.message import Columns, Message, check_ordering_key
from inorder.metadata import TopicMetadata
from inorder.options import PublishOptions, TopicOptions, build, check_name, named
from inorder.pending import Pending


def json_bytes(obj: Any) -> bytes:
    """An object as the data of a message."""
    try:
        return json.dumps(obj, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"not representable as JSON: {error}") from None


class Topic:
    """A handle on a topic: it need not exist yet. Handles of one name are interchangeable."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.name = check_name("topic", name)
        self._connection = connection
        self._transport = connection.transport
        self._tracing = connection.tracing
        self._publisher = connection.publisher(name)

    def create(self, options: TopicOptions | Mapping[str, Any] | None = None, /, **more: Any) -> Pending[Topic]:
        """Create the topic. `AlreadyExists` if it is there."""
        return (
            Pending.run(lambda: build(TopicOptions, options, **more))
            .then(lambda checked: self._transport.create_topic(self.name, checked))
            .map(lambda _: self)
        )

    def exists(self) -> Pending[bool]:
        """Whether the topic was created, and not deleted since."""
        return self._transport.get_topic(self.name).map(lambda metadata: metadata is not None)

    def delete(self) -> Pending[None]:
        """Delete the topic and its messages. Its subscriptions stay, detached."""
        return self._transport.delete_topic(self.name)

    def metadata(self) -> Pending[TopicMetadata]:
        """Its options, when it was created, and how many messages were published. `NotFound` if it is not there."""

        def found(metadata: TopicMetadata | None) -> TopicMetadata:
            if metadata is None:
                raise TopicNotFound(self.name)
            return metadata

        return self._transport.get_topic(self.name).map(found)

    def publish_message(
        self,
        data: bytes = b"",
        attributes: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
    ) -> Pending[str]:
        """Publish one message; the answer is its id. Messages of a key keep the order of these calls."""
        if self._tracing is None:
            return self._publisher.publish(data, attributes, ordering_key)
        publication = self._tracing.publishing(self.name)
        answer = self._publisher.publish(data, attributes, ordering_key, publication.mark)
        answer.add_done_callback(publication.answered)
        return answer

    def publish_json(
        self, obj: Any, *, attributes: Mapping[str, str] | None = None, ordering_key: str | None = None
    ) -> Pending[str]:
        """Publish an object as JSON."""
        try:
            data = json_bytes(obj)
        except InvalidMessage as error:
            return Pending.failed(error)
        return self.publish_message(data, attributes, ordering_key)

    def publish_many(self, messages: Iterable[Message] | Columns) -> Pending[list[str]]:
        """Publish messages in order; the answer is their ids. One bad message refuses them all.

        `Columns` are messages side by side, for whoever needs no object of each.
        """
        if self._tracing is None:
            return self._publisher.publish_many(messages)
        publication = self._tracing.publishing(self.name)
        answer = self._publisher.publish_many(messages, publication.mark)
        answer.add_done_callback(publication.answered)
        return answer

    def set_publish_options(self, options: PublishOptions | Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """How this topic is published to from now on: `message_ordering`, `batching`, `flow_control`."""
        self._publisher.set_options(named(PublishOptions, options, more))

    def flush(self) -> Pending[None]:
        """Send what is collected; done when everything published before is answered."""
        return self._publisher.flush()

    def resume_publishing(self, ordering_key: str) -> None:
        """Publish on a key again that was paused because a publish of it failed."""
        check_ordering_key(ordering_key)
        self._publisher.resume(ordering_key)

    def paused_keys(self) -> list[str]:
        """The keys that wait for `resume_publishing`."""
        return self._publisher.paused_keys()

    def subscription(self, name: str) -> Subscription:
        """A handle on a subscription to this topic."""
        return Subscription(self._connection, name, self.name)

    def subscriptions(self) -> Pending[list[Subscription]]:
        """The subscriptions of this topic, by name."""
        return self._transport.list_subscriptions(self.name).map(
            lambda found: [Subscription(self._connection, metadata.name, self.name) for metadata in found]
        )

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"
