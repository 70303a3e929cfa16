"""What a target has stored of a forwarder's messages, as far as the source may not know it: its receipts.

A forwarder dies between the target's answer and the ack at the source, or never gets the answer. Only the target
knows then what it has. So the forwarder has a subscription of its own there, from which it lets a message go when
the source has confirmed the ack, never before. What is left in it after a crash is exactly what must not be sent
again, and what may be in it without need is a few messages that were acked just before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from inorder.client.topic import Topic
from inorder.consumers.moving.forwarding import SOURCE_ID, SOURCE_TOPIC
from inorder.errors import AlreadyExists, FailedPrecondition, InorderError
from inorder.message import Message
from inorder.options import MAX_ACK_DEADLINE_SECONDS, MAX_FILTER_BYTES, FlowControl, QueueLimits

AT_ONCE = 1_000
MAX_HELD = 1_000_000  # after a crash, all that was under way; never more than a few lists of messages
MAX_HELD_BYTES = 1_000_000_000
LONG_NAME = 150  # so much of it fits


class Receipts:
    """The ids of the source of what the target has stored. One forwarder at a time; not thread-safe."""

    def __init__(self, target: Topic, name: str, source_topic: str) -> None:
        self._target = target
        self._subscription = target.subscription(f"{name}-receipts")
        self._filter = _forwarded_from(source_topic)
        self._held: dict[str, Message] = {}

    @property
    def ids(self) -> Collection[str]:
        """Those that were read and not let go of."""
        return self._held.keys()

    def open(self) -> None:
        """Read all that was not let go of, also what a forwarder had in its hands when it died."""
        try:
            self._subscription.create(
                ack_deadline_seconds=MAX_ACK_DEADLINE_SECONDS,
                flow_control=FlowControl(max_messages=MAX_HELD, max_bytes=MAX_HELD_BYTES),
                queue_limits=QueueLimits(max_messages=None, max_bytes=None),
                filter=self._filter,
            ).result()
        except AlreadyExists:
            self._check_found()
        self._end_what_is_out()
        self.read()

    def _check_found(self) -> None:
        """Refuse receipts to which nothing of this forwarder comes: all would be sent again after a crash."""
        found = self._subscription.metadata().result()
        problem = ""
        if found.detached:
            problem = "is detached, so that nothing comes to it"
        elif found.topic.rpartition("/")[2] != self._target.name.rpartition("/")[2]:
            problem = f"is at topic {found.topic!r}"
        elif found.options.filter != self._filter:
            problem = "has what is forwarded from another topic"
        if problem:
            raise FailedPrecondition(
                f"subscription {found.name!r} {problem}: give this forwarder a name of its own, or, if no other one "
                "uses it, delete that"
            )

    def _end_what_is_out(self) -> None:
        """Go back to the first that was not let go of. Before it, a topic that retains messages has all that ever came:
        more than can be held, so that what matters would not be read."""
        try:
            unacked = self._subscription.unacked().result()
            first = min((key.position for key in unacked.keys), default=unacked.known_to)
            self._subscription.seek(position=first).result()
        except InorderError:  # a server that knows no positions, or nothing is left there, and so nothing comes again
            self._subscription.seek(time=0).result()

    def read(self) -> None:
        """Read what the target has stored by now.

        By pulls: a loop over a subscription of a server knows what has come, not that there is nothing else.
        """
        while messages := self._subscription.pull(AT_ONCE).result():
            for message in messages:
                self._held[message.attributes[SOURCE_ID]] = message

    def let_go(self, ids: Iterable[str]) -> None:
        """Forget these: the source knows. What does not get through comes again, and goes when all is drained."""
        for source_id in ids:
            if source_id in self._held:
                self._held.pop(source_id).ack()


def _forwarded_from(topic: str) -> str:
    """The filter for what comes from this topic, or from one that begins alike if its name is too long for a filter.

    What is forwarded from others is not this forwarder's to let go of, and would pile up.
    """
    exactly = f'attributes:{SOURCE_ID} AND attributes.{SOURCE_TOPIC} = "{topic}"'
    if len(exactly) <= MAX_FILTER_BYTES:
        return exactly
    return f'attributes:{SOURCE_ID} AND hasPrefix(attributes.{SOURCE_TOPIC}, "{topic[:LONG_NAME]}")'
