"""What to do next after an error, as a command where there is one."""

from __future__ import annotations

import argparse
import shlex

from inorder.cli.targets import target_of
from inorder.errors import (
    AlreadyExists,
    InorderError,
    JournalFailed,
    JournalInUse,
    KeyNotBlocked,
    NotFound,
    OtherJournal,
    PermissionDenied,
    SubscriptionNotFound,
    TopicNotFound,
    Unauthenticated,
    Unavailable,
)
from inorder.transport.address import without_secrets


def hint(error: Exception, given: argparse.Namespace) -> str:
    """A sentence, or nothing if the error says it all."""
    if not isinstance(error, InorderError) or not hasattr(given, "target"):
        return ""
    match error:
        case TopicNotFound() | SubscriptionNotFound() if hasattr(given, "yes"):  # nobody creates what is to go
            noun = "topic" if isinstance(error, TopicNotFound) else "subscription"
            return f"to see which there are: {command(given, noun, 'list')}"
        case TopicNotFound():
            return f"to create it: {command(given, 'topic', 'create', error.topic)}"
        case SubscriptionNotFound():
            return f"to create it: {command(given, 'subscription', 'create', error.subscription, 'TOPIC')}"
        case NotFound():
            return f"to begin one there: {command(given, 'topic', 'create', 'TOPIC')}"
        case AlreadyExists():
            noun = "subscription" if hasattr(given, "subscription") else "topic"
            return f"to see it: {command(given, noun, 'show', getattr(given, noun, noun.upper()))}"
        case JournalInUse():
            return (
                "stop its owner first; `list` and `show` of topics and subscriptions, `tail` and `dead-letters list` "
                "work beside it, and with `inorder serve` as the owner all do, by --target grpc://HOST:PORT"
            )
        case OtherJournal():
            return "the target says of which kind it is: 'file:FOLDER?journal=sqlite', or segments if it says nothing"
        case KeyNotBlocked():
            return f"to see which are: {command(given, 'keys', 'blocked', given.subscription)}"
        case Unauthenticated():
            return (
                "--target 'grpc://HOST:PORT?token_file=FILE' brings one; `inorder token new` makes one for the server"
            )
        case PermissionDenied():
            return "whoever runs the server gives rights: the file of `inorder serve --tokens` has them"
        case Unavailable() if not isinstance(error, JournalFailed):
            if "tls=1" in target_of(given):
                return "is it running, and with TLS? a certificate that this machine does not know needs &ca=FILE"
            return "is it running? `inorder serve --data FOLDER` starts one; if it has TLS, the target needs ?tls=1"
    return ""


def command(given: argparse.Namespace, *words: str) -> str:
    """A command for the same broker, as it is typed."""
    target = ["--target", without_secrets(given.target)] if given.target else []
    return shlex.join(["inorder", *words, *target])
