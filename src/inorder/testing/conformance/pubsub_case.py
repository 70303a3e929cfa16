"""What the tests of a `PubSub` share: a target, three ways to run a handler, and patience instead of sleep."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

import pytest

from inorder.client.pubsub import PubSub
from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.message import Message
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.testing.conformance.case import InBackground

T = TypeVar("T")
Wait: TypeAlias = Callable[[Pending[Any]], Any]

# Long enough that only something that hangs reaches it.
PATIENCE_SECONDS = 30


class Way(ABC):
    """How handlers run and how answers are waited for.

    Handlers are written once, as `def` or as `async def`, and made into what this way needs. An
    `async def` awaits only what it gets from here, so that a thread can run it too, by blocking.
    """

    @abstractmethod
    def handler(self, function: Callable[[Message], Any]) -> Callable[[Message], Any]:
        """The function as a message handler of this way."""

    @abstractmethod
    def open(self, subscription: Subscription) -> None:
        """Open a subscription from where its handlers belong."""

    @abstractmethod
    def result(self, pending: Pending[T]) -> T:
        """Wait for an answer, from outside of handlers."""

    @abstractmethod
    def answer(self, pending: Pending[T]) -> Awaitable[T]:
        """Wait for an answer, inside a handler."""

    @abstractmethod
    def set(self, event: threading.Event) -> Awaitable[None]:
        """Wait, inside a handler, until somebody sets the event."""

    @abstractmethod
    def pause(self) -> Awaitable[None]:
        """Let others run for a moment, inside a handler."""


class Threads(Way):
    """`def` handlers, and `.result()`."""

    def handler(self, function: Callable[[Message], Any]) -> Callable[[Message], Any]:
        if not inspect.iscoroutinefunction(function):
            return function

        def handle(message: Message) -> Any:
            coroutine = function(message)
            try:
                coroutine.send(None)
            except StopIteration as done:
                return done.value
            raise AssertionError("a handler of a test awaits only what its way gives it")

        return handle

    def open(self, subscription: Subscription) -> None:
        subscription.open()

    def result(self, pending: Pending[T]) -> T:
        return pending.result(PATIENCE_SECONDS)

    def answer(self, pending: Pending[T]) -> Awaitable[T]:
        return _Blocking(lambda: pending.result(PATIENCE_SECONDS))

    def set(self, event: threading.Event) -> Awaitable[None]:
        return _Blocking(lambda: _check(event.wait(PATIENCE_SECONDS)))

    def pause(self) -> Awaitable[None]:
        return _Blocking(lambda: time.sleep(0.002))


class _Blocking(Awaitable[T]):
    """Blocks the thread that awaits it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, None, T]:
        return self._call()
        yield


def _check(happened: bool) -> None:
    assert happened, f"nothing happened for {PATIENCE_SECONDS} s"


class OwnLoop(Way):
    """`async def` handlers of a subscription that is opened where no loop runs, and `.result()`."""

    def handler(self, function: Callable[[Message], Any]) -> Callable[[Message], Any]:
        if inspect.iscoroutinefunction(function):
            return function

        async def handle(message: Message) -> Any:
            return function(message)

        return handle

    def open(self, subscription: Subscription) -> None:
        subscription.open()

    def result(self, pending: Pending[T]) -> T:
        return pending.result(PATIENCE_SECONDS)

    def answer(self, pending: Pending[T]) -> Awaitable[T]:
        return asyncio.wait_for(pending, PATIENCE_SECONDS)

    async def set(self, event: threading.Event) -> None:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not event.is_set():
            _check(time.monotonic() < give_up)
            await asyncio.sleep(0.001)

    def pause(self) -> Awaitable[None]:
        return asyncio.sleep(0.002)


class Tasks(OwnLoop):
    """`async def` handlers on the loop that opens the subscription, and `await`."""

    def __init__(self) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._over = asyncio.Event()

        async def run() -> None:
            started.set_result(asyncio.get_running_loop())
            await self._over.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
        self._thread.start()
        self.loop = started.result(PATIENCE_SECONDS)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of the handlers."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_SECONDS)

    def open(self, subscription: Subscription) -> None:
        async def open_here() -> None:
            subscription.open()

        self.run(open_here())

    def result(self, pending: Pending[T]) -> T:
        async def wait() -> T:
            return await pending

        return self.run(wait())

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE_SECONDS)


