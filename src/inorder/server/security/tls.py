"""Certificates, tried before they are used: of a bad one gRPC would only say that there are no clients."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc

from inorder.errors import InvalidArgument
from inorder.server.security.options import Security


def server_credentials(security: Security) -> Any:
    """What gRPC needs to listen with TLS; None without."""
    if security.certificate is None or security.key is None:
        return None
    chain, key = _read("tls_certificate", security.certificate), _read("tls_key", security.key)
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            security.certificate, security.key, password=""
        )
    except (ssl.SSLError, ValueError) as error:
        # Of the files and the kind of mistake, never of what is in them.
        reason = getattr(error, "reason", None) or "not a certificate and its key without a password"
        raise InvalidArgument(
            f"tls_certificate, tls_key: {security.certificate} and {security.key} do not fit: {reason}"
        ) from None
    if security.client_ca is None:
        return grpc.ssl_server_credentials([(key, chain)])
    authority = _read("client_ca", security.client_ca)
    try:
        ssl.create_default_context(cafile=security.client_ca)
    except ssl.SSLError:
        raise InvalidArgument(f"client_ca: {security.client_ca} has no certificate in PEM format") from None
    return grpc.ssl_server_credentials([(key, chain)], authority, require_client_auth=True)


def _read(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{field}: {path} cannot be read: {error.strerror}") from None
