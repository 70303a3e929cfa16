"""What exists, or not, of what a call names."""

from __future__ import annotations

from typing import TypeVar

from inorder.errors import AlreadyExists, InorderError, NotFound
from inorder.pending import Pending

T = TypeVar("T")


def if_found(answer: Pending[T]) -> Pending[T | None]:
    """None if what was asked for does not exist."""
    found: Pending[T | None] = Pending()

    def finished(done: Pending[T]) -> None:
        error = done.exception()
        if isinstance(error, NotFound):
            found.set_result(None)
        elif error is not None:
            found.set_exception(error)
        else:
            found.set_result(done.result())

    answer.add_done_callback(finished)
    return found


def as_fact(answer: Pending[T], missing: InorderError, taken: InorderError | None = None) -> Pending[T]:
    """The same, with what it means here that something is missing, or there already, if the server says only that."""
    known: Pending[T] = Pending()

    def finished(done: Pending[T]) -> None:
        error = done.exception()
        if type(error) is NotFound:
            known.set_exception(missing)
        elif type(error) is AlreadyExists and taken is not None:
            known.set_exception(taken)
        else:
            done.hand_to(known)

    answer.add_done_callback(finished)
    return known
