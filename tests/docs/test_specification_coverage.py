"""Every requirement of the specifications has a test, and docs/specification.md says which.

A test's docstring begins with the requirement it checks, such as "message-queue BR-006" or "ordering-guarantees
Gotcha 2". What is not built yet is listed as open, beside its tests if it has some. Run this file as a program to
write the tables of the page again:

    python tests/docs/test_specification_coverage.py
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "specification.md"
PLACES = (ROOT / "src" / "inorder" / "testing" / "conformance", ROOT / "tests")

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"

REQUIREMENTS: Mapping[str, Mapping[str, str]] = {
    "message-queue": {
        "BR-001": "Singleton instance",
        "BR-002": "Register topic",
        "BR-003": "Publish to topic",
        "BR-004": "Publish to topic without subscriptions",
        "BR-005": "Pull messages",
        "BR-006": "Message acknowledgment",
        "BR-007": "Negative acknowledgment",
        "BR-008": "Ack deadline expiry",
        "BR-009": "Modify ack deadline",
        "BR-010": "Message ordering",
        "BR-011": "Subscription deletion",
        "BR-012": "Topic deletion",
        "BR-013": "Flow control enforcement",
        "BR-014": "Track in-flight metrics",
        "BR-015": "Retry backoff",
        "BR-016": "Dead letter queue",
        "BR-017": "Message size validation",
        "BR-018": "Ack id lifecycle",
        "BR-019": "Message queue ordering",
        "BR-020": "Message lease cleanup",
        "BR-021": "Topic deletion with in-flight messages",
        "BR-022": "Queue size limits",
        "AC-001": "Singleton pattern",
        "AC-002": "Register and check topic",
        "AC-003": "Publish and pull messages",
        "AC-004": "Multiple subscriptions receive copies",
        "AC-005": "Ack removes message",
        "AC-006": "Nack redelivers immediately",
        "AC-007": "Ack deadline expiry redelivers",
        "AC-008": "Modify ack deadline",
        "AC-009": "Message ordering",
        "AC-010": "Publish without subscriptions",
        "AC-011": "Get subscriptions for topic",
        "AC-012": "Unregister topic detaches subscriptions",
        "AC-013": "FIFO message ordering without ordering key",
    },
    "message-ordering": {
        "BR-001": "Enable ordering on topic",
        "BR-002": "Enable ordering on subscription",
        "BR-003": "Publish with ordering key",
        "BR-004": "Ordered message storage",
        "BR-005": "Sequential delivery per key",
        "BR-006": "Ordering with redelivery",
        "BR-007": "Mixed ordering keys",
        "BR-008": "No ordering key messages",
        "BR-009": "Ordering throughput limits",
        "BR-010": "Ordering key format",
        "AC-001": "Create topic and publish with ordering key",
        "AC-002": "Messages with same key delivered in order",
        "AC-003": "Sequential processing per key",
        "AC-004": "Different keys concurrent",
        "AC-005": "Ordering preserved on redelivery",
        "AC-006": "No ordering key not blocked",
        "AC-007": "Multiple subscriptions ordered independently",
        "AC-008": "Ordering key validation",
        "AC-009": "Ordering key accepted without explicit enable",
        "AC-010": "Batching with ordering keys",
    },
    # These two number nothing, so the names are those of their sections.
    "ordering-guarantees": {
        "Pattern 1": "Consumer-side sequencing",
        "Pattern 2": "Partition key routing",
        "Pattern 3": "Timestamp-based idempotent processing",
        "How 1": "No total order across consumers: order is per entity",
        "How 5": "Sequence numbers and a consumer that reorders work with any queue",
        "How 6": "Last write wins converges in any order",
        "How 7": "Retry is the ordering killer",
        "Gotcha 1": "Distributed consumers always break ordering",
        "Gotcha 2": "Retry breaks sequence numbers",
        "Gotcha 3": "Sequence number generation is hard",
        "Gotcha 4": "FIFO and dead letters leave a gap",
        "Gotcha 5": "Timestamp skew",
        "Gotcha 6": "Hash collision in partition routing",
        "Gotcha 7": "Rebalancing breaks partition ordering",
    },
    "ordering-in-event-driven-systems": {
        "Not critical": "Retries fix it",
        "Critical": "Data loss occurs",
        "Single topic with dispatcher": "One consumer, handlers by event type",
        "Partition per entity": "Parallel across entities, in order within one",
        "Entity versioning": "Stale ignored, next applied, future waits",
        "Independent updates": "Each event type writes its own fields",
        "Message broker migration": "Forward messages between brokers",
    },
}

Requirement = tuple[str, str]  # specification, number

# What is still to be built, by requirement. A row that is open may have tests, for the part that is there.
OPEN: Mapping[Requirement, str] = {
    ("ordering-guarantees", "Pattern 1"): "the consumer that stores progress and acks on release",
    ("ordering-guarantees", "Pattern 2"): "routing of a topic to partitions",
    ("ordering-guarantees", "Pattern 3"): "the consumer that writes and compares in one transaction",
    ("ordering-guarantees", "Gotcha 3"): "a sequence that is allocated atomically and durably",
    ("ordering-guarantees", "Gotcha 7"): "the barrier that drains a slot before it moves",
    ("ordering-in-event-driven-systems", "Single topic with dispatcher"): "the consumer that runs the handlers",
    ("ordering-in-event-driven-systems", "Partition per entity"): "one consumer per partition",
    ("ordering-in-event-driven-systems", "Entity versioning"): "the version stored beside the entity",
}

# One requirement or several: "message-queue BR-010, BR-019, message-ordering BR-005: and why".
SPECIFICATION = "|".join(REQUIREMENTS)
SECTIONS = [number for numbers in REQUIREMENTS.values() for number in numbers if not number[-1].isdigit()]
NUMBER = "|".join([r"(?:BR|AC)-\d{3}", r"(?:Pattern|How|Gotcha) \d+", *SECTIONS])
ONE = rf"(?:(?:{SPECIFICATION}) )?(?:{NUMBER})"
BEGINNING = re.compile(rf"(?:{SPECIFICATION}) (?:{NUMBER})(?:(?:,| and) {ONE})*(?=\W|$)")
PART = re.compile(rf"(?:(?P<specification>{SPECIFICATION}) )?(?P<number>{NUMBER})")


@dataclass(frozen=True, slots=True)
class Check:
    """A test, by its place."""

    path: str
    name: str

    def __str__(self) -> str:
        return f"[`{self.name}`](../{self.path})"


def requirements(docstring: str) -> Iterator[Requirement]:
    """The requirements that a docstring begins with."""
    specification = ""
    beginning = BEGINNING.match(docstring)
    for part in PART.finditer(beginning[0] if beginning else ""):
        specification = part["specification"] or specification
        yield specification, part["number"]


def checks_in(path: str, source: str) -> Iterator[tuple[Check, str]]:
    """Each test of a file, with its docstring, in the order of the file."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in sorted(functions, key=attrgetter("lineno")):
        if function.name.startswith("test_"):
            yield Check(path, function.name), ast.get_docstring(function) or ""


