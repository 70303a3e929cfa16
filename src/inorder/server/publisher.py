"""google.pubsub.v1.Publisher: topics, and what is published to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Any

from google.protobuf import empty_pb2
from google.pubsub_v1.types import pubsub

from inorder.broker import MessageQueue
from inorder.core.producers import Attempt
from inorder.errors import AlreadyExists, InorderError, NotFound
from inorder.message import Ids, numbered
from inorder.metadata import TopicMetadata
from inorder.options import TopicOptions
from inorder.protocol import PRODUCER_KEY
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.server.admin import Admin, lasting
from inorder.server.limits import MAX_COLUMNS, MAX_PUBLISHED, check_batch, check_request_size
from inorder.server.names import Names, project_of
from inorder.server.paging import listed, page
from inorder.server.resources import Proto, topic_of, topic_options, topic_schema, updated
from inorder.server.schemas.book import MessageRefused, SchemaBook, SchemaSettings
from inorder.server.schemas.publishing import fitting
from inorder.server.schemas.service import refused
from inorder.server.status import (
    Context,
    RawCall,
    Refusal,
    already_exists,
    guarded,
    parsed,
    subscription_missing,
    topic_missing,
    unary,
)
from inorder.server.wire import publish_response, published, published_columns

SERVICE = "google.pubsub.v1.Publisher"


def _attempt(context: Context) -> v1.Attempt | None:
    """What a client that knows inorder.v1 says of its request."""
    for key, value in context.invocation_metadata():
        if key == PRODUCER_KEY:
            attempt: v1.Attempt = parsed(v1.Attempt, value)
            return attempt
    return None


def _once(attempt: v1.Attempt) -> Attempt:
    return Attempt(attempt.producer, attempt.epoch, attempt.number)


class Publisher:
    """The calls of the service. `forget` is told the name of each topic that is deleted, before and after."""

    def __init__(
        self,
        broker: MessageQueue,
        names: Names,
        admin: Admin,
        schemas: SchemaBook,
        forget: Callable[[str], Awaitable[None]],
    ) -> None:
        self._forget = forget
        self._broker = broker
        self._names = names
        self._admin = admin
        self._schemas = schemas
        self._asked: dict[str, tuple[TopicOptions, SchemaSettings | None]] = {}  # as last read of each topic

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {
            "CreateTopic": unary(pubsub.Topic.pb(), lasting(self.create_topic)),
            "GetTopic": unary(pubsub.GetTopicRequest.pb(), self.get_topic),
            "UpdateTopic": unary(pubsub.UpdateTopicRequest.pb(), lasting(self.update_topic)),
            "ListTopics": unary(pubsub.ListTopicsRequest.pb(), self.list_topics),
            "DeleteTopic": unary(pubsub.DeleteTopicRequest.pb(), lasting(self.delete_topic)),
            "ListTopicSubscriptions": unary(pubsub.ListTopicSubscriptionsRequest.pb(), self.list_topic_subscriptions),
            "DetachSubscription": unary(pubsub.DetachSubscriptionRequest.pb(), self.detach_subscription),
            "Publish": guarded(self.publish),
        }

    async def publish(self, raw: bytes, context: Context) -> bytes:
        attempt = _attempt(context)
        if attempt is None:  # a client of ours may send the largest message, with what stands around it
            check_request_size(len(raw))
        columns = attempt is not None and attempt.columns
        topic, batch = published_columns(raw) if columns else published(raw)
        name = self._names.topic(topic)
        try:
            check_batch(batch, most=MAX_COLUMNS if columns else MAX_PUBLISHED, may_be_empty=attempt is not None)
        except (InorderError, Refusal):
            if not self._broker.topic_exists(name):  # which a client is to know first
                raise topic_missing(topic) from None
            raise
        settings = self._settings(topic)
        if settings is not None:
            try:
                batch = fitting(self._schemas, settings, batch)
            except InorderError as error:
                # What is stored is stored, whatever the schema says by now: refused, it would be published again.
                if attempt is None or not self._broker.has_stored(name, _once(attempt), len(batch[0])):
                    raise refused(error) if isinstance(error, MessageRefused) else error from None
        try:
            once = None if attempt is None else _once(attempt)
            answer = self._broker.submit(name, batch, once, Ids if columns else numbered)
        except NotFound:
            raise topic_missing(topic) from None
        if attempt is not None and attempt.now:
            self._broker.withdraw([answer])  # if it waits for room
        try:
            return publish_response(await answer)
        except NotFound:  # it was deleted while this waited for room
            raise topic_missing(topic) from None
        except asyncio.CancelledError:
            # If it still waits for room, it does not come later, beside what the client then sends again.
            self._broker.withdraw([answer])
            raise

    async def create_topic(self, request: Proto, context: Context) -> Proto:
        name = self._names.new("topics", request.name)
        options = topic_options(request)
        # A schema that is being deleted looks first which topics have it, and waits for one that is being made with it.
        async with nullcontext() if topic_schema(options) is None else self._admin.changing:
            self._checked(options)
            try:
                await self._admin.run(lambda: self._broker.register_topic(name, options))
            except AlreadyExists:
                raise already_exists("Topic", request.name) from None
        return topic_of(self._topic(request.name), self._names)

    async def get_topic(self, request: Proto, context: Context) -> Proto:
        return topic_of(self._topic(request.topic), self._names)

    async def update_topic(self, request: Proto, context: Context) -> Proto:
        resource = request.topic.name
        async with self._admin.changing:
            found = self._topic(resource)
            shown = topic_of(found, self._names)
            wanted = updated(shown, request.topic, request.update_mask)
            options = self._checked(topic_options(wanted, found.options, shown), topic_schema(found.options))
            try:
                await self._admin.run(lambda: self._broker.update_topic(found.name, options))
            except NotFound:
                raise topic_missing(resource) from None
        return topic_of(self._topic(resource), self._names)

    async def delete_topic(self, request: Proto, context: Context) -> Proto:
        name = self._topic(request.topic).name
        await self._forget(request.topic)
        try:
            await self._admin.run(lambda: self._broker.unregister_topic(name))
        except NotFound:
            raise topic_missing(request.topic) from None
        await self._forget(request.topic)  # and what was set of it meanwhile
        self._asked.pop(request.topic, None)
        return empty_pb2.Empty()

    async def list_topics(self, request: Proto, context: Context) -> Proto:
        project, broker = project_of(request.project), self._broker
        found, following = listed(broker.topic_names(), self._names.topic_resource, broker.get_topic, project, request)
        response: Any = pubsub.ListTopicsResponse.pb()(next_page_token=following)
        response.topics.extend(topic_of(one, self._names) for one in found)
        return response

    async def list_topic_subscriptions(self, request: Proto, context: Context) -> Proto:
        found = self._broker.get_subscriptions_for_topic(self._topic(request.topic).name)
        names, following = page([self._names.subscription_resource(one.name) for one in found], request)
        return pubsub.ListTopicSubscriptionsResponse.pb()(subscriptions=names, next_page_token=following)

    async def detach_subscription(self, request: Proto, context: Context) -> Proto:
        name = self._names.subscription(request.subscription)
        try:
            await self._admin.run(lambda: self._broker.detach_subscription(name))
        except NotFound:
            raise subscription_missing(request.subscription) from None
        return pubsub.DetachSubscriptionResponse.pb()()

    def _checked(self, options: TopicOptions, before: SchemaSettings | None = None) -> TopicOptions:
        settings = topic_schema(options)
        if settings is not None and settings != before:  # what it has may stay, also when the schema is gone
            self._schemas.check_settings(settings)
        return options

    def _settings(self, resource: str) -> SchemaSettings | None:
        options = self._topic(resource).options
        asked = self._asked.get(resource)
        if asked is None or asked[0] is not options:
            asked = self._asked[resource] = (options, topic_schema(options))
        return asked[1]

    def _topic(self, resource: str) -> TopicMetadata:
        found = self._broker.get_topic(self._names.topic(resource))
        if found is None:
            raise topic_missing(resource)
        return found
