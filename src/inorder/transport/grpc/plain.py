"""Any other server of google.pubsub.v1: Google's service, its emulator.

It knows what that protocol has words for. What is inorder's own, it cannot be asked: queue limits, parked keys, gaps,
counters. A publish whose answer was lost is sent again, and may be stored twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from google.protobuf import duration_pb2, field_mask_pb2, timestamp_pb2
from google.pubsub_v1.types import pubsub

from inorder.clock import MICROSECONDS, Clock
from inorder.errors import (
    FailedPrecondition,
    InvalidAckId,
    InvalidArgument,
    SubscriptionAlreadyExists,
    SubscriptionNotFound,
    TopicAlreadyExists,
    TopicNotFound,
)
from inorder.message import Gap, Message
from inorder.metadata import BlockedKey, Metrics, SubscriptionMetadata, TopicMetadata, Unacked
from inorder.options import (
    DeadLetterPolicy,
    RetryPolicy,
    SubscriptionOptions,
    TopicOptions,
    build,
    check_whole,
    merge,
)
from inorder.pending import Pending
from inorder.transport.address import Address
from inorder.transport.grpc.calls import Calls
from inorder.transport.grpc.found import as_fact, if_found, on_all_pages
from inorder.transport.grpc.plain_answers import PlainAnswers, StreamAnswers
from inorder.transport.grpc.plain_stream import PlainDeliveries, read, stream_deadline_seconds
from inorder.transport.grpc.publishing import Outlet

T = TypeVar("T")

_PUBLISHER = "/google.pubsub.v1.Publisher/"
_SUBSCRIBER = "/google.pubsub.v1.Subscriber/"
_ONE_OF_A_KEY = SubscriptionOptions().max_outstanding_per_key
MAX_PULLED = 1_000  # by one call: Pub/Sub gives no more
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)  # when a resource was made, the protocol does not tell

# The options of a subscription that the protocol has words for.
_KNOWN = {
    "ack_deadline_seconds",
    "enable_message_ordering",
    "retain_acked_messages",
    "message_retention_duration",
    "retry_policy",
    "dead_letter_policy",
    "filter",
}


class PlainServer:
    """Its calls."""

    def __init__(self, calls: Calls, target: Address, clock: Clock) -> None:
        self._calls = calls
        self._target = target
        self._clock = clock
        self._answers: dict[str, PlainAnswers] = {}
        self._lock = threading.Lock()

    # -- topics and subscriptions ------------------------------------------------------------------

    def create_topic(self, name: str, options: TopicOptions) -> Pending[None]:
        topic = pubsub.Topic.pb()(name=self._target.topic(name))
        if options.message_retention_duration is not None:
            topic.message_retention_duration.CopyFrom(_duration(options.message_retention_duration))
        created = self._calls.once(f"{_PUBLISHER}CreateTopic", topic.SerializeToString()).map(_nothing)
        return as_fact(created, TopicNotFound(name), TopicAlreadyExists(name))

    def delete_topic(self, name: str) -> Pending[None]:
        request = pubsub.DeleteTopicRequest.pb()(topic=self._target.topic(name))
        deleted = self._calls.once(f"{_PUBLISHER}DeleteTopic", request.SerializeToString()).map(_nothing)
        return as_fact(deleted, TopicNotFound(name))

    def get_topic(self, name: str) -> Pending[TopicMetadata | None]:
        request = pubsub.GetTopicRequest.pb()(topic=self._target.topic(name))
        return if_found(self._ask(f"{_PUBLISHER}GetTopic", request, pubsub.Topic).map(self._topic))

    def list_topics(self) -> Pending[list[TopicMetadata]]:
        request = pubsub.ListTopicsRequest.pb()(project=f"projects/{self._target.project}")
        method = f"{_PUBLISHER}ListTopics"
        return self._pages(method, request, pubsub.ListTopicsResponse, lambda page: map(self._topic, page.topics))

    def create_subscription(self, name: str, topic: str, options: SubscriptionOptions) -> Pending[None]:
        def create() -> Pending[bytes]:
            wanted = self._wanted(name, options)
            wanted.topic = self._target.topic(topic)
            return self._calls.once(f"{_SUBSCRIBER}CreateSubscription", wanted.SerializeToString())

        created = Pending.run(create).then(lambda sent: sent).map(_nothing)
        return as_fact(created, TopicNotFound(topic), SubscriptionAlreadyExists(name))

    def update_subscription(self, name: str, changes: Mapping[str, Any]) -> Pending[None]:
        def update(found: SubscriptionMetadata) -> Pending[bytes]:
            options = merge(found.options, changes)
            wanted = self._wanted(name, options)
            # Whoever gives all options gives that of `create`, which takes it too.
            if options.max_outstanding_per_key not in (found.options.max_outstanding_per_key, _ONE_OF_A_KEY):
                raise _no_option("max_outstanding_per_key")
            # What stays as it is must not be named: some of it may not change, and an empty list is refused.
            paths = sorted(field for field in _KNOWN if getattr(options, field) != getattr(found.options, field))
            if not paths:
                return Pending.of(b"")
            request = pubsub.UpdateSubscriptionRequest.pb()(
                subscription=wanted, update_mask=field_mask_pb2.FieldMask(paths=paths)
            )
            return self._calls.once(f"{_SUBSCRIBER}UpdateSubscription", request.SerializeToString())

        return self._subscription(name).then(update).map(_nothing)

    def delete_subscription(self, name: str) -> Pending[None]:
        request = pubsub.DeleteSubscriptionRequest.pb()(subscription=self._target.subscription(name))
        deleted = self._calls.once(f"{_SUBSCRIBER}DeleteSubscription", request.SerializeToString()).map(_nothing)
        return as_fact(deleted, SubscriptionNotFound(name))

    def get_subscription(self, name: str) -> Pending[SubscriptionMetadata | None]:
        return if_found(self._subscription(name))

    def list_subscriptions(self, topic: str | None) -> Pending[list[SubscriptionMetadata]]:
        request = pubsub.ListSubscriptionsRequest.pb()(project=f"projects/{self._target.project}")
        wanted = None if topic is None else self._target.topic(topic)
        return self._pages(
            f"{_SUBSCRIBER}ListSubscriptions",
            request,
            pubsub.ListSubscriptionsResponse,
            lambda page: [self._shown(one) for one in page.subscriptions if wanted in (None, one.topic)],
        )

    def seek(self, subscription: str, position: int | None, time_us: int | None) -> Pending[None]:
        if time_us is None:
            return _absent("seek to a position")
        seconds, microseconds = divmod(time_us, MICROSECONDS)
        request = pubsub.SeekRequest.pb()(subscription=self._target.subscription(subscription))
        request.time.CopyFrom(timestamp_pb2.Timestamp(seconds=seconds, nanos=1000 * microseconds))
        sought = self._calls.once(f"{_SUBSCRIBER}Seek", request.SerializeToString()).map(_nothing)
        return as_fact(sought, SubscriptionNotFound(subscription))

    def blocked_keys(self, subscription: str) -> Pending[list[BlockedKey]]:
        return _absent("blocked_keys")

    def resume_key(self, subscription: str, key: str) -> Pending[None]:
        return _absent("resume_key")

    def skip(self, subscription: str, key: str) -> Pending[str]:
        return _absent("skip")

    def unacked(self, subscription: str) -> Pending[Unacked]:
        return _absent("unacked")

    def metrics(self, subscription: str) -> Pending[Metrics]:
        return _absent("metrics")

    # -- messages ----------------------------------------------------------------------------------

    def outlet(self, topic: str) -> Outlet:
        return Outlet(self._calls, topic, self._target.topic(topic), once=False)

    def pull(self, subscription: str, max_messages: int, on_gap: Callable[[Gap], object]) -> Pending[list[Message]]:
        answers = self._answers_of(subscription)

        def pull() -> Pending[bytes]:
            check_whole("max_messages", max_messages)
            request = pubsub.PullRequest.pb()(
                subscription=self._target.subscription(subscription),
                max_messages=min(max_messages, MAX_PULLED),
                return_immediately=True,
            )
            return self._calls.repeated(f"{_SUBSCRIBER}Pull", request.SerializeToString())

        def pulled(raw: bytes) -> list[Message]:
            received = pubsub.PullResponse.pb().FromString(raw).received_messages
            leases = answers.leased(received)
            return read(zip(received, leases, strict=True), lambda prefix: PulledFrom(prefix, answers))

        messages = Pending.run(pull).then(lambda pulling: pulling).map(pulled)
        return as_fact(messages, SubscriptionNotFound(subscription))

    def deliveries(
        self, subscription: str, wake: Callable[[], None], report: Callable[[str], None], eager: bool
    ) -> PlainDeliveries:
        found = self._subscription(subscription).result(self._calls.timeout_seconds)
        resource = self._target.subscription(subscription)
        options = found.options
        lease_seconds, ordered = stream_deadline_seconds(options), options.enable_message_ordering
        answers = StreamAnswers(self._calls, resource, self._clock, lease_seconds, ordered=ordered)
        return PlainDeliveries(self._calls, self._clock, subscription, resource, options, answers, wake)

    def _answers_of(self, subscription: str) -> PlainAnswers:
        with self._lock:
            if subscription not in self._answers:
                resource = self._target.subscription(subscription)
                self._answers[subscription] = PlainAnswers(self._calls, resource, self._clock)
            return self._answers[subscription]

    # -- requests and answers ----------------------------------------------------------------------

    def _ask(self, method: str, request: Any, response: Any) -> Pending[Any]:
        return self._calls.repeated(method, request.SerializeToString()).map(response.pb().FromString)

    def _pages(self, method: str, request: Any, response: Any, found: Callable[[Any], Any]) -> Pending[list[Any]]:
        def ask(token: str) -> Pending[Any]:
            request.page_token = token
            return self._ask(method, request, response)

        return on_all_pages(ask, found)

    def _topic(self, topic: Any) -> TopicMetadata:
        retention = None
        if topic.HasField("message_retention_duration"):
            retention = topic.message_retention_duration.ToTimedelta().total_seconds()
        options = TopicOptions(message_retention_duration=retention)
        return TopicMetadata(self._target.name_of(topic.name), _NEVER, options, 0)

    def _subscription(self, name: str) -> Pending[SubscriptionMetadata]:
        request = pubsub.GetSubscriptionRequest.pb()(subscription=self._target.subscription(name))
        found = self._ask(f"{_SUBSCRIBER}GetSubscription", request, pubsub.Subscription).map(self._shown)
        return as_fact(found, SubscriptionNotFound(name))

    def _shown(self, found: Any) -> SubscriptionMetadata:
        options: dict[str, Any] = {
            "ack_deadline_seconds": found.ack_deadline_seconds or 10,
            "enable_message_ordering": found.enable_message_ordering,
            "retain_acked_messages": found.retain_acked_messages,
        }
        if found.enable_message_ordering:
            # So many as it sends: in order, and all on one stream.
            options["max_outstanding_per_key"] = 1_000
        if found.HasField("message_retention_duration"):
            options["message_retention_duration"] = found.message_retention_duration.ToTimedelta().total_seconds()
        if found.HasField("retry_policy"):
            policy = found.retry_policy
            options["retry_policy"] = RetryPolicy(
                policy.minimum_backoff.ToTimedelta().total_seconds(),
                policy.maximum_backoff.ToTimedelta().total_seconds(),
            )
        if found.dead_letter_policy.dead_letter_topic:
            dead = found.dead_letter_policy
            options["dead_letter_policy"] = DeadLetterPolicy(
                self._target.name_of(dead.dead_letter_topic), max_delivery_attempts=dead.max_delivery_attempts or 5
            )
        if found.filter:
            options["filter"] = found.filter
        return SubscriptionMetadata(
            self._target.name_of(found.name),
            self._target.name_of(found.topic),
            _NEVER,
            build(SubscriptionOptions, options),
            found.detached or found.topic == "_deleted-topic_",
            found.topic == "_deleted-topic_",
        )

    def _wanted(self, name: str, options: SubscriptionOptions) -> Any:
        """What is asked for, in the words of the protocol; what it has none for is refused."""
        default = SubscriptionOptions()
        for field in fields(SubscriptionOptions):
            asked = getattr(options, field.name)
            windowed = field.name == "max_outstanding_per_key" and options.enable_message_ordering
            if field.name not in _KNOWN and not windowed and asked != getattr(default, field.name):
                raise _no_option(field.name)
        if options.ack_deadline_seconds != int(options.ack_deadline_seconds):
            raise InvalidArgument(
                f"ack_deadline_seconds: whole seconds with this server, not {options.ack_deadline_seconds}"
            )
        wanted = pubsub.Subscription.pb()(
            name=self._target.subscription(name),
            ack_deadline_seconds=int(options.ack_deadline_seconds),
            enable_message_ordering=options.enable_message_ordering,
            retain_acked_messages=options.retain_acked_messages,
            filter=options.filter or "",
        )
        if options.message_retention_duration != default.message_retention_duration:
            wanted.message_retention_duration.CopyFrom(_duration(options.message_retention_duration))
        if (retry := options.retry_policy) is not None:
            wanted.retry_policy.minimum_backoff.CopyFrom(_duration(retry.minimum_backoff))
            wanted.retry_policy.maximum_backoff.CopyFrom(_duration(retry.maximum_backoff))
        if (dead := options.dead_letter_policy) is not None:
            wanted.dead_letter_policy.dead_letter_topic = self._target.topic(dead.dead_letter_topic)
            wanted.dead_letter_policy.max_delivery_attempts = dead.max_delivery_attempts
        return wanted


class PulledFrom:
    """Where messages of a pull came from, and so where their answers go."""

    def __init__(self, id_prefix: str, answers: PlainAnswers) -> None:
        self.id_prefix = id_prefix
        self.ack_id_prefix = ""
        self._answers = answers

    def ack(self, message: Message, answer: Pending[None]) -> None:
        self._said(self._answers.settle([message._lease], ()), message._lease).hand_to(answer)

    def nack(self, message: Message, answer: Pending[None]) -> None:
        self._said(self._answers.settle((), [message._lease]), message._lease).hand_to(answer)

    def modify_ack_deadline(self, lease: int, seconds: float) -> Pending[None]:
        return self._said(self._answers.extend([lease], seconds), lease)

    def _said(self, over: Pending[list[int]], lease: int) -> Pending[None]:
        def replied(found: Sequence[int]) -> None:
            if found:
                raise InvalidAckId(f"{lease}")

        return over.map(replied)


def _nothing(_: object) -> None:
    return None


def _absent(what: str) -> Pending[Any]:
    return Pending.failed(FailedPrecondition(f"{what}: this server knows google.pubsub.v1 only; inorder serve can"))


def _no_option(name: str) -> FailedPrecondition:
    return FailedPrecondition(f"{name}: this server knows google.pubsub.v1 only, which has no such option")


def _duration(seconds: float | None) -> Any:
    whole, rest = divmod(round((seconds or 0) * MICROSECONDS), MICROSECONDS)
    return duration_pb2.Duration(seconds=whole, nanos=1000 * rest)
