"""Names of resources, `projects/P/topics/T`, and what the broker calls them.

The broker takes such names as they are, so projects cannot collide. One project is that of the broker's plain
names: `orders` of the embedded API is `projects/inorder/topics/orders` here, if that project is "inorder".
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from inorder.broker import MessageQueue
from inorder.errors import FailedPrecondition, InvalidArgument, InvalidName
from inorder.options import check_name
from inorder.server.status import Refusal, invalid

MIN_LENGTH = 3
DELETED_TOPIC = "_deleted-topic_"  # what a subscription shows whose topic is gone
_PROJECT = re.compile(r"projects/([A-Za-z0-9\-_.:]+)")
# A name has no slash: the broker would take that of a resource within it for that resource, past what it is called by.
_RESOURCE = re.compile(r"(projects/[A-Za-z0-9\-_.:]+)/(topics|subscriptions|snapshots)/([^/]+)")
_KINDS = {"topics": "topic", "subscriptions": "subscription", "snapshots": "snapshot"}


@dataclass(frozen=True, slots=True)
class Names:
    """Both ways between the names of the protocol and those of a broker."""

    project: str  # of the plain names

    def __post_init__(self) -> None:
        if not _PROJECT.fullmatch(f"projects/{self.project}"):
            raise InvalidArgument(f"project: letters, digits and -_.: only, not {self.project!r}")

    def check(self, broker: MessageQueue) -> None:
        """Refuse a broker that has a long name in the project of the plain ones: two could then mean the same."""
        used = [*broker.topic_names(), *broker.subscription_names()]
        used += [snapshot.name for snapshot in broker.get_all_snapshots()]
        if long := [name for name in used if name.startswith(f"projects/{self.project}/")]:
            raise FailedPrecondition(f"{long[0]!r} is in the project of plain names: choose another one than that")

    def topic(self, resource: str) -> str:
        """The broker's name of a topic."""
        return self._name("topics", resource)

    def subscription(self, resource: str) -> str:
        """The broker's name of a subscription."""
        return self._name("subscriptions", resource)

    def snapshot(self, resource: str) -> str:
        """The broker's name of a snapshot."""
        return self._name("snapshots", resource)

    def new(self, collection: str, resource: str) -> str:
        """The same for one that is to be made, which needs at least three letters."""
        name = self._name(collection, resource)
        if len(resource.rsplit("/", 1)[-1]) < MIN_LENGTH:
            raise _refused(resource)
        return name

    def unused(self, collection: str, beside: str) -> str:
        """A resource that nobody has, in the project of another one, for a client that names none."""
        project = _RESOURCE.fullmatch(beside)
        assert project is not None
        return f"{project[1]}/{collection}/s{uuid.uuid4().hex}"

    def topic_resource(self, name: str) -> str:
        return self._resource("topics", name)

    def subscription_resource(self, name: str) -> str:
        return self._resource("subscriptions", name)

    def snapshot_resource(self, name: str) -> str:
        return self._resource("snapshots", name)

    def _name(self, collection: str, resource: str) -> str:
        parts = _RESOURCE.fullmatch(resource)
        if parts is None or parts[2] != collection:
            raise _refused(resource)
        project, _, name = parts.groups()
        full = name if project == f"projects/{self.project}" else resource
        try:
            return check_name(_KINDS[collection], full)
        except InvalidName as error:
            raise _refused(resource, error) from None

    def _resource(self, collection: str, name: str) -> str:
        return name if "/" in name else f"projects/{self.project}/{collection}/{name}"


def project_of(resource: str) -> str:
    """The beginning that the names of all resources of a project have."""
    if not _PROJECT.fullmatch(resource):
        raise _refused(resource)
    return f"{resource}/"


def _refused(resource: str, fact: InvalidName | None = None) -> Refusal:
    text = (
        f"Invalid resource name given (name={resource[:300]}). "
        "Refer to https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more information."
    )
    return invalid(text, fact or InvalidName(text))
