"""Where a server is: `grpc://host:port?project=P`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from inorder.errors import InvalidArgument
from inorder.options import DEFAULT_PROJECT

SCHEME = "grpc:"
OPTIONS = ("project",)
_PROJECT = re.compile(r"[A-Za-z0-9\-_.:]+")


@dataclass(frozen=True, slots=True)
class Address:
    """A server, and the project in it whose resources have plain names here."""

    host: str
    port: int
    project: str = DEFAULT_PROJECT

    @property
    def target(self) -> str:
        """As gRPC wants it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def topic(self, name: str) -> str:
        """The name of a topic that the server knows it by."""
        return self._resource("topics", name)

    def subscription(self, name: str) -> str:
        """The same of a subscription."""
        return self._resource("subscriptions", name)

    def plain(self, resource: str) -> str:
        """The name of a resource as it is called here: without its project, if that is this one."""
        project, _, rest = resource.removeprefix("projects/").partition("/")
        return rest.partition("/")[2] if project == self.project else resource

    def _resource(self, collection: str, name: str) -> str:
        return name if "/" in name else f"projects/{self.project}/{collection}/{name}"


def is_address(url: str) -> bool:
    """Whether it is a server that is meant, and not a folder."""
    return url.startswith(SCHEME)


def parse(url: str) -> Address:
    """The address that a text stands for. A secret in it is in no error."""
    wanted = "grpc://host:port, as in grpc://127.0.0.1:8085"
    base, _, query = url.partition("?")
    try:
        parts = urlsplit(base)
        base = re.sub(r"//.*@", "//…@", base)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidArgument(f"address: {wanted}, not {base!r}") from None
    if parts.scheme != "grpc" or not host or not port or parts.path.strip("/") or parts.username or parts.fragment:
        raise InvalidArgument(f"address: {wanted}, not {base!r}")
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            raise InvalidArgument(f"address {base!r}: unknown option {name!r}; there are {', '.join(OPTIONS)}")
        if name in options:
            raise InvalidArgument(f"address {base!r}: option {name!r} is given twice")
        options[name] = value
    project = options.get("project", DEFAULT_PROJECT)
    if not _PROJECT.fullmatch(project):
        raise InvalidArgument(f"address {base!r}: project: letters, digits and -_.: only, not {project!r}")
    return Address(host, port, project)
