"""Certificates, tried before they are used: of a bad one gRPC would only say that there are no clients.

They are looked at when somebody connects, so that new ones are used without a restart. Those that do not fit, as may
be while only one of the files is replaced, change nothing, and the log says so.
"""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path
from typing import Any

import grpc

from inorder.errors import InvalidArgument
from inorder.server.security.options import Security

_log = logging.getLogger(__name__)


def server_credentials(security: Security) -> Any:
    """What gRPC needs to listen with TLS; None without."""
    if security.certificate is None or security.key is None:
        return None
    certificates = _Certificates(security.certificate, security.key, security.client_ca)
    return grpc.dynamic_ssl_server_credentials(
        certificates.first, certificates.changed, require_client_authentication=security.client_ca is not None
    )


def http_context(security: Security) -> ssl.SSLContext | None:
    """The same for HTTP."""
    if security.certificate is None or security.key is None:
        return None
    certificates = _Certificates(security.certificate, security.key, security.client_ca)
    newest = certificates.context()

    def connects(connection: ssl.SSLObject, *_: object) -> None:
        nonlocal newest
        if certificates.changed() is not None:
            newest = certificates.context()
        connection.context = newest

    context = certificates.context()
    context.sni_callback = connects  # called for each, also without a name
    return context


class _Certificates:
    """The files, as they are. Called on gRPC's own threads."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._lock = threading.Lock()
        self._seen = self._look()
        self.first = self._read()
        self._problem = ""  # with what is there since

    def changed(self) -> Any:
        """New certificates, if there are any since this was asked."""
        with self._lock:
            seen = self._look()
            if seen == self._seen:
                return None
            try:
                found = self._read()
            except InvalidArgument as error:  # and they are tried again: perhaps they can only not be read now
                if str(error) != self._problem:
                    self._problem = str(error)
                    _log.error("the certificates stay as they were: %s", error)
                return None
            self._seen, self._problem = seen, ""
            _log.info("%s is used from now on", self._certificate)
            return found

    def context(self) -> ssl.SSLContext:
        """The files for Python's own TLS, as they are now."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self._client_ca)
        context.load_cert_chain(self._certificate, self._key, password="")
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _look(self) -> list[tuple[int, int] | None]:
        return [_state(path) for path in (self._certificate, self._key, self._client_ca) if path is not None]

    def _read(self) -> Any:
        chain, key = _bytes("tls_certificate", self._certificate), _bytes("tls_key", self._key)
        authority = None if self._client_ca is None else _bytes("client_ca", self._client_ca)
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self._certificate, self._key, password=""
            )
        except (OSError, ValueError) as error:
            # Of the files and the kind of mistake, never of what is in them.
            reason = getattr(error, "reason", None) or "not a certificate and its key without a password"
            raise InvalidArgument(
                f"tls_certificate, tls_key: {self._certificate} and {self._key} do not fit: {reason}"
            ) from None
        try:
            ssl.create_default_context(cafile=self._client_ca)
        except OSError:
            raise InvalidArgument(f"client_ca: {self._client_ca} has no certificate in PEM format") from None
        return grpc.ssl_server_certificate_configuration([(key, chain)], authority)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _bytes(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{field}: {path} cannot be read: {error.strerror}") from None
