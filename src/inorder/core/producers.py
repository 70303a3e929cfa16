"""Publishing once: what a topic remembers of those who number their attempts.

A producer repeats an attempt until it is answered. It is stored once, after the attempt before it, and every
repetition gets the same answer. A producer whose name is its own goes on in a new epoch when it starts again, and
attempts of earlier epochs are refused from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from inorder.clock import MICROSECONDS
from inorder.errors import InvalidArgument, OutOfSequence, ProducerFenced, TooLongAgo
from inorder.options import check_short_text, check_whole

MAX_PRODUCER_LENGTH = 200
REMEMBERED_ATTEMPTS = 100  # of a producer: how far back a repeated one is answered with its ids
REMEMBERED_SECONDS = 24 * 3600  # how long a producer is that says nothing
MAX_HELD_EPOCH = 2**53  # a time in microseconds, far beyond any
MAX_PRODUCERS = 10_000  # of a topic; beyond that, the one that has been silent longest is forgotten


class Attempt(NamedTuple):
    """The name that a producer gives to a batch."""

    producer: str
    epoch: int  # 0 for one that was not opened, because nobody else has its name
    number: int  # 0, 1, 2 … of the epoch; none is left out


@dataclass(slots=True)
class Producer:
    """What is remembered of one."""

    epoch: int
    used_us: int
    next: int = 0  # the number of the attempt that comes next
    recent: list[tuple[int, int]] = field(default_factory=list)  # the last attempts: first position, how many messages

    def copy(self) -> Producer:
        return Producer(self.epoch, self.used_us, self.next, self.recent.copy())


Producers: TypeAlias = dict[str, Producer]
"""By name, the one that has been silent longest first."""


def check_producer(name: str) -> None:
    check_short_text("producer", name, MAX_PRODUCER_LENGTH)


def position_of(producers: Mapping[str, Producer], attempt: Attempt, count: int) -> int | None:
    """Where the first message of an attempt was stored; None if it is the one that comes next."""
    name, epoch, number = attempt
    check_producer(name)
    check_whole("epoch", epoch, at_least=0)
    check_whole("number", number, at_least=0)
    producer = producers.get(name) or Producer(0, 0)
    if epoch < producer.epoch:
        raise ProducerFenced(name, epoch, producer.epoch)
    if epoch > producer.epoch:
        raise OutOfSequence(f"producer {name!r} was not opened in epoch {epoch}, or has been silent too long: open it")
    if number == producer.next:
        return None
    if number > producer.next:
        raise OutOfSequence(f"attempt {number} of producer {name!r}: the next one is {producer.next}")
    back = producer.next - number
    if back > len(producer.recent):
        raise TooLongAgo(name, number, producer.next - len(producer.recent))
    first, stored = producer.recent[-back]
    if stored != count:
        raise InvalidArgument(f"attempt {number} of producer {name!r} had {stored} messages, and now it has {count}")
    return first


def epoch_after(producers: Mapping[str, Producer], name: str, held: int | None, now_us: int) -> int:
    """The epoch of a producer that is opened now: a time, so that it is another one also if the last is forgotten.

    Whoever `held` one goes on in the next, which is kept for that: so it may ask again if the answer was lost. It is
    fenced if somebody else was here meanwhile.
    """
    last = producers[name].epoch if name in producers else 0
    if held is None:
        return max(last + 2, now_us)
    check_whole("held_epoch", held, at_least=0)
    if held > MAX_HELD_EPOCH:
        raise InvalidArgument(f"held_epoch: up to {MAX_HELD_EPOCH}, not {held}")
    if last > held + 1:
        raise ProducerFenced(name, held, last)
    return held + 1


def opened(producers: Producers, name: str, epoch: int, now_us: int) -> None:
    producers.pop(name, None)
    producers[name] = Producer(epoch, now_us)
    _forget_the_silent(producers, now_us)


def attempted(producers: Producers, attempt: Attempt, first: int, count: int, now_us: int) -> None:
    producer = producers.pop(attempt.producer, None) or Producer(attempt.epoch, now_us)
    producers[attempt.producer] = producer
    producer.used_us = now_us
    producer.next = attempt.number + 1
    producer.recent.append((first, count))
    del producer.recent[:-REMEMBERED_ATTEMPTS]
    _forget_the_silent(producers, now_us)


def _forget_the_silent(producers: Producers, now_us: int) -> None:
    oldest_us = now_us - REMEMBERED_SECONDS * MICROSECONDS
    while producers:
        name = next(iter(producers))
        if len(producers) <= MAX_PRODUCERS and producers[name].used_us >= oldest_us:
            return
        del producers[name]
