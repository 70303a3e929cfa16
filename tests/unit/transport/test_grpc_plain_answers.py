"""What is said of leases to a server that knows google.pubsub.v1 only."""

from types import SimpleNamespace
from typing import Any

from google.pubsub_v1.types import pubsub

from inorder.options import MAX_ACK_DEADLINE_SECONDS
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.transport.grpc.plain_answers import PlainAnswers


class Server:
    """Takes every ack. Stands for `Calls`."""

    def __init__(self) -> None:
        self.acked: list[str] = []

    def repeated(self, method: str, request: bytes) -> Pending[bytes]:
        if method.endswith("Acknowledge"):
            self.acked += pubsub.AcknowledgeRequest.deserialize(request).ack_ids
        return Pending.of(b"")


def received(*ack_ids: str) -> list[Any]:
    return [SimpleNamespace(ack_id=ack_id, message=SimpleNamespace(ordering_key="")) for ack_id in ack_ids]


def test_leases_that_nobody_answers_are_forgotten_when_they_are_long_over() -> None:
    server, clock = Server(), ManualClock()
    calls: Any = server
    answers = PlainAnswers(calls, "worker", clock, ordered=False)
    [kept, *others] = answers.leased(received("kept", "a", "b"))
    for _ in range(4):
        clock.advance(MAX_ACK_DEADLINE_SECONDS)
        assert answers.extend([kept], MAX_ACK_DEADLINE_SECONDS).result(0) == []
    [new] = answers.leased(received("new"))
    assert len(answers._out) == 2
    assert answers.settle([*others, kept, new], ()).result(0) == others
    assert server.acked == ["kept", "new"]
