"""Where a broker is: `file:./data`, `grpc://host:port?project=P&timeout=SECONDS`, and the options of credentials.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import expanduser
from urllib.parse import parse_qsl, unquote, urlsplit

from inorder.core.producers import check_producer
from inorder.errors import InvalidArgument
from inorder.options import DEFAULT_PROJECT, check_number
from inorder.transport import credentials
from inorder.transport.credentials import PLAIN, Credentials, credentials_of

SCHEME = "grpc:"
OPTIONS = ("project", "timeout", "producer", *credentials.OPTIONS)
FOLDER_OPTIONS = ("journal", "sync", "sync_seconds")
DEFAULT_TIMEOUT_SECONDS = 60.0  # as long as a restart may take
MAX_TIMEOUT_SECONDS = 86_400

_PROJECT = re.compile(r"[A-Za-z0-9\-_.:]+")


@dataclass(frozen=True, slots=True)
class Address:
    """A server, and the project in it whose resources have plain names here."""

    address: str  # the host and the port, as gRPC wants them
    project: str = DEFAULT_PROJECT
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS  # until a call fails whose server cannot be reached
    credentials: Credentials = PLAIN
    producer: str | None = None  # under which name it publishes, if that is to be its alone

    def topic(self, name: str) -> str:
        """The resource that is meant by the name of a topic."""
        return self._resource("topics", name)

    def subscription(self, name: str) -> str:
        """The same of a subscription."""
        return self._resource("subscriptions", name)

    def name_of(self, resource: str) -> str:
        """The name that means a resource: without its project, if that is this one."""
        project, _, rest = resource.removeprefix("projects/").partition("/")
        return rest.partition("/")[2] if project == self.project else resource

    def _resource(self, collection: str, name: str) -> str:
        return name if "/" in name else f"projects/{self.project}/{collection}/{name}"


def folder_of(target: str) -> tuple[str, dict[str, str]]:
    """The folder that `file:./data?sync=none` names, and its options as they stand there."""
    base, _, query = target.partition("?")
    folder = base.removeprefix("file:")
    # Of `file://data` some expect a folder here, others one of another host; it would be /data.
    if not folder or (folder.startswith("//") and not folder.startswith("///")):
        raise InvalidArgument(f"target: a folder after 'file:', as in 'file:./data' or 'file:/data', not {target!r}")
    # No shell expands a "~" behind a colon, and nobody wants a folder of that name.
    return expanduser(unquote(folder)), _options(base, query, FOLDER_OPTIONS)


def host_and_port(host: str, port: int) -> str:
    """As addresses have them, with brackets around a host that has colons itself."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_address(url: str) -> bool:
    """Whether it is a server that is meant, and not a folder."""
    return url.startswith(SCHEME)


def without_secrets(url: str) -> str:
    """An address as others may see it."""
    return re.sub(r"([?&]token=)[^&]*", r"\1…", url)


def without_options(url: str) -> str:
    """What may be an address, for errors: nothing of it that may be secret."""
    return re.sub(r"//.*@", "//…@", url.partition("?")[0])


def parse(url: str) -> Address:
    """The address that a text stands for. What may be secret in it is in no error."""
    base, _, query = url.partition("?")
    parts = urlsplit(base)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme != "grpc" or not host or not port or parts.path.strip("/") or "@" in parts.netloc or parts.fragment:
        raise InvalidArgument(f"a server: grpc://host:port, as in grpc://127.0.0.1:8085, not {without_options(url)!r}")
    options = _options(base, query, OPTIONS)
    project = options.get("project", DEFAULT_PROJECT)
    if not _PROJECT.fullmatch(project):
        raise InvalidArgument(f"{base}: project: letters, digits and -_.: only, not {project!r}")
    if (producer := options.get("producer")) is not None:
        check_producer(producer)
    try:
        found = credentials_of(options, host)
    except InvalidArgument as error:
        raise InvalidArgument(f"{base}: {error}") from None
    return Address(parts.netloc, project, _seconds(options.get("timeout")), found, producer)


def _options(base: str, query: str, known: Sequence[str]) -> dict[str, str]:
    """What stands behind the `?` of an address."""
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise InvalidArgument(f"{base}: unknown option {name!r}; there are {', '.join(known)}")
        if name in options:
            raise InvalidArgument(f"{base}: option {name!r} is given twice")
        options[name] = value
    return options


def _seconds(text: str | None) -> float:
    if text is None:
        return DEFAULT_TIMEOUT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        raise InvalidArgument(f"timeout: a number of seconds, not {text!r}") from None
    check_number("timeout", seconds, above=0, up_to=MAX_TIMEOUT_SECONDS)
    return seconds
