"""google.pubsub.v1.Subscriber: subscriptions, and what is delivered by them, except for streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf import empty_pb2
from google.pubsub_v1.types import pubsub

from inorder.broker import MessageQueue
from inorder.clock import MICROSECONDS
from inorder.errors import AlreadyExists, InorderError, NotFound
from inorder.message import Leased, Message
from inorder.metadata import SubscriptionMetadata
from inorder.options import SubscriptionOptions
from inorder.server.admin import Admin, lasting
from inorder.server.answers import Answers, Found, check_deadline, no_ack_id, outcome
from inorder.server.desk import Desk
from inorder.server.desks import Desks
from inorder.server.limits import MAX_PULLED, MAX_RESPONSE_BYTES, check_request_size
from inorder.server.names import Names, project_of
from inorder.server.paging import listed
from inorder.server.push.pushes import Pushes
from inorder.server.resources import Proto, exactly_once, subscription_of, subscription_options, updated
from inorder.server.status import (
    Context,
    RawCall,
    ack_ids_failed,
    already_exists,
    guarded,
    invalid,
    parsed,
    snapshot_missing,
    subscription_missing,
    topic_missing,
    unary,
    within,
)
from inorder.server.wire import received

SERVICE = "google.pubsub.v1.Subscriber"
PullRequest = pubsub.PullRequest.pb()

PULL_SECONDS = 30.0  # how long a pull waits whose client would wait longer
MARGIN_SECONDS = 0.25  # before the client gives up: so that it gets an answer, and loses no message on its way
TIME_SECONDS = (-62_135_596_800, 253_402_300_799)  # from the year 1 to the end of 9999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Subscriber:
    """The calls of the service. `window` is how many messages of a key may be out, where order is kept.

    `forget` is told of each subscription that is deleted, before and after.
    """

    def __init__(
        self,
        broker: MessageQueue,
        names: Names,
        admin: Admin,
        desks: Desks,
        pushes: Pushes,
        window: int,
        push_anywhere: bool,
        forget: Callable[[str], Awaitable[None]],
    ) -> None:
        self._forget = forget
        self._pushes = pushes
        self._push_anywhere = push_anywhere
        self._broker = broker
        self._names = names
        self._admin = admin
        self._desks = desks
        self._window = window
        self._answers = Answers(broker, names)

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {
            "CreateSubscription": unary(pubsub.Subscription.pb(), lasting(self.create_subscription)),
            "GetSubscription": unary(pubsub.GetSubscriptionRequest.pb(), self.get_subscription),
            "UpdateSubscription": unary(pubsub.UpdateSubscriptionRequest.pb(), lasting(self.update_subscription)),
            "ListSubscriptions": unary(pubsub.ListSubscriptionsRequest.pb(), self.list_subscriptions),
            "ModifyPushConfig": unary(pubsub.ModifyPushConfigRequest.pb(), lasting(self.modify_push_config)),
            "DeleteSubscription": unary(pubsub.DeleteSubscriptionRequest.pb(), lasting(self.delete_subscription)),
            "Acknowledge": unary(pubsub.AcknowledgeRequest.pb(), self.acknowledge),
            "ModifyAckDeadline": unary(pubsub.ModifyAckDeadlineRequest.pb(), self.modify_ack_deadline),
            "Seek": unary(pubsub.SeekRequest.pb(), self.seek),
            "Pull": guarded(self.pull),
        }

    # -- subscriptions -----------------------------------------------------------------------------

    async def create_subscription(self, request: Proto, context: Context) -> Proto:
        topic = self._names.topic(request.topic)
        request.name = request.name or self._names.unused("subscriptions", request.topic)
        name = self._names.new("subscriptions", request.name)
        options = self._options(request)
        self._check_dead_letter_topic(request)
        try:
            await self._admin.run(lambda: self._broker.register_subscription(name, topic, options))
        except AlreadyExists:
            raise already_exists("Subscription", request.name) from None
        except NotFound:
            raise topic_missing(request.topic) from None
        self._pushes.refresh(name)
        return self._shown(self._subscription(request.name))

    async def get_subscription(self, request: Proto, context: Context) -> Proto:
        return self._shown(self._subscription(request.subscription))

    async def update_subscription(self, request: Proto, context: Context) -> Proto:
        return await self._change(
            request.subscription.name, lambda shown: updated(shown, request.subscription, request.update_mask)
        )

    async def modify_push_config(self, request: Proto, context: Context) -> Proto:
        def change(shown: Proto) -> Proto:
            wanted = type(shown)()
            wanted.CopyFrom(shown)
            wanted.push_config.CopyFrom(request.push_config)
            return wanted

        await self._change(request.subscription, change)
        return empty_pb2.Empty()

    async def _change(self, resource: str, change: Callable[[Proto], Proto]) -> Proto:
        async with self._admin.changing:
            found = self._subscription(resource)
            self._desks.used(found.name)  # before it may have a shorter time to live
            shown = self._shown(found)
            wanted = change(shown)
            options = self._options(wanted, found.options, shown)
            if options.dead_letter_policy != found.options.dead_letter_policy:
                self._check_dead_letter_topic(wanted)
            try:
                await self._admin.run(lambda: self._broker.update_subscription(found.name, options))
            except NotFound:
                raise subscription_missing(resource) from None
        self._pushes.refresh(found.name)
        return self._shown(self._subscription(resource))

    def _options(
        self, wanted: Proto, before: SubscriptionOptions | None = None, shown: Proto | None = None
    ) -> SubscriptionOptions:
        return subscription_options(
            wanted, self._names, before, shown, window=self._window, push_anywhere=self._push_anywhere
        )

    async def list_subscriptions(self, request: Proto, context: Context) -> Proto:
        project, broker = project_of(request.project), self._broker
        found, following = listed(
            broker.subscription_names(), self._names.subscription_resource, broker.get_subscription, project, request
        )
        response: Any = pubsub.ListSubscriptionsResponse.pb()(next_page_token=following)
        response.subscriptions.extend(map(self._shown, found))
        return response

    async def delete_subscription(self, request: Proto, context: Context) -> Proto:
        name = self._subscription(request.subscription).name
        await self._forget(request.subscription)
        try:
            await self._admin.run(lambda: self._broker.unregister_subscription(name))
        except NotFound:
            raise subscription_missing(request.subscription) from None
        await self._forget(request.subscription)  # and what was set of it meanwhile
        return empty_pb2.Empty()

    async def seek(self, request: Proto, context: Context) -> Proto:
        name = self._subscription(request.subscription).name
        self._desks.used(name)
        if request.HasField("snapshot"):
            await self._seek_snapshot(name, request.snapshot)
            return pubsub.SeekResponse.pb()()
        if not request.HasField("time"):
            raise invalid("The target of a seek must be set: a time or a snapshot.")
        seconds = request.time.seconds
        within("time.seconds", seconds, *TIME_SECONDS)
        within("time.nanos", request.time.nanos, 0, 999_999_999)
        # Rounded up, as what was published before the time counts as acked; the last time there is has no later one.
        time_us = seconds * MICROSECONDS + (request.time.nanos + 999) // 1000
        time = _EPOCH + timedelta(microseconds=min(time_us, (TIME_SECONDS[1] + 1) * MICROSECONDS - 1))
        await self._admin.run(lambda: self._broker.seek(name, time=time))
        return pubsub.SeekResponse.pb()()

    async def _seek_snapshot(self, name: str, resource: str) -> None:
        snapshot = self._names.snapshot(resource)
        if self._broker.get_snapshot(snapshot) is None:
            raise snapshot_missing(resource)
        await self._admin.run(lambda: self._broker.seek(name, snapshot=snapshot))

    def _subscription(self, resource: str) -> SubscriptionMetadata:
        found = self._broker.get_subscription(self._names.subscription(resource))
        if found is None:
            raise subscription_missing(resource)
        return found

    def _shown(self, found: SubscriptionMetadata) -> Proto:
        return subscription_of(found, self._broker.get_topic(found.topic), self._names)

    def _check_dead_letter_topic(self, subscription: Proto) -> None:
        topic = subscription.dead_letter_policy.dead_letter_topic
        if topic and not self._broker.topic_exists(self._names.topic(topic)):
            raise topic_missing(topic)

    # -- messages ----------------------------------------------------------------------------------

    async def pull(self, raw: bytes, context: Context) -> bytes:
        request = parsed(PullRequest, raw)
        if request.max_messages <= 0:
            within("max_messages", request.max_messages, 1, MAX_PULLED)
        desk = self._desks.open(request.subscription)
        name = self._names.subscription(request.subscription)
        pull = OnePull(desk, min(request.max_messages, MAX_PULLED), lambda messages: self._give_back(name, messages))
        desk.join(pull)
        try:
            desk.hand_out()
            wait = 0.0 if request.return_immediately else min(context.time_remaining() or PULL_SECONDS, PULL_SECONDS)
            messages = await pull.messages(wait - MARGIN_SECONDS)
        finally:
            desk.leave(pull)
        return b"".join(received(messages, desk.counts_attempts))

    def _give_back(self, name: str, messages: Sequence[Message]) -> None:
        with suppress(InorderError):  # a broker that is closed has forgotten them anyway
            self._broker.release(name, [message._lease for message in messages])

    async def acknowledge(self, request: Proto, context: Context) -> Proto:
        check_request_size(request.ByteSize())
        resource, ack_ids = request.subscription, list(request.ack_ids)
        found = self._found(resource, ack_ids)
        over = self._answers.ack(resource, found.leases)
        self._desks.settled(resource, found.leases, failed=False)
        await self._broker.written()
        self._tell_what_failed(resource, ack_ids, found, over)
        return empty_pb2.Empty()

    async def modify_ack_deadline(self, request: Proto, context: Context) -> Proto:
        check_request_size(request.ByteSize())
        resource, ack_ids, seconds = request.subscription, list(request.ack_ids), request.ack_deadline_seconds
        check_deadline(seconds)
        found = self._found(resource, ack_ids)
        over = self._answers.extend(resource, found.leases, seconds)
        if seconds == 0:
            self._desks.settled(resource, found.leases, failed=True)
            await self._broker.written()
        else:
            self._desks.told_of(resource, found.leases)
        self._tell_what_failed(resource, ack_ids, found, over)
        return empty_pb2.Empty()

    def _found(self, resource: str, ack_ids: Sequence[str]) -> Found:
        if not ack_ids:
            self._subscription(resource)
            raise invalid("No ack ids specified.")
        return self._answers.find(resource, ack_ids)

    def _tell_what_failed(self, resource: str, ack_ids: Sequence[str], found: Found, over: Iterable[int]) -> None:
        """With exactly-once delivery each ack id that had no effect; otherwise only what is no ack id."""
        if not found.over and not found.nonsense and not over:
            return
        if exactly_once(self._subscription(resource).options):
            result = outcome(ack_ids, found, self._answers.prefix(resource), over)
            if result.invalid:
                raise ack_ids_failed(result.invalid)
        elif found.nonsense:
            raise no_ack_id(found.nonsense)


class OnePull:
    """A pull that waits for its messages."""

    pushes = False
    once = True
    own = False

    def __init__(self, desk: Desk, max_messages: int, give_back: Callable[[Sequence[Message]], None]) -> None:
        self.consumer = desk.consumer()
        self._max = max_messages
        self._give_back = give_back
        self._messages: list[Message] = []
        self._bytes = 0
        self._arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def messages(self, seconds: float) -> Sequence[Message]:
        """What comes within so many seconds: the first that does, and what can be had with it."""
        if not self._messages and seconds > 0:
            try:
                await asyncio.wait([self._arrived], timeout=seconds)
            except asyncio.CancelledError:
                self._give_back(self._messages)  # nobody will see them
                raise
        self._max = 0
        if self._arrived.done():
            self._arrived.result()
        return self._messages

    def room(self) -> tuple[int, int]:
        return self._max - len(self._messages), MAX_RESPONSE_BYTES - self._bytes

    def alone(self) -> bool:
        return not self._messages

    def give(self, leased: Leased) -> None:
        self._messages += leased.messages(self.consumer)
        self._bytes += leased.size()
        # Not at once: others may be given in this turn.
        asyncio.get_running_loop().call_soon(self._arrive)

    def _arrive(self) -> None:
        if not self._arrived.done():
            self._arrived.set_result(None)

    def end(self, error: Exception) -> None:
        self._max = 0
        if not self._arrived.done() and not self._messages:
            self._arrived.set_exception(error)

    def freed(self, lease: int, size: int) -> None:
        """It takes once, and then no more."""

    def held(self) -> Sequence[int]:
        return ()
