"""A topic that is split into partitions, as users see it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from inorder.client.pubsub import PubSub
from inorder.consumers.partitions.chores import Chore
from inorder.consumers.partitions.group import Group
from inorder.consumers.partitions.resizing import Resizer, SlotWait
from inorder.consumers.partitions.router import MAX_HELD, KeyOf, Router, topic_name
from inorder.consumers.partitions.routes import Routes
from inorder.consumers.partitions.skew import live_skew
from inorder.consumers.partitions.table import Table
from inorder.consumers.store import Store
from inorder.errors import Aborted, Closed, FailedPrecondition, InorderError, InvalidArgument, InvalidMessage
from inorder.message import Message
from inorder.options import check_flag, check_name
from inorder.patterns.partitioning import check_count, slot_of
from inorder.patterns.skew import SkewReport
from inorder.pending import Pending


class PartitionedTopic:
    """A handle on a topic `NAME` that is kept in topics `NAME-0`, `NAME-1`, …

    All messages of a key go to one partition, whose consumer handles them in order; `resize` changes the number of
    partitions while messages are published and handled, and keeps each key in order. `key` says what the key of a
    message is, unless that is its ordering key. Where each key goes is in the `store`, which all must share who
    publish to the topic or consume it. Give it a database of its own, or one where nobody waits for a publish within
    a transaction: after a change of the routes, a publish is answered only when they were read again.
    """

    def __init__(
        self, pubsub: PubSub, name: str, *, store: Store, key: KeyOf | None = None, max_held: int = MAX_HELD
    ) -> None:
        self.name = check_name("topic", name)
        check_name("topic", topic_name(name, 9_999))  # the longest that there may be
        self._pubsub = pubsub
        self._store = store
        self._table = Table(pubsub, store, name)
        self._resizer = Resizer(pubsub, self._table)
        # Two threads: who asks whether his message counts does not wait for a resize to take its steps.
        self._moving = Chore(f"inorder-resize-{name}", self._move, self._given_up)
        self._tending = Chore(f"inorder-router-{name}", lambda: self._router.tend(), self._given_up)
        self._router = Router(pubsub, self._table, key=key, max_held=max_held, wake=self._tending.wake)
        self._resizes: list[tuple[int, Pending[None]]] = []
        self._closed = False
        self._lock = threading.Lock()

    def create(self, partitions: int, *, strict: bool = False) -> PartitionedTopic:
        """Create it; or find it, with as many partitions as it has.

        Within a partition each key is in order, and keys are handled side by side; if `strict`, the whole partition
        is handled one after the other. One that is there and is not strict does not become so.
        """
        check_count(partitions)
        check_flag("strict", strict)
        routes = self._table.create(partitions, strict)
        if strict and not routes.strict:
            raise FailedPrecondition(
                f"partitions of {self.name!r}: they are there, and not strict: each key is in order, no partition is"
            )
        self._resizer.provide(routes)
        return self

    # -- publishing --------------------------------------------------------------------------------

    def publish_message(
        self, data: bytes = b"", attributes: Mapping[str, str] | None = None, ordering_key: str | None = None
    ) -> Pending[str]:
        """Publish one message; the answer is its id, once it is sure to be handled in its turn."""
        return Pending.run(lambda: self._router.publish([Message(data, attributes, ordering_key)])).then(_only)

    def publish_json(
        self, obj: Any, *, attributes: Mapping[str, str] | None = None, ordering_key: str | None = None
    ) -> Pending[str]:
        """Publish an object as JSON."""
        try:
            data = json.dumps(obj, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            return Pending.failed(InvalidMessage(f"not representable as JSON: {error}"))
        return self.publish_message(data, attributes, ordering_key)

    def publish_many(self, messages: Iterable[Message]) -> Pending[list[str]]:
        """Publish messages in order; the answer is their ids. One bad message refuses them all."""
        if isinstance(messages, Message) or not isinstance(messages, Iterable):
            return Pending.failed(
                InvalidArgument(f"messages: expected several of Message, not {type(messages).__name__}")
            )
        return Pending.run(lambda: self._router.publish(messages)).then(Pending.all)

    def resume_publishing(self, key: str) -> None:
        """Publish on a key again that was paused because a publish of it failed."""
        self._router.resume(key)

    def paused_keys(self) -> list[str]:
        """The keys that wait for `resume_publishing`."""
        return self._router.paused_keys()

    # -- consuming ---------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """A handle on a group of consumers, which need not exist yet."""
        clock = self._pubsub.topic(self.name).subscription(self.name).clock
        return Group(self._pubsub, self._store, self._table, self._resizer, name, clock)

    # -- partitions --------------------------------------------------------------------------------

    @property
    def partitions(self) -> list[int]:
        """The numbers of those that have slots, or are to have some."""
        return self._table.current().live

    def partition_of(self, key: str) -> int:
        """Where a key is now; while its slot moves, where it was last."""
        return self._table.current().route(slot_of(key)).owner

    def resize(self, partitions: int) -> Pending[None]:
        """Change the number of partitions; done when every slot that must move has moved.

        Each of them waits until the groups have acked what it has in its old partition: `waiting` tells for what.
        The messages of other slots go on as ever. If this process ends, the members of the groups go on with it, and
        so does whoever asks for the same again.
        """
        resized: Pending[None] = Pending()

        def plan() -> Pending[None]:
            check_count(partitions)
            self._check_open()
            self._resizer.plan(partitions)
            self._table.look()  # others find it out; here it is known
            with self._lock:
                self._check_open()
                self._resizes.append((partitions, resized))
            self._moving.wake()
            return resized

        return Pending.run(plan).then(lambda pending: pending)

    def cancel_resize(self) -> None:
        """Leave every slot where it is that has not moved yet. Who waits for the resize gets `Aborted`."""
        self._resizer.cancel()
        self._resizer.advance()
        self._moving.wake()

    def waiting(self) -> list[SlotWait]:
        """What keeps slots from moving, in each group."""
        return self._resizer.waits()

    def skew(self, *, top: int = 10) -> SkewReport:
        """How unevenly what was published here falls on keys, slots and partitions."""
        return live_skew(dict(self._router.loads), self._table.current(), top)

    def close(self) -> None:
        """Take no more, and give up what waits for its slot. The partitions and their groups stay."""
        self._moving.stop()
        self._tending.stop()
        with self._lock:
            self._closed = True
        self._given_up(self._was_closed())

    def __enter__(self) -> PartitionedTopic:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PartitionedTopic({self.name!r})"

    # -- what is done beside -----------------------------------------------------------------------

    def _check_open(self) -> None:
        """Nobody takes the steps of a resize any more once this is closed."""
        if self._closed:
            raise self._was_closed()

    def _was_closed(self) -> Closed:
        return Closed(f"the partitioned topic {self.name!r} was closed")

    def _move(self) -> bool:
        """Take the next steps of a resize; whether there are more."""
        with self._lock:
            resizes = len(self._resizes)
        if self._resizer.advance():
            self._moved(resizes, self._table.look().routes)
        with self._lock:
            return bool(self._resizes)

    def _moved(self, count: int, routes: Routes) -> None:
        """Nothing moves any more: those who asked for it are told, if it is what they asked for."""
        with self._lock:
            done, self._resizes = self._resizes[:count], self._resizes[count:]
        for partitions, resized in done:
            if routes.is_even(partitions):
                resized.set_result(None)
            else:
                resized.set_exception(
                    Aborted(
                        f"the resize to {partitions} partitions was given up; the slots of each are {routes.shares}"
                    )
                )

    def _given_up(self, error: InorderError) -> None:
        with self._lock:
            resizes, self._resizes = self._resizes, []
        for _, resized in resizes:
            resized.set_exception(error)
        self._router.close()


def _only(answers: list[Pending[str]]) -> Pending[str]:
    return answers[0]
