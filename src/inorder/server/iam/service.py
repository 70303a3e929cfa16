"""google.iam.v1.IAMPolicy for topics, subscriptions, snapshots and schemas."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from google.iam.v1 import iam_policy_pb2, policy_pb2

from inorder.clock import Clock
from inorder.errors import InvalidArgument, NotFound
from inorder.server.documents import Documents, to_the_end
from inorder.server.iam.book import PolicyBook, StoredPolicy, check_resource, granted
from inorder.server.status import Context, RawCall, unary

SERVICE = "google.iam.v1.IAMPolicy"
KIND = "policy"  # of its documents
VERSIONS = (0, 1, 3)  # of policies; 2 was never used

Proto: TypeAlias = Any  # a message of google.iam.v1: these have no types

_ROLE = re.compile(r"(projects/[^/]+/|organizations/[^/]+/)?roles/[A-Za-z0-9_.]+")
_MEMBER = re.compile(r"allUsers|allAuthenticatedUsers|[A-Za-z]+:.+")
_PARTS = ("bindings", "etag", "version", "audit_configs")
_DEFAULT_MASK = ("bindings", "etag", "version")  # Google's, and the version, which says how to read the bindings


class PolicyService:
    """The calls of the service. `exists` knows whether there is such a topic, subscription, snapshot or schema."""

    def __init__(self, book: PolicyBook, documents: Documents, clock: Clock, exists: Callable[[str], bool]) -> None:
        self._book = book
        self._documents = documents
        self._clock = clock
        self._exists = exists
        self._changing = asyncio.Lock()  # between what is decided and what is durable nobody else decides

    def calls(self) -> Mapping[str, RawCall]:
        """Each by its name."""
        return {
            "SetIamPolicy": unary(iam_policy_pb2.SetIamPolicyRequest, self.set_iam_policy),
            "GetIamPolicy": unary(iam_policy_pb2.GetIamPolicyRequest, self.get_iam_policy),
            "TestIamPermissions": unary(iam_policy_pb2.TestIamPermissionsRequest, self.test_iam_permissions),
        }

    async def set_iam_policy(self, request: Proto, context: Context) -> Proto:
        resource = request.resource

        async def change() -> StoredPolicy:
            async with self._changing:
                self._check_there(resource)  # by now
                wanted = _merged(policy_of(self._book.get(resource)), request)
                _check_policy(wanted)
                etag = wanted.etag
                wanted.ClearField("etag")
                policy = self._book.replaced(resource, etag, wanted.SerializeToString(), self._clock.now_us())
                await self._documents.put(KIND, resource, policy.encode())
                self._book.put(resource, policy)
                return policy

        return policy_of(await to_the_end(change()))

    async def get_iam_policy(self, request: Proto, context: Context) -> Proto:
        self._check_there(request.resource)
        if request.options.requested_policy_version not in VERSIONS:
            raise InvalidArgument(
                f"options.requested_policy_version: 0, 1 or 3, not {request.options.requested_policy_version}"
            )
        return policy_of(self._book.get(request.resource))

    async def test_iam_permissions(self, request: Proto, context: Context) -> Proto:
        check_resource(request.resource)
        held = granted(request.permissions)
        # Of what does not exist nothing is allowed: so Google documents it, and it is no error.
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=held if self._exists(request.resource) else ())

    async def forget(self, resource: str) -> None:
        """The resource is deleted: one of its name that is made later begins without a policy."""

        async def change() -> None:
            async with self._changing:
                if resource in self._book:
                    await self._documents.put(KIND, resource, None)
                    self._book.put(resource, None)

        await to_the_end(change())

    def _check_there(self, resource: str) -> None:
        check_resource(resource)
        if not self._exists(resource):
            raise NotFound(f"Resource not found (resource={resource.rsplit('/', 1)[-1]}).")


def policy_of(policy: StoredPolicy) -> Proto:
    """A policy as Google describes it."""
    described: Proto = policy_pb2.Policy.FromString(policy.content)
    described.etag = policy.etag
    return described


def _merged(current: Proto, request: Proto) -> Proto:
    """The current policy with those of its fields changed that a mask names."""
    wanted = policy_pb2.Policy()
    wanted.CopyFrom(current)
    wanted.etag = b""
    for path in request.update_mask.paths or _DEFAULT_MASK:
        if path not in _PARTS:
            raise InvalidArgument(f"update_mask: {path[:100]!r} is none of {', '.join(_PARTS)}")
        wanted.ClearField(path)
        if path in ("version", "etag"):
            setattr(wanted, path, getattr(request.policy, path))
        else:
            getattr(wanted, path).extend(getattr(request.policy, path))
    return wanted


def _check_policy(policy: Proto) -> None:
    if policy.version not in VERSIONS:
        raise InvalidArgument(f"policy.version: 0, 1 or 3, not {policy.version}")
    for binding in policy.bindings:
        if not _ROLE.fullmatch(binding.role):
            raise InvalidArgument(f"policy.bindings.role: expected roles/NAME, not {binding.role[:200]!r}")
        for member in binding.members:
            if not _MEMBER.fullmatch(member):
                raise InvalidArgument(
                    f"policy.bindings.members: expected allUsers, allAuthenticatedUsers or KIND:NAME, as user:a@b.c, "
                    f"not {member[:200]!r}"
                )
        if binding.HasField("condition") and policy.version != VERSIONS[-1]:
            raise InvalidArgument(f"policy.version: a condition needs version 3, not {policy.version}")
