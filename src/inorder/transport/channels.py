"""The one place where a connection to a server is made."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from inorder.errors import InvalidArgument
from inorder.transport.address import Address
from inorder.transport.credentials import Credentials

_TOKEN = re.compile(rb"[\x21-\x7e]+")

OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # how much comes is ours to say
    ("grpc.max_send_message_length", -1),
    # Messages come as a megabyte or more at once: they are not to wait until we say, piece by piece, that we read them.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
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
    credentials = address.credentials
    if credentials.tls:
        made = grpc.secure_channel(address.address, _certificates(credentials), options=OPTIONS)
    else:
        made = grpc.insecure_channel(address.address, options=OPTIONS)
    if credentials.token is None and credentials.token_file is None:
        return made
    return grpc.intercept_channel(made, _Bearer(credentials))


def _certificates(credentials: Credentials) -> Any:
    named = {"ca": credentials.ca, "key": credentials.key, "certificate": credentials.certificate}
    read = [None if path is None else _read(name, path) for name, path in named.items()]
    _check(credentials)
    return grpc.ssl_channel_credentials(*read)


def _check(credentials: Credentials) -> None:
    """Of files that are of no use gRPC would only say, again and again, that the server does not answer."""
    ca, certificate, key = credentials.ca, credentials.certificate, credentials.key
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError:
        raise InvalidArgument(f"ca: {ca} has no certificate in PEM format") from None
    if certificate is None:
        return
    try:
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        # Of the files and the kind of mistake, never of what is in them.
        reason = getattr(error, "reason", None) or "not a certificate and its key without a password"
        raise InvalidArgument(f"certificate, key: {certificate} and {key} do not fit: {reason}") from None


def _read(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{option}: {path} cannot be read: {error.strerror}") from None


class _Details(NamedTuple):
    """A call as it is sent, by gRPC's names."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]]
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """Adds the token to each call."""

    def __init__(self, credentials: Credentials) -> None:
        self._path = None if credentials.token_file is None else Path(credentials.token_file)
        self._seen: tuple[int, int] | None = None
        self._token = credentials.token or ""
        if self._path is None:
            try:
                _only_token(self._token.encode())
            except ValueError as error:
                raise InvalidArgument(f"token: {error}") from None
        self._current()

    def _current(self) -> str:
        """The token, of which a file may have another one by now."""
        if self._path is not None:
            try:
                found = self._path.stat()
                if (seen := (found.st_mtime_ns, found.st_ino)) != self._seen:
                    self._token, self._seen = _only_token(self._path.read_bytes()), seen
            except (OSError, ValueError) as error:
                if self._seen is None:  # else the one that was read before may still be good
                    reason = getattr(error, "strerror", None) or error
                    raise InvalidArgument(f"token_file: {self._path} cannot be read: {reason}") from None
        return self._token

    def _send(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), ("authorization", f"Bearer {self._current()}")]
        sent = _Details(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready, details.compression
        )
        return continuation(sent, request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = intercept_stream_stream = _send


def _only_token(content: bytes) -> str:
    """What gRPC can send; nothing else is a token, and it would be taken for a server that does not answer."""
    token = content.strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError("a token and nothing else is expected there, in ASCII and without spaces")
    return token.decode("ascii")
