"""How a client shows who it is, and finds out whom it talks to: options of an address.

tls=1                       the server has a certificate
ca=FILE                     of an authority that the machine does not know
certificate=FILE, key=FILE  the client has one, too
token=TOKEN                 and a token
token_file=FILE             the same in a file, which is read again when it has changed
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from inorder.errors import InvalidArgument

OPTIONS = ("tls", "ca", "certificate", "key", "token", "token_file")
_SWITCH = {"1": True, "0": False}


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files are named here, and read when a connection is made."""

    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None


PLAIN = Credentials()


def credentials_of(options: Mapping[str, str], host: str) -> Credentials:
    """What the options of an address say. No error tells the token."""
    if (tls := _SWITCH.get(options.get("tls", "0"))) is None:
        raise InvalidArgument(f"tls: 1 or 0, not {options['tls']!r}")
    given = {name: options[name] for name in OPTIONS[1:] if name in options}
    for name, value in given.items():
        if not value:
            raise InvalidArgument(f"{name}: is empty")
        if not tls and name in ("ca", "certificate", "key"):
            raise InvalidArgument(f"{name}: needs tls=1")
    if ("certificate" in given) != ("key" in given):
        raise InvalidArgument("certificate and key: give both, or none")
    if "token" in given and "token_file" in given:
        raise InvalidArgument("token and token_file: give one of them")
    if not tls and not _is_loopback(host) and ("token" in given or "token_file" in given):
        raise InvalidArgument(f"token: needs tls=1, or it could be read on the way to {host}")
    return Credentials(tls=tls, **given)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
