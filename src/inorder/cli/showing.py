"""What commands print: JSON for programs, tables and lines for people. Messages look the same everywhere."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from inorder.broker import microseconds
from inorder.cli.colours import Paint
from inorder.cli.wording import moment, table, timestamp
from inorder.message import ATTRIBUTES, DATA, KEY, POSITION, PUBLISH_US, STORED_US, Gap, Message, Record

if TYPE_CHECKING:
    from inorder.journal.info import SubscriptionInfo
    from inorder.metadata import SubscriptionMetadata

CLOSED: Final[set[str]] = set()  # the standard streams that were closed when the program began: nobody reads them

MESSAGE_FIELDS: Final[Mapping[str, str]] = {
    "position": "its place in the topic",
    "id": "of the message",
    "ordering_key": "missing if it has none",
    "data": "if it is text",
    "data_base64": "if it is not",
    "attributes": "missing if it has none",
    "publish_time": "in UTC",
    "stored_time": "if it differs from that",
}
GAP_FIELDS: Final[Mapping[str, str]] = {
    "gap": "in place of messages that will not come: why; then only the next four",
    "ordering_key": "of the gap",
    "first_position": "of the gap",
    "last_position": "of the gap",
    "count": "how many messages are missing",
}


def print_json(plain: Mapping[str, Any]) -> None:
    """One object, one line."""
    sys.stdout.write(json_line(plain) + "\n")


def json_line(plain: Mapping[str, Any]) -> str:
    """An object in letters that whoever reads it gets as they are."""
    return json.dumps(plain, ensure_ascii=(sys.stdout.encoding or "").lower() != "utf-8")


def print_table(header: Sequence[str], rows: Iterable[Sequence[str | int]]) -> None:
    """Lines of aligned columns below a bold one."""
    cells = ([visible(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    head, *lines = table(header, cells)
    print("\n".join([Paint(sys.stdout).bold(head), *lines]))


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """What something is, a line for each."""
    pairs, paint = list(pairs), Paint(sys.stdout)
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        print(f"{paint.bold(f'{name:{width}}')}  {value}")


def print_note(text: str) -> None:
    """For people, beside what the command prints."""
    print(f"inorder: note: {text}", file=sys.stderr)


def options_text(options: object) -> str:
    """Options that say something, by their names."""
    return ", ".join(
        f"{name}={visible(json.dumps(value, ensure_ascii=False))}"
        for name, value in asdict(options).items()  # type: ignore[call-overload]
        if value not in (None, "")
    )


def utc(time: datetime) -> str:
    """A time as it is written for programs."""
    return timestamp(microseconds(time))


# -- messages --------------------------------------------------------------------------------------


def plain_record(record: Record, id_prefix: str) -> dict[str, Any]:
    """A message of a journal, with the names of `MESSAGE_FIELDS`."""
    name = f"{id_prefix}{record[POSITION]}" if id_prefix else ""
    plain = _plain(record[POSITION], name, record[KEY], record[DATA], record[ATTRIBUTES], record[PUBLISH_US])
    if record[STORED_US] != record[PUBLISH_US]:
        plain["stored_time"] = timestamp(record[STORED_US])
    return plain


def plain_message(message: Message) -> dict[str, Any]:
    """A message that was delivered, with the same names."""
    assert message.publish_time is not None
    published_us = microseconds(message.publish_time)
    key = message.ordering_key or ""
    return _plain(message.position, message.id, key, message.data, message.attributes, published_us)


def plain_gap(gap: Gap) -> dict[str, Any]:
    """With the names of `GAP_FIELDS`."""
    return {
        "gap": gap.reason,
        "ordering_key": gap.ordering_key,
        "first_position": gap.first_position,
        "last_position": gap.last_position,
        "count": gap.count,
    }


def _plain(
    position: int, name: str, key: str, data: bytes, attributes: Mapping[str, str] | None, published_us: int
) -> dict[str, Any]:
    plain: dict[str, Any] = {"position": position}
    if name:
        plain["id"] = name
    if key:
        plain["ordering_key"] = key
    try:
        plain["data"] = data.decode()
    except UnicodeDecodeError:
        plain["data_base64"] = b64encode(data).decode()
    if attributes:
        plain["attributes"] = dict(attributes)
    plain["publish_time"] = timestamp(published_us)
    return plain


class Messages:
    """Prints messages one by one: as JSON, or as a line for people."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._paint = Paint(sys.stdout)

    def record(self, record: Record, id_prefix: str) -> None:
        if self._as_json:
            print_json(plain_record(record, id_prefix))
        else:
            self._line(record[POSITION], record[KEY], record[DATA], record[ATTRIBUTES], record[PUBLISH_US])

    def message(self, message: Message, more: Mapping[str, Any] | None = None) -> None:
        """`more` is what else its JSON holds."""
        if self._as_json:
            print_json({**plain_message(message), **(more or {})})
        else:
            assert message.publish_time is not None
            published_us = microseconds(message.publish_time)
            self._line(message.position, message.ordering_key or "", message.data, message.attributes, published_us)

    def gap(self, gap: Gap) -> None:
        if self._as_json:
            print_json(plain_gap(gap))
        else:
            where = f"{gap.first_position}–{gap.last_position}"
            print(self._paint.red(f"{where}  {visible(gap.ordering_key)}  {gap.count} missing: {gap.reason}"))

    def _line(
        self, position: int, key: str, data: bytes, attributes: Mapping[str, str] | None, published_us: int
    ) -> None:
        text = visible(data.decode(errors="backslashreplace"))
        parts = [self._paint.dim(f"{position}  {moment(published_us)}"), self._paint.cyan(visible(key) or "-"), text]
        if attributes:
            parts.append(self._paint.dim(visible(json.dumps(attributes, ensure_ascii=False))))
        sys.stdout.write("  ".join(parts) + "\n")


def topic_of(subscription: SubscriptionMetadata | SubscriptionInfo) -> str:
    """Its topic, and why nothing will come from it any more, if so."""
    if not subscription.detached:
        return subscription.topic
    return f"{subscription.topic} ({'deleted' if subscription.topic_deleted else 'detached'})"


def visible(text: str) -> str:
    """On one line, and without what would move the cursor or change a terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
