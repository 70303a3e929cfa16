"""Where publishers publish while their topic moves to another broker: at the source, until the switch.

    copying     publishes go to the source
    draining    publishes are held; what the source has answered goes to the target first, through the forwarder
    switched    what was held goes to the target, in order, and then whatever comes

The switch is for all keys at once, or for one key after the other. If it fails, or somebody calls `stay`, what was
held goes to the source, in order, and copying goes on: nothing has happened yet.

This is the publishers' half. Several processes that publish have a `MovingTopic` each, so a switch must hold all of
them before the forwarder drains: `hold` each, wait for `drained` of the forwarder, `go` each.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from inorder.client.topic import Topic, json_bytes
from inorder.consumers.moving.forwarder import Forwarder
from inorder.consumers.moving.forwarding import BARRIER
from inorder.consumers.store import Conflict, States, Store, Stored
from inorder.errors import Aborted, FailedPrecondition, InorderError, InvalidMessage, ResourceExhausted
from inorder.message import make_entry
from inorder.options import check_whole
from inorder.pending import Pending

MoveState = Literal["copying", "draining", "switched"]

ALL = ""  # stands for every key, and for what has none


class _Held(NamedTuple):
    data: bytes
    attributes: Mapping[str, str] | None
    ordering_key: str | None
    answer: Pending[str]


class MovingTopic:
    """Publishes to `source` until the switch, then to `target`. Thread-safe; one for all publishers of a process.

    With a `store` it remembers under `name` what was switched, before anything is published at the target, so that a
    program that starts again does not go back; another move of a topic of the same name needs another `name`. The store
    is read when this is made and written by a switch, and a publish does not ask it. Up to `max_held` messages are held
    during a switch; one more is refused with `ResourceExhausted`.
    """

    def __init__(
        self,
        source: Topic,
        target: Topic,
        *,
        store: Store | None = None,
        name: str | None = None,
        max_held: int = 10_000,
    ) -> None:
        check_whole("max_held", max_held)
        self._source = source
        self._target = target
        self._store = store
        self._name = f"moving {source.name}" if name is None else name
        self._max_held = max_held
        self._lock = threading.RLock()
        self._switched = self._remembered()  # keys, or ALL; others write only while we are held, so read once
        self._moving: str | None = None  # the key that is draining, or ALL
        self._held: deque[_Held] = deque()
        self._entering: dict[str, int] = {}  # publishes on their way to the source, which it does not know of yet
        self._quiet: Pending[None] | None = None  # set when nothing is entering any more
        self._switching: Pending[None] | None = None  # the switch, if it goes by itself
        self._ending = False  # what is held is being released

    @property
    def state(self) -> MoveState:
        """Of all keys that were not switched on their own."""
        with self._lock:
            return "draining" if self._moving == ALL else "switched" if ALL in self._switched else "copying"

    def state_of(self, ordering_key: str | None) -> MoveState:
        """Of one key."""
        with self._lock:
            return self._state_of(ordering_key or ALL)

    def publish_message(
        self, data: bytes = b"", attributes: Mapping[str, str] | None = None, ordering_key: str | None = None
    ) -> Pending[str]:
        """As `Topic.publish_message`. While its key is draining, the answer comes after the switch."""
        key = ordering_key or ALL
        with self._lock:
            state = self._state_of(key)
            if state == "draining":
                return self._hold(data, attributes, ordering_key)
            if state == "copying":
                self._entering[key] = self._entering.get(key, 0) + 1
        if state == "switched":
            return self._target.publish_message(data, attributes, ordering_key)
        try:
            return self._source.publish_message(data, attributes, ordering_key)
        finally:
            self._entered(key)

    def publish_json(
        self, obj: Any, *, attributes: Mapping[str, str] | None = None, ordering_key: str | None = None
    ) -> Pending[str]:
        """As `Topic.publish_json`."""
        try:
            data = json_bytes(obj)
        except InvalidMessage as error:
            return Pending.failed(error)
        return self.publish_message(data, attributes, ordering_key)

    # -- the switch --------------------------------------------------------------------------------

    def switch(self, forwarder: Forwarder, ordering_key: str | None = None) -> Pending[None]:
        """Move all keys, or one, to the target; done when what was held has been sent there.

        `Pending.result(timeout)` stops waiting, no more; `stay` stops the switch.
        """
        switched: Pending[None] = Pending()
        held = self._hold_all_of(ordering_key or ALL, switched)
        if held.done() and held.exception() is not None:
            return held
        held.then(lambda _: self._drained(forwarder, ordering_key or ALL)).add_done_callback(
            lambda drained: self._finish(switched, drained)
        )
        return switched

    def hold(self, ordering_key: str | None = None) -> Pending[None]:
        """Hold what is published from now on; done when the source has answered for all that was published before.

        For a switch of several processes, which ends by `go` or `stay`.
        """
        return self._hold_all_of(ordering_key or ALL, None)

    def go(self) -> None:
        """Publish at the target from now on, what was held first. The source must be drained."""
        with self._lock:
            if self._moving is None or self._switching is not None:
                raise FailedPrecondition("nothing is held: call hold() first, and wait until the forwarder is drained")
            if self._quiet is not None:
                raise FailedPrecondition("publishes are still on their way to the source: wait for hold() to be done")
            self._begin_to_end()
        self._go()

    def stay(self) -> None:
        """Give up a switch: publish at the source again, what was held first. Does nothing if there is none."""
        error = Aborted("the switch was given up: publishers stay at the source")
        with self._lock:
            if self._moving is None or self._ending:
                return
            quiet, switching = self._quiet, self._switching
            self._begin_to_end()
        self._release(self._source, switched=False)
        for waiting in (quiet, switching):
            if waiting is not None:
                waiting.set_exception(error)

    def _hold_all_of(self, key: str, switching: Pending[None] | None) -> Pending[None]:
        quiet: Pending[None] = Pending()
        try:
            with self._lock:
                self._check_free(key)
                self._moving, self._switching = key, switching
                self._quiet = quiet if self._is_entering(key) else None
                if self._quiet is None:
                    quiet.set_result(None)
        except Exception as error:
            return Pending.failed(error)
        return quiet.then(lambda _: self._source.flush())

    def _check_free(self, key: str) -> None:
        if self._moving is not None:
            what = f"key {self._moving!r}" if self._moving else "all keys"
            raise FailedPrecondition(f"a switch of {what} is under way")
        if self._state_of(key) == "switched":
            raise FailedPrecondition(f"{f'key {key!r}' if key else 'the topic'} is switched already")

    def _drained(self, forwarder: Forwarder, key: str) -> Pending[None]:
        """Done when the target has answered for all that the source has of the key."""
        if key == ALL:
            return forwarder.drained()
        token = uuid.uuid4().hex
        passed = forwarder.passed(token)
        published = self._source.publish_message(b"", {BARRIER: token}, key)
        published.add_done_callback(lambda done: None if done.exception() is None else forwarder.forget(token))
        return published.then(lambda _: passed)

    def _finish(self, switched: Pending[None], drained: Pending[None]) -> None:
        """The source is drained, or never will be."""
        with self._lock:
            if self._switching is not switched:  # somebody called `stay`, and tells
                return
            self._begin_to_end()
        error = drained.exception()
        try:
            if error is not None:
                self._release(self._source, switched=False)
                raise error
            self._go()
        except Exception as problem:
            switched.set_exception(problem)
        else:
            switched.set_result(None)

    def _go(self) -> None:
        assert self._moving is not None
        try:
            self._remember(self._moving)
        except Exception:
            self._release(self._source, switched=False)
            raise
        self._release(self._target, switched=True)

    def _begin_to_end(self) -> None:
        """Whoever calls this, under the lock, is the only one to release what is held."""
        self._ending, self._quiet, self._switching = True, None, None

    def _release(self, topic: Topic, *, switched: bool) -> None:
        """Publish what was held; meanwhile others are still held, so that nobody overtakes."""
        while True:
            with self._lock:
                if not self._held:
                    if switched and self._moving is not None:
                        self._switched.add(self._moving)
                    self._moving, self._ending = None, False
                    return
                held, self._held = self._held, deque()
            for data, attributes, ordering_key, answer in held:
                topic.publish_message(data, attributes, ordering_key).hand_to(answer)

    # -- state, under the lock ---------------------------------------------------------------------

    def _state_of(self, key: str) -> MoveState:
        if ALL in self._switched or key in self._switched:
            return "switched"
        return "draining" if self._moving in (ALL, key) else "copying"

    def _remembered(self) -> set[str]:
        """What was switched before. Not under the lock: whoever publishes within a transaction waits for that."""
        if self._store is None:
            return set()
        with self._store.transaction() as connection:
            return set(States(connection, self._name).entities())

    def _remember(self, key: str) -> None:
        if self._store is not None:
            with suppress(Conflict), self._store.transaction() as connection:  # another process may have been faster
                States(connection, self._name).save({key: Stored(1, "", 0, b"switched")})

    def _hold(self, data: bytes, attributes: Mapping[str, str] | None, ordering_key: str | None) -> Pending[str]:
        try:
            # As a topic does: a copy, as its publisher may change what it handed in before that is sent.
            _, data, attributes, _ = make_entry(data, attributes, ordering_key)
        except InorderError as error:
            return Pending.failed(error)
        if len(self._held) >= self._max_held:
            return Pending.failed(
                ResourceExhausted(f"{len(self._held)} messages are held until the switch, as many as may be (max_held)")
            )
        held = _Held(data, attributes, ordering_key, Pending())
        self._held.append(held)
        return held.answer

    def _is_entering(self, key: str) -> bool:
        return bool(self._entering) if key == ALL else key in self._entering

    def _entered(self, key: str) -> None:
        with self._lock:
            self._entering[key] -= 1
            if not self._entering[key]:
                del self._entering[key]
            quiet = self._quiet
            if self._moving is None or self._is_entering(self._moving):
                return
            self._quiet = None
        if quiet is not None:
            quiet.set_result(None)
