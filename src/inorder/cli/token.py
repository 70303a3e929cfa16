"""`inorder token new`: make a token for `inorder serve --tokens FILE`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from inorder.broker import microseconds
from inorder.cli.showing import print_json
from inorder.cli.verbs import Verbs, add_noun, add_verb
from inorder.clock import SYSTEM_CLOCK
from inorder.errors import FailedPrecondition, InvalidArgument

FIELDS: Final[Mapping[str, str]] = {
    "name": "of the token",
    "token": "the token itself, which is not shown again",
    "entry": "for the file, in TOML",
}


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    verbs = add_noun(nouns, "token", "tokens for a server")
    new = add_verb(
        verbs, "new", _new, "print a new token, once, and its entry for the file, which does not tell it", fields=FIELDS
    )
    new.add_argument("name", metavar="NAME", help="letters, digits, - and _; the log calls it by this name")
    for right, of in (("publish", "topics"), ("subscribe", "subscriptions"), ("admin", "topics/… or subscriptions/…")):
        new.add_argument(
            f"--{right}", action="append", default=[], metavar="PATTERN", help=f"{of}; * is any letters; repeatable"
        )
    new.add_argument("--expires", metavar="TIME", help="as 2030-12-31T00:00:00Z")


def _new(given: argparse.Namespace) -> int:
    try:
        from inorder.server.security.tokens import RIGHTS, new_token
    except ImportError as error:
        needed = "pip install 'inorder[server]'"
        raise FailedPrecondition(f"the server needs {error.name}, which is not here: {needed}") from None
    grants = {right: getattr(given, right) for right in RIGHTS if getattr(given, right)}
    if not grants:
        raise InvalidArgument("give it a right: --publish, --subscribe or --admin")
    try:
        expires = None if given.expires is None else datetime.fromisoformat(given.expires)
    except ValueError:
        raise InvalidArgument(f"--expires: as 2030-12-31T00:00:00Z, not {given.expires!r}") from None
    token, entry = new_token(given.name, grants, expires)
    if expires is not None and microseconds(expires) <= SYSTEM_CLOCK.now_us():
        raise InvalidArgument(f"--expires: a time that is still to come, not {given.expires!r}")
    if given.json:
        print_json({"name": given.name, "token": token, "entry": entry})
        return 0
    # The entry alone goes into the file: `inorder token new … >> tokens.toml`.
    print(f"The token, which is not shown again:\n\n    {token}\n", file=sys.stderr)
    print(f"{entry}\n")
    return 0
