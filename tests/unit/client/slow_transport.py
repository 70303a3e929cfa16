"""A transport that answers when the test says so."""

from typing import Any

from inorder.client.publisher import Publisher
from inorder.message import Batch
from inorder.pending import Pending
from inorder.testing.clock import ManualClock


class SlowTransport:
    """Takes requests and keeps them, until the test answers them."""

    answers_at_once = False  # it is the test that answers
    in_order = False

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.requests: list[tuple[Batch, Pending[list[str]]]] = []
        self.answered = 0

    def publish(self, topic: str, batch: Batch) -> Pending[list[str]]:
        assert topic == "orders"
        answer: Pending[list[str]] = Pending()
        self.requests.append((batch, answer))
        return answer

    def sent(self) -> list[list[bytes]]:
        """The data of each request so far."""
        return [list(batch[1]) for batch, _ in self.requests]

    def answer(self, error: Exception | None = None) -> None:
        """Answer the oldest request that waits."""
        batch, answer = self.requests[self.answered]
        self.answered += 1
        if error is None:
            answer.set_result([data.decode() for data in batch[1]])
        else:
            answer.set_exception(error)

    def answer_all(self) -> None:
        while self.answered < len(self.requests):
            self.answer()


def make(**options: Any) -> tuple[Publisher, SlowTransport]:
    transport: Any = SlowTransport()
    publisher = Publisher(transport, "orders")
    publisher.set_options(options)
    return publisher, transport
