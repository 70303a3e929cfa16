"""What exists, or not, of what a call names; and all that exists, page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

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


def on_all_pages(ask: Callable[[str], Pending[Any]], read: Callable[[Any], Iterable[T]]) -> Pending[list[T]]:
    """What a list has on all its pages. `ask` gets the page that a token names; the first has none."""
    listed: Pending[list[T]] = Pending()
    found: list[T] = []

    def turned(asked: Pending[Any]) -> None:
        # Each page ends here before the next one: if it waited for those behind it, thousands would be too deep.
        try:
            page = asked.result()
            found.extend(read(page))
            following = ask(page.next_page_token) if page.next_page_token else None
        except Exception as error:
            listed.set_exception(error)
            return
        if following is None:
            listed.set_result(found)
        else:
            following.add_done_callback(turned)

    ask("").add_done_callback(turned)
    return listed


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
