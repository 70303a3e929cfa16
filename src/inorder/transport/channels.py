"""The one place where a connection to a server is made."""

from __future__ import annotations

from typing import Any

import grpc

from inorder.transport.address import Address

OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # how much comes is ours to say
    ("grpc.max_send_message_length", -1),
    # A server that is gone without a word is noticed, and one that is back is found soon.
    ("grpc.keepalive_time_ms", 30_000),  # other servers hang up if they are asked more often
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # or two processes of one parent could share one
    ("grpc.enable_retries", 0),  # what is repeated, and when, is decided by those who call
)


def channel(address: Address) -> Any:
    """A channel to a server, to be closed by who asks for it. It connects when it is used, and again when it must."""
    return grpc.insecure_channel(address.address, options=OPTIONS)
