"""A server that knows inorder.v1: topics and subscriptions with all their options, keys and counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from inorder.clock import Clock
from inorder.message import Gap, Message
from inorder.metadata import (
    BlockedKey,
    Counters,
    Metrics,
    SubscriptionMetadata,
    TopicMetadata,
    Unacked,
    UnackedKey,
)
from inorder.options import SubscriptionOptions, TopicOptions
from inorder.pending import Pending
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.protocol.options import to_json, told
from inorder.transport.address import Address
from inorder.transport.grpc.calls import Calls
from inorder.transport.grpc.found import if_found, on_all_pages
from inorder.transport.grpc.publishing import Outlet
from inorder.transport.grpc.pulling import Puller
from inorder.transport.grpc.stream import OwnDeliveries

T = TypeVar("T")

_INORDER = "/inorder.v1.Inorder/"
_DELETE_TOPIC = "/google.pubsub.v1.Publisher/DeleteTopic"
_DELETE_SUBSCRIPTION = "/google.pubsub.v1.Subscriber/DeleteSubscription"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OwnServer:
    """Its calls."""

    def __init__(self, calls: Calls, target: Address, clock: Clock, description: v1.Description) -> None:
        self._calls = calls
        self._target = target
        self._clock = clock
        self._columns = description.columns
        self._pullers: dict[str, Puller] = {}

    def create_topic(self, name: str, options: TopicOptions) -> Pending[None]:
        request = v1.CreateTopicRequest(topic=self._target.topic(name), options=to_json(options))
        return self._change("CreateTopic", request)

    def delete_topic(self, name: str) -> Pending[None]:
        request = v1.GetTopicRequest(topic=self._target.topic(name))  # Google's request to delete one looks the same
        return self._calls.once(_DELETE_TOPIC, request.SerializeToString()).map(lambda _: None)

    def get_topic(self, name: str) -> Pending[TopicMetadata | None]:
        request = v1.GetTopicRequest(topic=self._target.topic(name))
        return if_found(self._ask("GetTopic", request, v1.Topic).map(self._topic))

    def list_topics(self) -> Pending[list[TopicMetadata]]:
        request = v1.ListTopicsRequest(project=f"projects/{self._target.project}", page_size=1_000)
        return self._pages("ListTopics", request, v1.ListTopicsResponse, lambda page: map(self._topic, page.topics))

    def create_subscription(self, name: str, topic: str, options: SubscriptionOptions) -> Pending[None]:
        request = v1.CreateSubscriptionRequest(
            subscription=self._target.subscription(name), topic=self._target.topic(topic), options=to_json(options)
        )
        return self._change("CreateSubscription", request)

    def update_subscription(self, name: str, changes: Mapping[str, Any]) -> Pending[None]:
        request = v1.UpdateSubscriptionRequest(subscription=self._target.subscription(name), changes=to_json(changes))
        return self._change("UpdateSubscription", request)

    def delete_subscription(self, name: str) -> Pending[None]:
        request = v1.GetSubscriptionRequest(subscription=self._target.subscription(name))  # as above
        return self._calls.once(_DELETE_SUBSCRIPTION, request.SerializeToString()).map(lambda _: None)

    def get_subscription(self, name: str) -> Pending[SubscriptionMetadata | None]:
        request = v1.GetSubscriptionRequest(subscription=self._target.subscription(name))
        return if_found(self._ask("GetSubscription", request, v1.Subscription).map(self._subscription))

    def list_subscriptions(self, topic: str | None) -> Pending[list[SubscriptionMetadata]]:
        request = v1.ListSubscriptionsRequest(page_size=1_000)
        if topic is None:
            request.project = f"projects/{self._target.project}"
        else:
            request.topic = self._target.topic(topic)
        return self._pages(
            "ListSubscriptions",
            request,
            v1.ListSubscriptionsResponse,
            lambda page: map(self._subscription, page.subscriptions),
        )

    def outlet(self, topic: str) -> Outlet:
        return Outlet(
            self._calls,
            topic,
            self._target.topic(topic),
            once=True,
            producer=self._target.producer,
            columns=self._columns,
        )

    def pull(self, subscription: str, max_messages: int, on_gap: Callable[[Gap], object]) -> Pending[list[Message]]:
        puller = self._pullers.get(subscription)
        if puller is None:
            puller = self._pullers.setdefault(
                subscription, Puller(self._calls, self._target.subscription(subscription))
            )
        return puller.pull(max_messages, on_gap)

    def deliveries(
        self, subscription: str, wake: Callable[[], None], report: Callable[[str], None], eager: bool
    ) -> OwnDeliveries:
        resource = self._target.subscription(subscription)
        return OwnDeliveries(self._calls, self._clock, subscription, resource, wake, report, eager)

    def seek(self, subscription: str, position: int | None, time_us: int | None) -> Pending[None]:
        request = v1.SeekRequest(subscription=self._target.subscription(subscription))
        if position is not None:
            request.position = position
        elif time_us is not None:
            request.time_us = time_us
        return self._change("Seek", request)

    def blocked_keys(self, subscription: str) -> Pending[list[BlockedKey]]:
        request = v1.BlockedKeysRequest(subscription=self._target.subscription(subscription))
        return self._ask("BlockedKeys", request, v1.BlockedKeysResponse).map(
            lambda found: [_plain(BlockedKey, key) for key in found.keys]
        )

    def resume_key(self, subscription: str, key: str) -> Pending[None]:
        return self._change("ResumeKey", self._key(subscription, key))

    def skip(self, subscription: str, key: str) -> Pending[str]:
        sent = self._calls.once(f"{_INORDER}SkipKey", self._key(subscription, key).SerializeToString())
        return sent.map(lambda raw: v1.SkipKeyResponse.FromString(raw).message_id)

    def unacked(self, subscription: str) -> Pending[Unacked]:
        request = v1.UnackedRequest(subscription=self._target.subscription(subscription))
        return self._ask("Unacked", request, v1.UnackedResponse).map(
            lambda found: Unacked(tuple(_plain(UnackedKey, key) for key in found.keys), found.known_to)
        )

    def metrics(self, subscription: str) -> Pending[Metrics]:
        def metrics(found: v1.MetricsResponse) -> Metrics:
            gauges = {field.name: getattr(found, field.name) for field in fields(Metrics) if field.name != "counters"}
            # A later server may count more, and one before may have counted less.
            counters = {field.name: found.counters.get(field.name, 0) for field in fields(Counters)}
            return Metrics(Counters(**counters), **gauges)

        request = v1.MetricsRequest(subscription=self._target.subscription(subscription))
        return self._ask("Metrics", request, v1.MetricsResponse).map(metrics)

    # -- requests and answers ----------------------------------------------------------------------

    def _key(self, subscription: str, key: str) -> v1.KeyRequest:
        return v1.KeyRequest(subscription=self._target.subscription(subscription), ordering_key=key)

    def _ask(self, method: str, request: Any, response: type[T]) -> Pending[T]:
        answer = self._calls.repeated(_INORDER + method, request.SerializeToString())
        return answer.map(lambda raw: response.FromString(raw))  # type: ignore[attr-defined]

    def _change(self, method: str, request: Any) -> Pending[None]:
        return self._calls.once(_INORDER + method, request.SerializeToString()).map(lambda _: None)

    def _pages(self, method: str, request: Any, response: type[Any], read: Callable[[Any], Any]) -> Pending[list[Any]]:
        def ask(token: str) -> Pending[Any]:
            request.page_token = token
            return self._ask(method, request, response)

        return on_all_pages(ask, read)

    def _topic(self, topic: v1.Topic) -> TopicMetadata:
        options = told(TopicOptions, topic.options)
        return TopicMetadata(self._target.name_of(topic.name), _time(topic.created_us), options, topic.published)

    def _subscription(self, found: v1.Subscription) -> SubscriptionMetadata:
        return SubscriptionMetadata(
            self._target.name_of(found.name),
            self._target.name_of(found.topic),
            _time(found.created_us),
            told(SubscriptionOptions, found.options),
            found.detached,
            found.topic_deleted,
        )


def _time(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)


def _plain(kind: type[T], found: Any) -> T:
    """A value of ours with the fields of a message that has the same names."""
    return kind(**{field.name: getattr(found, field.name) for field in fields(kind)})  # type: ignore[arg-type]
