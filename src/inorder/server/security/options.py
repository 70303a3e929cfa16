"""How a server is protected, and from how much."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.options import check_number, check_whole
from inorder.server.limits import MAX_REQUEST_BYTES

MAX_RECEIVED_BYTES = 16_000_000  # what is beyond Pub/Sub's limit but below this gets an answer that says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """TLS with a certificate, mutual TLS with `client_ca`, tokens with their rights. All of them are files."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    tokens: Path | None = None
    insecure: bool = False  # whoever reaches the server may do everything, and read what others say to it

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgument("tls_certificate and tls_key: give both, or none")
        if self.client_ca is not None and self.certificate is None:
            raise InvalidArgument("client_ca: needs tls_certificate and tls_key")

    def check_host(self, host: str) -> None:
        """Refuse an address that others can reach if what they can do there is not limited."""
        if is_loopback(host) or self.insecure:
            return
        if self.certificate is None:
            missing = "TLS (--tls-certificate and --tls-key)"
        elif self.tokens is None and self.client_ca is None:
            missing = "tokens (--tokens), or certificates of clients (--client-ca)"
        else:
            return
        raise FailedPrecondition(
            f"host: {host!r} can be reached from other machines, which needs {missing}; --insecure does without"
        )

    def check_one_port(self) -> None:
        """Refuse TLS, of which gRPC and REST each do their own."""
        if self.certificate is not None:
            raise InvalidArgument("port, rest_port: with TLS, gRPC and REST need a port each")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """What peers may ask for. A peer is the address of a machine: those behind one proxy are one."""

    max_connections: int = 10_000  # of all peers together
    max_streams_per_peer: int = 1_000
    max_request_bytes: int = MAX_RECEIVED_BYTES
    requests_per_second: float = 0  # of one peer, calls and what is sent on streams; 0: any number
    burst: int = 1_000  # requests that a peer may send at once before that counts
    idle_seconds: float = 600  # after which a connection without a call is closed
    silent_seconds: float = 60  # after which a peer that says nothing is asked whether it lives

    def __post_init__(self) -> None:
        check_whole("max_connections", self.max_connections)
        check_whole("max_streams_per_peer", self.max_streams_per_peer)
        check_whole("max_request_bytes", self.max_request_bytes)
        if self.max_request_bytes < MAX_REQUEST_BYTES:
            raise InvalidArgument(
                f"max_request_bytes: at least {MAX_REQUEST_BYTES}, which clients may rely on, "
                f"not {self.max_request_bytes}"
            )
        check_number("requests_per_second", self.requests_per_second, at_least=0, up_to=1e9)
        check_whole("burst", self.burst)
        check_number("idle_seconds", self.idle_seconds, at_least=1, up_to=2_000_000)
        check_number("silent_seconds", self.silent_seconds, at_least=1, up_to=2_000_000)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
