"""What Google's client hides: whole batches as they go over the wire, and streams request by request."""

import queue
from collections.abc import Iterator
from typing import Any

import grpc
from google.pubsub_v1.types import PubsubMessage, pubsub

TOPIC = "projects/shop/topics/orders"
SUBSCRIPTION = "projects/shop/subscriptions/worker"

StreamingPullRequest = pubsub.StreamingPullRequest.pb()
StreamingPullResponse = pubsub.StreamingPullResponse.pb()


def messages(data: str, key: str = "", **attributes: str) -> list[PubsubMessage]:
    """One message for each letter."""
    return [PubsubMessage(data=letter.encode(), ordering_key=key, attributes=attributes) for letter in data]


def call(channel: grpc.Channel, service: str, method: str, request: bytes, timeout: float = 10) -> bytes:
    """A call as bytes."""
    answer: bytes = channel.unary_unary(f"/google.pubsub.v1.{service}/{method}")(request, timeout=timeout)
    return answer


class Stream:
    """A StreamingPull of which each request and each response is seen."""

    def __init__(self, channel: grpc.Channel, subscription: str = SUBSCRIPTION, **first: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        method = channel.stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=StreamingPullRequest.SerializeToString,
            response_deserializer=StreamingPullResponse.FromString,
        )
        self.send(subscription=subscription, **{"stream_ack_deadline_seconds": 10, **first})
        self._call = method(iter(self._requests.get, None), timeout=30)
        self._seen: list[Any] = []

    def send(self, **fields: Any) -> None:
        self._requests.put(StreamingPullRequest(**fields))

    def half_close(self) -> None:
        self._requests.put(None)

    def read(self) -> Any:
        """The next response."""
        return next(self._call)

    def received(self, count: int) -> list[Any]:
        """So many messages, in however many responses they come."""
        while len(self._seen) < count:
            self._seen += self.read().received_messages
        found, self._seen = self._seen[:count], self._seen[count:]
        return found

    def data(self, count: int) -> str:
        return "".join(one.message.data.decode() for one in self.received(count))

    def cancel(self) -> None:
        self._call.cancel()
        self._requests.put(None)

    def rest(self) -> Iterator[Any]:
        return iter(self._call)

    def code(self) -> grpc.StatusCode:
        """How it ended; waits for that."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            pass
        self._requests.put(None)
        return self._call.code()
