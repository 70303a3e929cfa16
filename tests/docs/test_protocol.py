"""docs/protocol.md has every call of the protocol, and no other."""

import re
from pathlib import Path

from inorder.protocol import inorder_v1_pb2 as v1

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def test_the_page_has_every_call() -> None:
    calls = [method.name for method in v1.DESCRIPTOR.services_by_name["Inorder"].methods]
    assert sorted(ROW.findall(PAGE.read_text(encoding="utf-8"))) == sorted(calls)