class PubSubCase(InBackground):
    """One `PubSub` per test. A subclass says how it is made, and may put its time into the tests' hands."""

    pubsub: PubSub
    clock: ManualClock | None = None  # that of the target, if a test may move it; set by `make_target`
    short_deadline = 0.3  # seconds: an ack deadline that a test waits for
    kept_deadline = 2.0  # seconds: one within half of which a lease is extended, however busy the machine

    def make_target(self) -> PubSub:
        """A broker without topics."""
        raise NotImplementedError(f"{type(self).__name__} must say how its target is made")

    def setup_method(self) -> None:
        self.pubsub = self.make_target()

    def teardown_method(self) -> None:
        self.pubsub.close().result(PATIENCE_SECONDS)

    @pytest.fixture(params=[Threads, Tasks, OwnLoop], ids=["threads", "tasks", "own_loop"])
    def way(self, request: pytest.FixtureRequest) -> Iterator[Way]:
        """For a test with handlers: once for each way to run them."""
        yield from self._with_handlers(request.param())

    def _with_handlers(self, way: Way) -> Iterator[Way]:
        yield way
        self.pubsub.close().result(PATIENCE_SECONDS)  # while there is a loop to close on
        if isinstance(way, Tasks):
            way.end()

    @pytest.fixture(params=["result", "await"])
    def wait(self, request: pytest.FixtureRequest) -> Wait:
        """For a test without handlers: once for each way to wait."""
        return result if request.param == "result" else awaited

    # -- time --------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """So much time passes, for the target as well."""
        if self.clock is not None:
            self.clock.advance(seconds)
        else:
            time.sleep(seconds)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Let time pass until something is so."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < give_up, f"this did not happen within {PATIENCE_SECONDS} s"
            self._moment()

    def assert_never(self, condition: Callable[[], object], seconds: float = 0.03) -> None:
        """Something does not become so for a while. That can only be seen by giving it some time to."""
        end = self.now() + seconds
        while self.now() < end:
            assert not condition()
            self._moment()
        assert not condition()

    def now(self) -> float:
        """Seconds, by the clock of the target."""
        return time.monotonic() if self.clock is None else self.clock.now_us() / 1_000_000

    def _moment(self) -> None:
        if self.clock is None:
            time.sleep(0.005)  # to ask costs others time, above all through a server
        else:
            time.sleep(0.001)
            self.clock.advance(0.005)

    # -- short words -------------------------------------------------------------------------------

    def topic(self, name: str = "orders") -> Topic:
        """A topic that exists."""
        topic = self.pubsub.topic(name)
        if not result(topic.exists()):
            result(topic.create())
        return topic

    def subscribe(self, name: str = "worker", topic: str = "orders", **options: Any) -> Subscription:
        """A new subscription, and its topic if that is missing."""
        return result(self.topic(topic).subscription(name).create(**options))

    def subscribe_ordered(self, name: str = "worker", topic: str = "orders", **options: Any) -> Subscription:
        return self.subscribe(name, topic, enable_message_ordering=True, **options)

    def publish(self, *texts: str, key: str | None = None, topic: str = "orders") -> list[str]:
        """Publish one after the other, each when the one before is answered."""
        to = self.pubsub.topic(topic)
        return [result(to.publish_message(text.encode(), ordering_key=key)) for text in texts]

    def publish_by_letter(self, *texts: str, topic: str = "orders") -> list[str]:
        """The letter that a text begins with is its ordering key."""
        return [one for text in texts for one in self.publish(text, key=text[0], topic=topic)]

    def pull(self, subscription: str = "worker", max_messages: int = 100) -> list[Message]:
        return result(self.pubsub.subscription(subscription).pull(max_messages))

    def consume(self, count: int, subscription: str = "worker") -> list[Message]:
        """Pull and ack until there were so many."""
        consumed: list[Message] = []

        def enough() -> bool:
            while len(consumed) < count and (messages := self.pull(subscription, min(100, count - len(consumed)))):
                result(Pending.all([message.ack() for message in messages]))
                consumed.extend(messages)
            return len(consumed) == count

        self.wait_until(enough)
        return consumed

    def backlog(self, subscription: str = "worker") -> int:
        return result(self.pubsub.subscription(subscription).metrics()).backlog_messages


class HandlersInTasks(PubSubCase):
    """For targets of which others are tested in every way: how handlers run has little to do with what is behind."""

    @pytest.fixture
    def way(self) -> Iterator[Way]:
        yield from self._with_handlers(Tasks())


class HandlersInThreads(PubSubCase):
    """As `HandlersInTasks`."""

    @pytest.fixture
    def way(self) -> Iterator[Way]:
        yield from self._with_handlers(Threads())


def result(pending: Pending[T]) -> T:
    return pending.result(PATIENCE_SECONDS)


def awaited(pending: Pending[T]) -> T:
    async def wait() -> T:
        return await asyncio.wait_for(pending, PATIENCE_SECONDS)

    return asyncio.run(wait())


def text(message: Message) -> str:
    return message.data.decode()


def texts(messages: Iterable[Message]) -> list[str]:
    return [text(message) for message in messages]
