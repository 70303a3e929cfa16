"""What a function may answer for an item, and what stands in the place of an item that has no answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inorder.errors import Aborted, DeadlineExceeded, ResourceExhausted, Unavailable
from inorder.message import Gap


class Outputs(tuple[Any, ...]):
    """Several outputs of one item, or none: `return Outputs([a, b])`. They come out together, in this order.

    Anything else that a function returns is one output, a list and a tuple too.
    """

    __slots__ = ()


class Raise(tuple[BaseException]):
    """In the place of outputs: the reader raises this error."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ItemError:
    """With `on_error="emit"`: the output of an item whose function failed."""

    index: int  # of the input, from 0
    item: Any
    error: BaseException
    attempts: int


@dataclass(frozen=True, slots=True)
class ItemGap(Gap):
    """With `order_timeout`: the place of an item that the others waited for too long. It is not put out any more.

    As a `Gap`, with the index of the input, from 0, as its position and "order_timeout" as its reason.
    """

    item: Any


class ItemTimeout(DeadlineExceeded):
    """The function took longer for an item than `process_timeout`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the function took longer than process_timeout={seconds:g} s for the item")


class WorkerDied(Unavailable):
    """A worker process ended in the middle of an item."""

    def __init__(self, exit_code: int | None) -> None:
        how = f"by signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"with exit code {exit_code}"
        super().__init__(f"a worker process ended {how} in the middle of the item")


class WorkersGone(Aborted):
    """Somebody else cancelled the tasks of a pool, or closed their loop."""

    def __init__(self) -> None:
        super().__init__("the workers were cancelled by somebody else, in the middle of their work")


class WorkersStuck(ResourceExhausted):
    """So many threads run functions past their time that more of them would only make it worse."""

    def __init__(self, threads: int) -> None:
        super().__init__(
            f"{threads} thread(s) run functions past their process_timeout, and a thread cannot be stopped; "
            'use kind="process", or functions that give up by themselves'
        )