def all_checks() -> Iterator[tuple[Check, str]]:
    for place in PLACES:
        for file in sorted(place.rglob("*.py")):
            yield from checks_in(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))


def coverage(checks: Iterable[tuple[Check, str]]) -> dict[Requirement, list[Check]]:
    covered: dict[Requirement, list[Check]] = {
        (specification, number): [] for specification, numbers in REQUIREMENTS.items() for number in numbers
    }
    for check, docstring in checks:
        for requirement in requirements(docstring):
            assert requirement in covered, f"{check.path}: {check.name} names {' '.join(requirement)}, which is unknown"
            covered[requirement].append(check)
    return covered


def cell(requirement: Requirement, covered: Mapping[Requirement, list[Check]]) -> str:
    open_part = [f"open: {OPEN[requirement]}"] if requirement in OPEN else []
    return "<br>".join([*open_part, *map(str, covered[requirement])])


def tables() -> str:
    covered = coverage(all_checks())
    parts: list[str] = []
    for specification, numbers in REQUIREMENTS.items():
        rows = [
            f"| {number} | {title} | {cell((specification, number), covered)} |" for number, title in numbers.items()
        ]
        parts.append("\n".join([f"## {specification}", "", "| id | requirement | tests |", "|---|---|---|", *rows]))
    return "\n\n".join(parts)


def rewritten(page: str) -> str:
    """The page with the tables as they should be."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"docs/specification.md must have the lines {BEGIN} and {END}"
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


@pytest.mark.parametrize("specification", REQUIREMENTS)
def test_every_requirement_has_a_test(specification: str) -> None:
    covered = coverage(all_checks())
    missing = [
        f"{name} {number}"
        for (name, number), checks in covered.items()
        if name == specification and not checks and (name, number) not in OPEN
    ]
    assert not missing, f"no test's docstring begins with {', '.join(missing)}"


def test_what_is_open_is_a_requirement() -> None:
    assert not [requirement for requirement in OPEN if requirement[1] not in REQUIREMENTS[requirement[0]]]


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == rewritten(page), f"run: python {Path(__file__).relative_to(ROOT).as_posix()}"


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("message-queue BR-006", [("message-queue", "BR-006")]),
        ("message-queue BR-015: not before its time.", [("message-queue", "BR-015")]),
        (
            "message-queue BR-010, BR-019 and message-ordering AC-005: in turn.",
            [("message-queue", "BR-010"), ("message-queue", "BR-019"), ("message-ordering", "AC-005")],
        ),
        (
            "ordering-guarantees Gotcha 2, How 7 and ordering-in-event-driven-systems Not critical: late.",
            [
                ("ordering-guarantees", "Gotcha 2"),
                ("ordering-guarantees", "How 7"),
                ("ordering-in-event-driven-systems", "Not critical"),
            ],
        ),
        ("ordering-in-event-driven-systems, tips: keep it simple.", []),
        ("As in message-queue BR-006.", []),
        ("message-queue, performance considerations: 7 days.", []),
        ("", []),
    ],
)
def test_a_docstring_begins_with_its_requirements(docstring: str, expected: list[Requirement]) -> None:
    assert list(requirements(docstring)) == expected


def test_tests_are_found_in_classes_and_outside() -> None:
    source = """
class Case:
    def test_a(self):
        'message-queue BR-001'

    def other(self): ...

async def test_b(): ...
"""
    assert list(checks_in("x.py", source)) == [
        (Check("x.py", "test_a"), "message-queue BR-001"),
        (Check("x.py", "test_b"), ""),
    ]


def test_an_unknown_requirement_is_named() -> None:
    with pytest.raises(AssertionError, match=r"x\.py: test_a names message-queue BR-999, which is unknown"):
        coverage([(Check("x.py", "test_a"), "message-queue BR-999")])


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
