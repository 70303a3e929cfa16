"""How a source is read: an item at a time, only when there is room, and left in good order."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from inorder.errors import InvalidArgument
from inorder.pool.feeds import Feed, FeedInPlace, FeedTask, FeedThread, kind_of

PATIENCE_SECONDS = 30


class Intake:
    """Has room for so many items."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.items: list[Any] = []
        self.full = threading.Event()
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def room(self) -> bool:
        if len(self.items) < self.places:
            return True
        self.full.set()
        return False

    def admit(self, item: Any) -> None:
        self.items.append(item)

    def source_ended(self, error: BaseException | None) -> None:
        self.error = error
        self.ended.set()


class Numbers:
    """A source that counts what was taken, and notices when it is closed."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error = count, error
        self.taken = 0
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[int]:
        try:
            for number in range(self.count):
                self.taken += 1
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.closed.set()

    async def aiter(self) -> AsyncIterator[int]:
        for number in self:
            yield number


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ([], FeedInPlace),
        ((), FeedInPlace),
        (range(3), FeedInPlace),
        ("text", FeedInPlace),
        (b"bytes", FeedInPlace),
        ({}, FeedInPlace),
        (set(), FeedInPlace),
        (deque(), FeedInPlace),
        (iter([]), FeedThread),
        (Numbers(1), FeedThread),
        ((number for number in range(3)), FeedThread),
        (Numbers(1).aiter(), FeedTask),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_wait_is_read_where_it_is_in_nobodys_way(source: Any, kind: type[Feed]) -> None:
    assert kind_of(source) is kind


@pytest.mark.parametrize("source", [None, 7, object(), print], ids=lambda source: type(source).__name__)
def test_what_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises(InvalidArgument, match="source: an iterable or an asynchronous iterable, not "):
        kind_of(source)


def test_a_collection_is_read_as_far_as_asked_for() -> None:
    feed = FeedInPlace([1, 2, 3], lambda: None)
    assert feed.fill(2) == [1, 2]
    assert feed.fill(2) == [3]
    assert feed.failure is None


def test_what_a_collection_gave_before_it_failed_is_kept() -> None:
    class Broken(list[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(3)
            raise OSError("broken")

    feed = FeedInPlace(Broken(), lambda: None)
    assert feed.fill(9) == [0, 1, 2]
    assert isinstance(feed.failure, OSError)


def test_a_drained_collection_gives_nothing_more() -> None:
    feed = FeedInPlace([1, 2, 3], lambda: None)
    feed.fill(1)
    feed.drain()
    assert feed.fill(9) == []


@pytest.mark.parametrize("end", ["drain", "stop"])
def test_a_thread_takes_no_more_than_there_is_room_for_and_closes_what_it_leaves(end: str) -> None:
    intake, source = Intake(3), Numbers(100)
    feed = FeedThread(source)
    feed.start(intake)
    assert intake.full.wait(PATIENCE_SECONDS)
    assert source.taken == 3
    intake.full.clear()
    intake.places = 5
    feed.wake()
    assert intake.full.wait(PATIENCE_SECONDS)
    assert intake.items == [0, 1, 2, 3, 4]
    getattr(feed, end)()
    assert intake.ended.wait(PATIENCE_SECONDS)
    assert source.closed.wait(PATIENCE_SECONDS)
    assert (source.taken, intake.error) == (5, None)


def test_a_thread_tells_the_error_of_its_source() -> None:
    intake, error = Intake(9), OSError("broken")
    FeedThread(Numbers(3, error)).start(intake)
    assert intake.ended.wait(PATIENCE_SECONDS)
    assert (intake.items, intake.error) == ([0, 1, 2], error)


@pytest.mark.parametrize("end", ["drain", "stop"])
def test_a_task_takes_no_more_than_there_is_room_for_and_closes_what_it_leaves(end: str) -> None:
    async def main() -> None:
        intake, source = Intake(3), Numbers(100)
        feed = FeedTask(source.aiter(), asyncio.get_running_loop())
        feed.start(intake)
        await asyncio.sleep(0)
        assert source.taken == 3
        intake.places = 5
        feed.wake()
        for _ in range(3):
            await asyncio.sleep(0)
        assert intake.items == [0, 1, 2, 3, 4]
        getattr(feed, end)()
        await feed.gone()
        assert intake.ended.is_set()
        assert (source.taken, intake.error) == (5, None)

    asyncio.run(main())


def test_a_task_tells_the_error_of_its_source() -> None:
    async def main() -> None:
        intake, error = Intake(9), OSError("broken")
        feed = FeedTask(Numbers(3, error).aiter(), asyncio.get_running_loop())
        feed.start(intake)
        await feed.gone()
        assert (intake.items, intake.error) == ([0, 1, 2], error)

    asyncio.run(main())


def test_a_task_that_waits_for_its_source_can_be_stopped() -> None:
    async def silent() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    async def main() -> None:
        intake = Intake(9)
        feed = FeedTask(silent(), asyncio.get_running_loop())
        feed.start(intake)
        await asyncio.sleep(0)
        feed.stop()
        await feed.gone()
        assert intake.ended.is_set()
        assert intake.error is None

    asyncio.run(main())


@pytest.mark.parametrize("kind", [FeedThread, FeedTask])
def test_what_a_source_is_about_to_give_when_it_is_drained_is_not_lost(kind: type[Feed]) -> None:
    asked, given = threading.Event(), threading.Event()

    def slow() -> Iterator[int]:
        asked.set()
        assert given.wait(PATIENCE_SECONDS)
        yield 1
        yield 2

    async def slow_async() -> AsyncIterator[int]:
        for number in slow():
            yield number

    async def main() -> None:
        intake, loop = Intake(9), asyncio.get_running_loop()
        feed = FeedTask(slow_async(), loop) if kind is FeedTask else FeedThread(slow())
        threading.Thread(target=lambda: [asked.wait(PATIENCE_SECONDS), feed.drain(), given.set()]).start()
        feed.start(intake)
        await feed.gone()
        assert intake.ended.wait(PATIENCE_SECONDS)
        assert intake.items == [1]

    asyncio.run(main())


def test_a_feed_may_be_told_something_when_its_loop_is_gone() -> None:
    feeds: list[FeedTask] = []

    async def main() -> None:
        feeds.append(FeedTask(Numbers(3).aiter(), asyncio.get_running_loop()))
        feeds[0].start(Intake(9))
        await feeds[0].gone()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join(PATIENCE_SECONDS)
    feeds[0].wake()
    feeds[0].drain()
    feeds[0].stop()
