"""Topics and subscriptions with all options of inorder: what these allow is allowed, and what they mean is meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from google.protobuf import empty_pb2

from inorder.broker import MessageQueue
from inorder.errors import AlreadyExists, InvalidArgument, NotFound
from inorder.metadata import SubscriptionMetadata, TopicMetadata
from inorder.options import DeadLetterPolicy, SubscriptionOptions, TopicOptions, merge
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.protocol.options import changes_of, from_json, to_json
from inorder.server.admin import Admin, lasting
from inorder.server.names import Names, project_of
from inorder.server.paging import listed
from inorder.server.resources import googles_part, push_target
from inorder.server.status import (
    Context,
    RawCall,
    already_exists,
    invalid,
    subscription_missing,
    topic_missing,
    unary,
    within,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PROJECT_OF = re.compile(r"projects/[^/]+(?=/)")

# As far as a datetime goes.
MIN_TIME_US = -62_135_596_800_000_000
MAX_TIME_US = 253_402_300_799_999_999


class Resources:
    """The calls. `used` is told the broker's name of each subscription that somebody changes, or seeks in, before.

    `changed` is told of each that was made or changed.
    """

    def __init__(
        self,
        broker: MessageQueue,
        names: Names,
        admin: Admin,
        used: Callable[[str], None],
        changed: Callable[[str], None],
    ) -> None:
        self._broker = broker
        self._names = names
        self._admin = admin
        self._used = used
        self._changed = changed

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {
            "CreateTopic": unary(v1.CreateTopicRequest, self.create_topic),
            "GetTopic": unary(v1.GetTopicRequest, self.get_topic),
            "ListTopics": unary(v1.ListTopicsRequest, self.list_topics),
            "CreateSubscription": unary(v1.CreateSubscriptionRequest, lasting(self.create_subscription)),
            "UpdateSubscription": unary(v1.UpdateSubscriptionRequest, lasting(self.update_subscription)),
            "GetSubscription": unary(v1.GetSubscriptionRequest, self.get_subscription),
            "ListSubscriptions": unary(v1.ListSubscriptionsRequest, self.list_subscriptions),
            "Seek": unary(v1.SeekRequest, self.seek),
        }

    # -- topics ------------------------------------------------------------------------------------

    async def create_topic(self, request: v1.CreateTopicRequest, context: Context) -> v1.Topic:
        name = self._names.topic(request.topic)
        options = from_json(TopicOptions, request.options)
        _check_annotations(options.annotations, "")
        try:
            await self._admin.run(lambda: self._broker.register_topic(name, options))
        except AlreadyExists:
            raise already_exists("Topic", request.topic) from None
        return self._shown_topic(self._topic(request.topic))

    async def get_topic(self, request: v1.GetTopicRequest, context: Context) -> v1.Topic:
        return self._shown_topic(self._topic(request.topic))

    async def list_topics(self, request: v1.ListTopicsRequest, context: Context) -> v1.ListTopicsResponse:
        project, broker = project_of(request.project), self._broker
        found, following = listed(broker.topic_names(), self._names.topic_resource, broker.get_topic, project, request)
        return v1.ListTopicsResponse(topics=map(self._shown_topic, found), next_page_token=following)

    def _topic(self, resource: str) -> TopicMetadata:
        found = self._broker.get_topic(self._names.topic(resource))
        if found is None:
            raise topic_missing(resource)
        return found

    def _shown_topic(self, found: TopicMetadata) -> v1.Topic:
        return v1.Topic(
            name=self._names.topic_resource(found.name),
            options=to_json(found.options),
            created_us=(found.created - _EPOCH) // _MICROSECOND,
            published=found.published,
        )

    # -- subscriptions -----------------------------------------------------------------------------

    async def create_subscription(self, request: v1.CreateSubscriptionRequest, context: Context) -> v1.Subscription:
        name = self._names.subscription(request.subscription)
        topic = self._names.topic(request.topic)
        options = self._broker_options(request.subscription, from_json(SubscriptionOptions, request.options))
        _check_annotations(options.annotations, "")
        try:
            await self._admin.run(lambda: self._broker.register_subscription(name, topic, options))
        except AlreadyExists:
            raise already_exists("Subscription", request.subscription) from None
        except NotFound:
            raise topic_missing(request.topic) from None
        self._changed(name)
        return self._shown(self._subscription(request.subscription))

    async def update_subscription(self, request: v1.UpdateSubscriptionRequest, context: Context) -> v1.Subscription:
        changes = changes_of(request.changes)
        async with self._admin.changing:
            found = self._subscription(request.subscription)
            self._used(found.name)
            shown = own_options(self._names, found.name, found.options)
            options = self._broker_options(request.subscription, merge(shown, changes))
            _check_annotations(options.annotations, found.options.annotations)
            _check_pushed(options)
            try:
                await self._admin.run(lambda: self._broker.update_subscription(found.name, options))
            except NotFound:
                raise subscription_missing(request.subscription) from None
        self._changed(found.name)
        return self._shown(self._subscription(request.subscription))

    async def get_subscription(self, request: v1.GetSubscriptionRequest, context: Context) -> v1.Subscription:
        return self._shown(self._subscription(request.subscription))

    async def list_subscriptions(
        self, request: v1.ListSubscriptionsRequest, context: Context
    ) -> v1.ListSubscriptionsResponse:
        if request.HasField("topic"):
            beginning = ""
            names = [one.name for one in self._broker.get_subscriptions_for_topic(self._topic(request.topic).name)]
        else:
            beginning = project_of(request.project)
            names = self._broker.subscription_names()
        found, following = listed(
            names, self._names.subscription_resource, self._broker.get_subscription, beginning, request
        )
        return v1.ListSubscriptionsResponse(subscriptions=map(self._shown, found), next_page_token=following)

    async def seek(self, request: v1.SeekRequest, context: Context) -> empty_pb2.Empty:
        name = self._subscription(request.subscription).name
        self._used(name)
        if request.HasField("position"):
            await self._admin.run(lambda: self._broker.seek(name, position=request.position))
        elif request.HasField("time_us"):
            within("time_us", request.time_us, MIN_TIME_US, MAX_TIME_US)
            time = _EPOCH + timedelta(microseconds=request.time_us)
            await self._admin.run(lambda: self._broker.seek(name, time=time))
        else:
            raise invalid("The target of a seek must be set: a position or time_us.")
        return empty_pb2.Empty()

    def _subscription(self, resource: str) -> SubscriptionMetadata:
        found = self._broker.get_subscription(self._names.subscription(resource))
        if found is None:
            raise subscription_missing(resource)
        return found

    def _shown(self, found: SubscriptionMetadata) -> v1.Subscription:
        return v1.Subscription(
            name=self._names.subscription_resource(found.name),
            topic=self._names.topic_resource(found.topic),
            options=to_json(own_options(self._names, found.name, found.options)),
            created_us=(found.created - _EPOCH) // _MICROSECOND,
            detached=found.detached,
            topic_deleted=found.topic_deleted,
        )

    # A dead-letter topic has a plain name if it is in the project of its subscription, as everywhere in inorder, and
    # that may be another project than the one whose names are plain in the broker.

    def _broker_options(self, resource: str, options: SubscriptionOptions) -> SubscriptionOptions:
        policy = options.dead_letter_policy
        if policy is None:
            return options
        topic = policy.dead_letter_topic
        if "/" not in topic:
            topic = f"{_project(resource)}/topics/{topic}"
        return _with_topic(options, policy, self._names.topic(topic))


def own_options(names: Names, name: str, options: SubscriptionOptions) -> SubscriptionOptions:
    """The options of the broker's subscription `name`, as clients see them."""
    policy = options.dead_letter_policy
    if policy is None:
        return options
    topic = names.topic_resource(policy.dead_letter_topic)
    project = _project(names.subscription_resource(name))
    return _with_topic(options, policy, topic.removeprefix(f"{project}/topics/"))


def _with_topic(options: SubscriptionOptions, policy: DeadLetterPolicy, topic: str) -> SubscriptionOptions:
    return replace(options, dead_letter_policy=replace(policy, dead_letter_topic=topic))


def _project(resource: str) -> str:
    project = _PROJECT_OF.match(resource)
    assert project is not None
    return project[0]


def _check_annotations(annotations: str, before: str) -> None:
    """Google's calls check what they keep there, an endpoint to push to for instance: nobody gets it in past them."""
    if googles_part(annotations) != googles_part(before):
        raise InvalidArgument("annotations: what is below 'google.pubsub.v1' is changed by the calls of that service")


def _check_pushed(options: SubscriptionOptions) -> None:
    """What is pushed goes in requests that overlap: a key has order only if one of its messages is out at a time."""
    window = options.max_outstanding_per_key
    if window != 1 and push_target(options) is not None:
        raise InvalidArgument(f"max_outstanding_per_key: 1, as this subscription is pushed, not {window}")
