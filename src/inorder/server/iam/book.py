"""The policies of resources: values, and verbs that return the next value or refuse. Nothing here waits or stores."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inorder.errors import Aborted, ForeignState, InvalidArgument, ResourceExhausted

ETAG_OF_NONE = b"\x00\x20\x01"  # "ACAB" in base 64, which Google's service shows where no policy was ever set
MAX_POLICY_BYTES = 250_000  # 1,500 principals with long names, which is Google's limit, are less
MAX_POLICIES = 100_000

_RESOURCE = re.compile(r"projects/[A-Za-z0-9\-_.:]+/(topics|subscriptions|snapshots|schemas)/[A-Za-z][^/@]{2,254}")
_ETAG_BYTES = 8

# Every permission that has a meaning for what this server serves.
PERMISSIONS = frozenset(
    f"pubsub.{collection}.{verb}"
    for collection, verbs in {
        "topics": "attachSubscription create delete detachSubscription get getIamPolicy list publish setIamPolicy "
        "update updateTag",
        "subscriptions": "consume create delete get getIamPolicy list setIamPolicy update",
        "snapshots": "create delete get getIamPolicy list seek setIamPolicy update",
        "schemas": "attach commit create delete get getIamPolicy list listRevisions rollback setIamPolicy validate",
    }.items()
    for verb in verbs.split()
)


class EtagMismatch(Aborted):
    """Somebody else changed the policy meanwhile: read it again, then set it."""

    def __init__(self, resource: str) -> None:
        super().__init__(
            "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff. "
            f"The request's ETag does not match the policy's current ETag (resource={resource})."
        )


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """A policy's content as bytes, whatever it says, and a tag that changes whenever it does."""

    etag: bytes
    content: bytes

    def encode(self) -> bytes:
        """For storage."""
        return self.etag + self.content

    @classmethod
    def decode(cls, resource: str, stored: bytes) -> StoredPolicy:
        if len(stored) < _ETAG_BYTES:
            raise ForeignState(f"policy of {resource}", f"{len(stored)} bytes are too few")
        return cls(stored[:_ETAG_BYTES], stored[_ETAG_BYTES:])


NO_POLICY = StoredPolicy(ETAG_OF_NONE, b"")


class PolicyBook:
    """All policies by resource. Not thread-safe."""

    def __init__(self, stored: Mapping[str, bytes] | None = None) -> None:
        self._policies = {name: StoredPolicy.decode(name, document) for name, document in (stored or {}).items()}

    def __contains__(self, resource: str) -> bool:
        return resource in self._policies

    def get(self, resource: str) -> StoredPolicy:
        return self._policies.get(resource, NO_POLICY)

    def replaced(self, resource: str, etag: bytes, content: bytes, now_us: int) -> StoredPolicy:
        """What the policy becomes. An etag, if there is one, must be that of the policy as it is."""
        current = self.get(resource)
        if etag and etag != current.etag:
            raise EtagMismatch(resource)
        if len(content) > MAX_POLICY_BYTES:
            raise InvalidArgument(f"policy: {len(content)} bytes, more than the maximum of {MAX_POLICY_BYTES}")
        if resource not in self._policies and len(self._policies) >= MAX_POLICIES:
            raise ResourceExhausted(f"there are {MAX_POLICIES} policies, as many as may be")
        # Time tags it, so that a resource that is made anew never repeats a tag of the one before it.
        before = int.from_bytes(current.etag, "big") if resource in self._policies else 0
        return StoredPolicy(max(now_us, before + 1).to_bytes(_ETAG_BYTES, "big"), content)

    def put(self, resource: str, policy: StoredPolicy | None) -> None:
        """What was decided is true from now on. None: the resource is gone, and its policy with it."""
        if policy is None:
            self._policies.pop(resource, None)
        else:
            self._policies[resource] = policy


def check_resource(resource: str) -> str:
    """The collection of a resource that may have a policy."""
    match = _RESOURCE.fullmatch(resource)
    if not match:
        raise InvalidArgument(
            f"Invalid resource name given (name={resource[:300]}). "
            "Expected projects/PROJECT/COLLECTION/NAME of topics, subscriptions, snapshots or schemas."
        )
    return match[1]


def granted(asked: Iterable[str]) -> list[str]:
    """Those of the permissions that hold. There are no users, so all hold that have a meaning here."""
    permissions = list(asked)
    for permission in permissions:
        if "*" in permission:
            raise InvalidArgument(f"permissions: {permission[:100]!r}: wildcards are not allowed")
    return [permission for permission in permissions if permission in PERMISSIONS]
