"""The target's side of a forwarder: gets messages there in their order, whatever that takes.

It takes the first messages of a list, publishes them in one request, and says which of them are done with. An error
that may pass is waited out; what the target refuses for good is found by halving, and goes by the policy; anything
else is raised. It acks nothing, and does not know how the messages came here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from inorder.client.topic import Topic
from inorder.clock import MICROSECONDS, Clock
from inorder.consumers.moving.forwarding import BARRIER, SOURCE_ID, Refused, Tally, refuse_circle, with_origin
from inorder.consumers.moving.receipts import Receipts
from inorder.errors import (
    Aborted,
    DeadlineExceeded,
    InvalidArgument,
    KeyPaused,
    OrderingNotEnabled,
    ResourceExhausted,
    Unavailable,
)
from inorder.message import ATTRIBUTES, SIZE, Message
from inorder.options import RetryPolicy
from inorder.pending import Pending

MAX_BATCH_BYTES = 8_000_000  # of one publish request, with room for what is added

PASSING = (Unavailable, ResourceExhausted, Aborted, DeadlineExceeded, KeyPaused)  # trying again may help

OnRefused = Literal["stop", "skip"] | Topic

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sending:
    """The first messages of a list, on their way."""

    messages: list[Message]  # done with when it is answered
    publish: list[Message]  # those of them that go to `topic`
    topic: Topic
    answer: Pending[list[str]]


class Outlet:
    """Publishes at the target, one request after the other. Never waits; not thread-safe."""

    def __init__(
        self,
        target: Topic,
        source_topic: str,
        *,
        batch: int,
        retry: RetryPolicy,
        on_refused: OnRefused,
        receipts: Receipts | None,
        clock: Clock,
        tally: Tally,
        report: Callable[[Refused], object],
        wake: Callable[[], None],
    ) -> None:
        self._target = target
        self._source_topic = source_topic
        self._batch = batch
        self._retry = retry
        self._on_refused = on_refused
        self._receipts = receipts
        self._clock = clock
        self._tally = tally
        self._report = report
        self._wake = wake
        self._sending: _Sending | None = None
        self._limit = batch  # of one request; smaller while we look for what is refused
        self._dead: Refused | None = None  # the first message, which goes to the dead letters
        self._failures = 0
        self._retry_at_us = 0
        self.unconfirmed: set[str] = set()  # ids that the target has, and the source may not know of
        self.error: BaseException | None = None  # why it is trying again

    def open(self) -> None:
        """Learn what the target has from before."""
        if self._receipts is not None:
            self._receipts.open()
            self.unconfirmed.update(self._receipts.ids)

    def is_free(self) -> bool:
        """Whether nothing is on its way, so that the list may change."""
        return self._sending is None

    def advance(self, messages: Sequence[Message]) -> list[Message]:
        """Get on with a list; the messages at its front that are done with, or none if there is something to wait for.

        `wake` is called when that may be over. What stops the forwarder is raised.
        """
        if self._sending is None:
            if self._clock.now_us() < self._retry_at_us or not self._learn_what_is_stored(messages):
                return []
            self._sending = self._send(*self._first_of(messages))
        sending = self._sending
        if not sending.answer.done():
            sending.answer.add_done_callback(lambda _: self._wake())
            return []
        self._sending = None
        error = sending.answer.exception()
        if error is None:
            self._succeeded(sending)
            return sending.messages
        return self._failed(sending, error, messages)

    # -- there -------------------------------------------------------------------------------------

    def _first_of(self, messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
        """As many as one request takes, and those of them that are to be published."""
        first: list[Message] = []
        publish: list[Message] = []
        size = 0
        for message in messages:
            attributes = message._record[ATTRIBUTES]
            size += message._record[SIZE]
            if publish and (len(publish) >= self._limit or size > MAX_BATCH_BYTES):
                break
            first.append(message)
            if message.id in self.unconfirmed or (attributes and BARRIER in attributes):
                continue
            if attributes and SOURCE_ID in attributes:
                refuse_circle(message)
            publish.append(message)
        return first, publish

    def _send(self, messages: list[Message], publish: list[Message]) -> _Sending:
        if self._dead is not None and publish[:1] == [self._dead.message]:
            assert isinstance(self._on_refused, Topic)
            dead = self._dead.message
            topic, copies = self._on_refused, [Message(dead.data, dead.attributes, dead.ordering_key)]
        else:
            self._dead = None  # its lease was lost: it will be refused again
            topic, copies = self._target, [with_origin(message, self._source_topic) for message in publish]
        answer = topic.publish_many(copies) if copies else Pending.of([])
        return _Sending(messages, publish, topic, answer)

    def _succeeded(self, sending: _Sending) -> None:
        self.error, self._failures = None, 0
        self._limit = min(2 * self._limit, self._batch)
        self._tally.repeated += sum(message.id in self.unconfirmed for message in sending.messages)
        if self._dead is None:
            self._tally.forwarded += len(sending.publish)
            self._tally.note_keys(sending.publish)
        else:
            self._give_up(self._dead)
            self._dead = None
        self.unconfirmed.update(message.id for message in sending.messages)

    def confirm(self, ids: Sequence[str]) -> None:
        """The source knows of these: they will not come again, and need not be remembered."""
        self.unconfirmed.difference_update(ids)
        if self._receipts is not None:
            try:
                self._receipts.read()
                self._receipts.let_go(ids)
            except PASSING:
                _log.debug("receipts at topic %r are let go of later", self._target.name)

    def confirm_all(self) -> None:
        """The source has nothing left: whatever is remembered was acked just before a crash."""
        self.unconfirmed.clear()
        if self._receipts is not None:
            self._receipts.let_go([*self._receipts.ids])

    # -- not there ---------------------------------------------------------------------------------

    def _failed(self, sending: _Sending, error: BaseException, messages: Sequence[Message]) -> list[Message]:
        for key in {message.ordering_key for message in sending.publish}:
            if key is not None:
                sending.topic.resume_publishing(key)
        if isinstance(error, InvalidArgument) and not isinstance(error, OrderingNotEnabled):
            return self._refused(sending, error, messages)
        if not isinstance(error, PASSING):
            raise error
        self._try_again(error)
        return []

    def _try_again(self, error: BaseException) -> None:
        self._failures += 1
        if not self._failures & (self._failures - 1):  # 1, 2, 4, 8…
            _log.warning("publishing to topic %r failed %d times: %s", self._target.name, self._failures, error)
        self.error = error
        self._retry_at_us = self._clock.now_us() + round(self._retry.backoff(self._failures) * MICROSECONDS)
        self._clock.call_at(self._retry_at_us, self._wake)

    def _learn_what_is_stored(self, messages: Iterable[Message]) -> bool:
        """After an error that may not have told the truth, ask the target; whether it has an ear for that."""
        if not self._failures or self._receipts is None:
            return True
        try:
            self._receipts.read()
        except PASSING as error:
            self._try_again(error)
            return False
        self.unconfirmed.update({message.id for message in messages}.intersection(self._receipts.ids))
        return True

    def _refused(self, sending: _Sending, error: InvalidArgument, messages: Sequence[Message]) -> list[Message]:
        if len(sending.publish) > 1:
            self._limit = len(sending.publish) // 2
            return self.advance(messages)
        [message] = sending.publish
        if self._on_refused == "stop" or self._dead is not None:
            self._tell(Refused(message, error, "stopped"))
            raise error
        if self._on_refused == "skip":
            self._give_up(Refused(message, error, "skipped"))
            return sending.messages
        self._dead = Refused(message, error, "dead_lettered")
        self._limit = 1
        return self.advance(messages)

    def _give_up(self, refused: Refused) -> None:
        self._tally.refused += 1
        self._tell(refused)

    def _tell(self, refused: Refused) -> None:
        topic, message_id = self._target.name, refused.message.id
        _log.error("message %r is refused by topic %r and %s: %s", message_id, topic, refused.fate, refused.error)
        self._report(refused)
