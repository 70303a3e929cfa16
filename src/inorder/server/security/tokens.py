"""A file, in TOML, of who may call: tokens by their digests, each with its rights.

A token is a name and a secret, `checkout.9f…`: by the name it is found, by the digest of all of it it is known. The
file has no secret, so it may be read by many; whoever can write it can do everything.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from inorder.clock import MICROSECONDS, Clock
from inorder.errors import InvalidArgument

Right = Literal["publish", "subscribe", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)

MAX_TOKEN_LENGTH = 512  # of what a client sends; ours have 108 at most
_COLLECTIONS = {"publish": "topics", "subscribe": "subscriptions", "admin": None}  # of a pattern that names none
_FIELDS = {"name", "sha256", "expires", *RIGHTS}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PATTERN = re.compile(r"[A-Za-z0-9\-_.~+%:*]+(/[A-Za-z0-9\-_.~+%:*]+)*")
_NOBODY = "0" * 64  # the digest of no token, so that names that are unknown take as long as those that are known

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of the file."""

    name: str
    digest: str
    grants: Mapping[Right, re.Pattern[str]]
    expires_us: int | None

    def may(self, right: Right, resource: str) -> bool:
        return self._has(right, resource) or self._has("admin", resource)

    def _has(self, right: Right, resource: str) -> bool:
        pattern = self.grants.get(right)
        return pattern is not None and pattern.fullmatch(resource) is not None

    def valid(self, now_us: int) -> bool:
        return self.expires_us is None or now_us < self.expires_us


class Tokens:
    """Those of a file, as it was when it was read."""

    def __init__(self, tokens: Mapping[str, Token]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def find(self, presented: str, now_us: int) -> Token | None:
        """The one that this is, if it is any that is valid now. Takes as long for one that is wrong."""
        token = self._tokens.get(presented.partition(".")[0])
        same = hmac.compare_digest(digest_of(presented), _NOBODY if token is None else token.digest)
        return token if same and token is not None and token.valid(now_us) else None

    def again(self, token: Token, now_us: int) -> Token | None:
        """The same token as it is here, if it still is."""
        known = self._tokens.get(token.name)
        same = known is not None and hmac.compare_digest(known.digest, token.digest)
        return known if same and known is not None and known.valid(now_us) else None


class TokenFile:
    """Reads the file again when it has changed. One that is wrong changes nothing, and the log says so."""

    def __init__(self, path: Path, project: str, clock: Clock) -> None:
        self._path = path
        self._project = project
        self._clock = clock
        self._seen = self._look()
        self._tokens = read(path, project)
        self._problem = ""  # with what is there since

    def find(self, presented: str) -> Token | None:
        return self._tokens.find(presented, self._clock.now_us())

    def again(self, token: Token) -> Token | None:
        return self._tokens.again(token, self._clock.now_us())

    def look_again(self) -> None:
        """Know what the file says now."""
        seen = self._look()  # before it is read: what is written meanwhile is then seen the next time
        if seen == self._seen:
            return
        try:
            self._tokens = read(self._path, self._project)
        except (InvalidArgument, OSError) as error:  # and is tried again: perhaps it can only not be read now
            if str(error) != self._problem:
                self._problem = str(error)
                _log.error("the tokens stay as they were: %s", error)
        else:
            self._seen, self._problem = seen, ""
            _log.info("%s has %d tokens now", self._path, len(self._tokens))

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def read(path: Path, project: str) -> Tokens:
    """The tokens of a file. A name without a project is in the server's own."""
    try:
        return _read(path, project)
    except (ValueError, RecursionError) as error:  # no TOML, or numbers and lists in lists beyond what Python takes
        raise InvalidArgument(f"{path}: {error}") from None


def _read(path: Path, project: str) -> Tokens:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    entries = tables.pop("tokens", [])
    if tables or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidArgument(f"{path}: write [[tokens]], once for each, and nothing else")
    found: dict[str, Token] = {}
    for number, entry in enumerate(entries, start=1):
        try:
            token = _token(entry, project)
            if token.name in found:
                raise InvalidArgument(f"name: {token.name!r} is that of another one")
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}, token {number}: {error}") from None
        found[token.name] = token
    return Tokens(found)


def _token(entry: Mapping[str, Any], project: str) -> Token:
    if unknown := sorted(set(entry) - _FIELDS):
        raise InvalidArgument(f"{', '.join(sorted(_FIELDS))}, not {unknown[0]!r}")
    name, digest, expires = _checked_name(entry.get("name")), entry.get("sha256"), entry.get("expires")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        # Not shown: somebody may have written the secret itself.
        raise InvalidArgument("sha256: 64 digits from 0 to f, as `inorder token new` prints them")
    if expires is not None and (not isinstance(expires, datetime) or expires.utcoffset() is None):
        raise InvalidArgument(f"expires: a date, a time and a zone, as 2030-12-31T00:00:00Z, not {expires}")
    expires_us = None if expires is None else round(expires.timestamp() * MICROSECONDS)
    grants = {right: _grant(right, entry[right], project) for right in RIGHTS if right in entry}
    return Token(name, digest, grants, expires_us)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(f"name: 1 to 64 letters, digits, - and _, not {name!r}")
    return name


def _grant(right: Right, patterns: object, project: str) -> re.Pattern[str]:
    if not isinstance(patterns, list):
        raise InvalidArgument(f"{right}: a list of names, not {patterns!r}")
    return re.compile("|".join(_expression(right, pattern, project) for pattern in patterns) or r"(?!)")


def _expression(right: Right, pattern: object, project: str) -> str:
    """A pattern as a regular expression. `*` alone is everything; else it is any letters of one part of a name."""
    if pattern == "*":
        return r".*"
    if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
        raise InvalidArgument(f"{right}: names, in which * is any letters, not {pattern!r}")
    if not pattern.startswith("projects/"):
        collection = _COLLECTIONS[right]
        if "/" not in pattern:
            if collection is None:
                raise InvalidArgument(f"{right}: say topics/{pattern} or subscriptions/{pattern}, not {pattern!r}")
            pattern = f"{collection}/{pattern}"
        pattern = f"projects/{project}/{pattern}"
    return "".join("[^/]*" if letter == "*" else re.escape(letter) for letter in pattern)


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def new_token(name: str, grants: Mapping[Right, Sequence[str]], expires: datetime | None = None) -> tuple[str, str]:
    """A token that nobody has, and its entry for the file, which does not tell it."""
    _checked_name(name)
    token = f"{name}.{secrets.token_urlsafe(32)}"
    lines = ["[[tokens]]", f'name = "{name}"', f'sha256 = "{digest_of(token)}"']
    for right, patterns in grants.items():
        for pattern in patterns:
            _expression(right, pattern, "any")
        quoted = ", ".join(f'"{pattern}"' for pattern in patterns)
        lines.append(f"{right} = [{quoted}]")
    if expires is not None:
        if expires.utcoffset() is None:
            raise InvalidArgument(f"expires: a date, a time and a zone, as 2030-12-31T00:00:00Z, not {expires}")
        lines.append(f"expires = {expires.isoformat()}")
    return token, "\n".join(lines)
