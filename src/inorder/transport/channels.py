"""The one place where a connection to a server is made."""

from __future__ import annotations

from typing import Any

import grpc

from inorder.transport.address import Address

OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # a message alone may be larger than the 4 MiB that gRPC would take
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a server that is started again is back in a moment
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 30_000),  # or a server whose machine is gone would be waited for without end
    ("grpc.keepalive_timeout_ms", 10_000),
)


def channel(address: Address) -> Any:
    """A channel to a server, to be closed by who asks for it. It connects when it is used, and again when it must."""
    return grpc.insecure_channel(address.target, options=OPTIONS)
