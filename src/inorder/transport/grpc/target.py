"""What an address like `grpc://localhost:8085?project=shop` says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from inorder.errors import InvalidArgument
from inorder.options import check_number

DEFAULT_PROJECT = "inorder"
DEFAULT_TIMEOUT_SECONDS = 60.0  # as long as a restart may take
MAX_TIMEOUT_SECONDS = 86_400

_PROJECT = re.compile(r"[A-Za-z0-9\-_.:]+")
_OPTIONS = ("project", "timeout")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is, and as what we come."""

    address: str
    project: str = DEFAULT_PROJECT
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS  # until a call fails whose server cannot be reached

    def topic(self, name: str) -> str:
        """The resource that is meant by a name."""
        return self._resource("topics", name)

    def subscription(self, name: str) -> str:
        return self._resource("subscriptions", name)

    def name_of(self, resource: str) -> str:
        """The name that means a resource."""
        project, _, rest = resource.removeprefix("projects/").partition("/")
        return rest.partition("/")[2] if project == self.project else resource

    def _resource(self, collection: str, name: str) -> str:
        return name if "/" in name else f"projects/{self.project}/{collection}/{name}"


def target_of(text: str) -> Target:
    """An address as a program gives it."""
    parts = urlsplit(text)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.path not in ("", "/"):
        raise InvalidArgument(f"target: a host and a port, as in 'grpc://localhost:8085', not {text!r}")
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise InvalidArgument(f"target {text!r}: unknown option {name!r}; there are {', '.join(_OPTIONS)}")
        options[name] = value
    project = options.get("project", DEFAULT_PROJECT)
    if not _PROJECT.fullmatch(project):
        raise InvalidArgument(f"project: letters, digits and -_.: only, not {project!r}")
    return Target(parts.netloc, project, _seconds(options.get("timeout")))


def _seconds(text: str | None) -> float:
    if text is None:
        return DEFAULT_TIMEOUT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        raise InvalidArgument(f"timeout: a number of seconds, not {text!r}") from None
    check_number("timeout", seconds, above=0, up_to=MAX_TIMEOUT_SECONDS)
    return seconds
