"""docs/security.md and docs/operations.md name what there is: rights, settings, and the tests that stop an attack."""

import re
from pathlib import Path

from inorder.cli.serve import SETTINGS
from inorder.server.security.rights import LOOK, RULES, Rule

from .test_guarantees import REFERENCE

DOCS = Path(__file__).parents[2] / "docs"
SECURITY = (DOCS / "security.md").read_text(encoding="utf-8")
OPERATIONS = (DOCS / "operations.md").read_text(encoding="utf-8")


def rows(page: str, header: str) -> list[list[str]]:
    """The cells of the table that begins with this line."""
    lines = page[page.index(header) :].splitlines()[2:]
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.split("|")[1:-1]])
    assert found
    return found


def worded(rule: Rule) -> str:
    if rule is None:
        return "nothing"
    rights = ("any right" if claim.rights == LOOK else claim.rights[0] for claim in rule)
    return ", ".join(f"{right} to `{claim.field}`" for right, claim in zip(rights, rule, strict=True)) or "any token"


def test_the_page_says_what_each_call_needs() -> None:
    listed = {call.strip("`"): needs for call, needs in rows(SECURITY, "| call | needs |")}
    assert listed == {name[1:]: worded(rule) for name, rule in RULES.items()}


def test_each_attack_is_stopped_by_a_test_that_exists() -> None:
    for attack, stops, proof in rows(SECURITY, "| attack | what stops it | the test |"):
        assert stops, attack
        assert REFERENCE.findall(proof), attack
        for reference in REFERENCE.findall(proof):
            path, _, name = reference.partition("::")
            assert f"\ndef {name}(" in (DOCS.parent / path).read_text(encoding="utf-8"), reference


def test_the_page_has_all_settings_and_their_defaults() -> None:
    listed = {name.strip("`"): default.strip("`") for name, default, _ in rows(OPERATIONS, "| setting | default |")}
    defaults = {
        setting.name: "" if setting.default is None else re.sub("False", "false", str(setting.default))
        for setting in SETTINGS
    }
    assert listed == defaults
