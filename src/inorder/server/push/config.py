"""Where and how a subscription wants its messages to be pushed: google.pubsub.v1.PushConfig, checked.

Endpoints on this machine may speak HTTP. All others must speak HTTPS, and whoever starts the server must have allowed
them: or any client could make the server send requests into networks that the client does not reach.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from inorder.server.status import absent, invalid

MAX_ENDPOINT_LENGTH = 2_048
VERSION = "x-goog-version"  # the only attribute there is
DEFAULT_VERSION = "v1"
VERSIONS = ("v1", "v1beta2")  # both are one format, says Google
_PORTS = {"http": 80, "https": 443}
_PRINTABLE = re.compile(r"[!-~]+")  # so that nothing in it can end the line of a request


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to push."""

    scheme: str
    host: str
    port: int
    target: str  # the path, and what follows it

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """The host as requests name it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether it is on this machine, and says so without asking anybody."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Where to push, and what a request looks like."""

    endpoint: Endpoint
    wrapped: bool = True
    metadata: bool = False  # of messages that are not wrapped: in headers


def endpoint_of(text: str) -> Endpoint:
    """An endpoint from its URL."""
    if not _PRINTABLE.fullmatch(text) or len(text) > MAX_ENDPOINT_LENGTH:
        raise invalid(f"Invalid push endpoint given (endpoint={text[:200]!r}): it is no URL.")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise invalid(f"Invalid push endpoint given (endpoint={text[:200]}): {error}.") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise invalid(f"Invalid push endpoint given (endpoint={text[:200]}): it begins with https://HOST.")
    if parts.username is not None or parts.fragment:
        raise invalid(f"Invalid push endpoint given (endpoint={text[:200]}): no user, and no fragment, can be sent.")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port, target)


def check_push(config: Any, before: Any, *, anywhere: bool) -> None:
    """Refuse a PushConfig that cannot be honoured. One that says no version gets the one `before` had, or Google's."""
    if not config.push_endpoint:
        turned_off = type(before)()  # by a client that has read it and cleared the endpoint alone
        turned_off.CopyFrom(before)
        turned_off.ClearField("push_endpoint")
        if config.ByteSize() and config != turned_off:
            raise invalid("push_config.push_endpoint must be set, or nothing of push_config.")
        return
    endpoint = endpoint_of(config.push_endpoint)
    if endpoint.port == 0:
        raise invalid(f"Invalid push endpoint given (endpoint={config.push_endpoint[:200]}): there is no port 0.")
    _check_reach(endpoint, anywhere=anywhere)
    if config.HasField("oidc_token"):
        raise absent(
            "Tokens of service accounts (oidc_token) are not supported, as only Google can sign them: "
            "let a secret in the endpoint's URL say who calls."
        )
    if unknown := sorted(set(config.attributes) - {VERSION}):
        raise invalid(f"push_config.attributes: {VERSION} only, not {unknown[0][:100]!r}.")
    version = config.attributes.get(VERSION) or before.attributes.get(VERSION) or DEFAULT_VERSION
    if version not in VERSIONS:
        raise absent(f"The push format {version[:100]!r} is not supported: use {' or '.join(VERSIONS)}.")
    config.attributes[VERSION] = version


def _check_reach(endpoint: Endpoint, *, anywhere: bool) -> None:
    if endpoint.loopback:
        return
    if not endpoint.tls:
        raise invalid(f"Push endpoints that are not on loopback need https (endpoint={endpoint.authority}).")
    if not anywhere:
        raise invalid(
            f"Push endpoints that are not on loopback are not allowed here (endpoint={endpoint.authority}): "
            "start the server with --push-anywhere."
        )


def target_of(config: Any) -> PushTarget | None:
    """What a checked PushConfig asks for; None: nothing is pushed."""
    if not config.push_endpoint:
        return None
    wrapped = not config.HasField("no_wrapper")
    return PushTarget(endpoint_of(config.push_endpoint), wrapped, config.no_wrapper.write_metadata)
