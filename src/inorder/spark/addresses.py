"""Where a topic is: in a folder, or behind a server. Nothing here needs Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping

from inorder.errors import InvalidArgument
from inorder.transport import address
from inorder.transport.address import is_address, parse


def check_url(url: str) -> None:
    """Refuse what is the address of nothing."""
    if is_address(url):
        parse(url)
    else:
        folder_of(url)


def check_one_url(options: Mapping[str, str]) -> None:
    """Refuse two addresses: `path`, which is what `load` and `save` are given, is another name of the option `url`."""
    if len({value for name, value in options.items() if name.lower() in ("url", "path")}) > 1:
        raise InvalidArgument("url and path: give one of them, not both")


def folder_of(url: str) -> str:
    """The folder that is meant; what its owner is told behind a `?`, a reader need not know."""
    if url.startswith("file:"):
        return address.folder_of(url)[0]
    if re.match(r"[A-Za-z][\w+.-]*:", url):
        raise InvalidArgument(
            f"url: 'file:' and a folder, a path, or grpc://host:port, not {address.without_options(url)!r}"
        )
    return url


def shown(url: str) -> str:
    """Where something is, as others may see it: of a server nothing that may be secret."""
    return address.without_options(url) if is_address(url) else url
