"""Imports point one way, and the pure rooms stay pure.

The checker is a few pure functions over {module: source}, so that the second half of this file can show
it made-up modules. A module is named by its file, "inorder.core.lanes" or "inorder.core.__init__": then the
package that a relative import starts from is always the name without its last part.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

ROWS = (
    ("errors", "message", "metadata", "options", "forks", "clock", "put_off", "pending"),
    ("core", "patterns"),
    ("journal",),
    ("commits", "ingest"),
    ("turns",),
    ("broker", "pool", "protocol"),
    ("transport",),
    ("client",),
    ("consumers",),
    ("server", "spark", "console", "cli"),
    ("__main__",),
)
ROW_OF = {room: row for row, rooms in enumerate(ROWS) for room in rooms}
FRONT_DOOR = "__init__"  # inorder/__init__.py: for users, so it knows every room and no room knows it
TESTING = "testing"
ROOMS = {*ROW_OF, FRONT_DOOR, TESTING}

PURE_ROOMS = ("core", "patterns")
IMPURE_MODULES = {
    *("time", "datetime", "random"),  # clocks and chance
    *("asyncio", "concurrent", "queue", "select", "threading"),  # waiting
    *("io", "logging", "os", "pathlib", "socket", "subprocess"),  # the world outside
}

# What `import inorder`, and its patterns, may cost nobody who does not use it.
HEAVY_MODULES = ("google", "grpc", "numpy", "opentelemetry", "pandas", "pyarrow", "pydantic", "pyspark", "sqlalchemy")

Sources = Mapping[str, str]


def room_of(module: str) -> str:
    return f"{module}.{FRONT_DOOR}".split(".")[1]


def may_import(room: str, other: str) -> bool:
    """Whether a module in `room` may import one in `other`; both are known rooms."""
    if room in (other, TESTING):
        return True
    if other == TESTING:
        return room == "cli"  # `inorder bench` has the checker of histories judge a load
    if other == FRONT_DOOR:
        return False
    if room == FRONT_DOOR or ROW_OF[other] < ROW_OF[room]:
        return True
    return ROW_OF[other] == ROW_OF[room] and (room == "cli" or ROW_OF[room] == 0)


def imported_names(module: str, tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Each import wherever it stands, as (line, module, name); the name is "" for a plain `import`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*package, *([node.module] if node.module else [])])
            yield from ((node.lineno, origin, alias.name) for alias in node.names)


def imports(module: str, sources: Sources) -> Iterator[tuple[int, str]]:
    """The modules of inorder that `module` imports, each with its line."""
    for line, origin, name in imported_names(module, ast.parse(sources[module])):
        if origin.split(".")[0] != "inorder":
            continue
        candidates = (f"{origin}.{name}.__init__", f"{origin}.{name}", f"{origin}.__init__")
        # Not among the sources: keep the name as written, so that its room is judged all the same.
        yield line, next((known for known in candidates if known in sources), origin)


def strangers(sources: Sources) -> list[str]:
    return [f"{module} is in no known room" for module in sources if room_of(module) not in ROOMS]


def wrong_imports(sources: Sources) -> list[str]:
    return [
        f"{module}:{line} imports {other}"
        for module in sources
        if room_of(module) in ROOMS
        for line, other in imports(module, sources)
        if room_of(other) not in ROOMS or not may_import(room_of(module), room_of(other))
    ]


def cycle(sources: Sources) -> list[str]:
    """One cycle of the module graph as a sentence, if there is any."""
    graph = {module: [other for _, other in imports(module, sources)] for module in sources}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"cycle: {' imports '.join(reversed(error.args[1]))}"]
    return []


def impurities(sources: Sources) -> list[str]:
    return [
        f"{module}:{line} {what}"
        for module, source in sources.items()
        if room_of(module) in PURE_ROOMS
        for line, what in impure_lines(module, ast.parse(source))
    ]


def impure_lines(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, origin, _ in imported_names(module, tree):
        if origin.split(".")[0] in IMPURE_MODULES:
            yield line, f"imports {origin}, and the room is pure"
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.Await():
                yield node.lineno, "waits, and the room is pure"
            case ast.Call(func=ast.Name("open")):
                yield node.lineno, "opens a file, and the room is pure"


def violations(sources: Sources) -> list[str]:
    return strangers(sources) + wrong_imports(sources) + cycle(sources) + impurities(sources)


def sources_below(src: Path) -> dict[str, str]:
    return {
        ".".join(path.relative_to(src).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in sorted(src.glob("inorder/**/*.py"))
    }


def test_imports_point_one_way_and_pure_rooms_are_pure() -> None:
    sources = sources_below(SRC)
    assert sources, f"no modules below {SRC}"
    assert not violations(sources), "\n".join(violations(sources))


def test_the_rows_are_those_that_are_drawn() -> None:
    page = (SRC.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = page.partition("## The rooms")[2].partition("```text\n")[2].partition("```")[0]
    drawn = [re.split(r"\s{3,}", line.strip())[0].split() for line in drawing.splitlines()]
    there = {room_of(module) for module in sources_below(SRC)}
    rows = [[room for room in row if room in there and room != "__main__"] for row in ROWS]
    assert drawn == [*filter(None, rows), [TESTING]]


def test_importing_inorder_loads_nothing_heavy() -> None:
    # Start-up hooks of other packages may load modules too, so only what inorder adds is counted.
    script = (
        "import sys; before = set(sys.modules); import inorder, inorder.patterns; print(*set(sys.modules) - before)"
    )
    run = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert not loaded.intersection(HEAVY_MODULES)


def test_spark_reads_and_writes_over_the_wire_without_what_only_servers_need() -> None:
    absent = ["google.pubsub_v1", "grpc_health", "grpc_reflection", "grpc_tools"]
    program = f"import sys; sys.modules.update(dict.fromkeys({absent})); import inorder.spark.wire"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr  # the extra `client` is enough, as the page says


ALLOWED = {
    "values know each other": {"inorder.message": "import inorder.errors"},
    "a row above": {"inorder.client.topic": "from inorder.core.state import State"},
    "its own room": {"inorder.core.state": "from . import lanes", "inorder.core.lanes": ""},
    "a package gathers its modules": {
        "inorder.core.__init__": "from .lanes import Lanes",
        "inorder.core.lanes": "",
    },
    "the front door knows rooms": {"inorder.__init__": "from .client import PubSub\nimport inorder.cli"},
    "cli starts the edges": {"inorder.cli.main": "from inorder import server, spark, console"}
    | {f"inorder.{edge}.__init__": "" for edge in ("server", "spark", "console")},
    "cli uses testing": {"inorder.cli.bench": "from inorder import testing", "inorder.testing.__init__": ""},
    "testing knows everything": {"inorder.testing.faults": "import inorder\nfrom inorder.journal import Journal"},
    "a method called open": {"inorder.core.state": "gate.open()"},
    "others may wait": {"inorder.broker": "import time\nasync def turn(): ..."},
}


@pytest.mark.parametrize("sources", ALLOWED.values(), ids=ALLOWED.keys())
def test_the_checker_allows(sources: Sources) -> None:
    assert violations(sources) == []


REFUSED = {
    "a row below": (
        {"inorder.core.state": "import inorder.journal"},
        "inorder.core.state:1 imports inorder.journal",
    ),
    "a row below, for a type hint": (
        {"inorder.core.state": "if TYPE_CHECKING:\n    from inorder.broker import MessageQueue"},
        "inorder.core.state:2 imports inorder.broker",
    ),
    "a row below, inside a function": (
        {"inorder.message": "def f():\n    from .core import lanes", "inorder.core.lanes": ""},
        "inorder.message:2 imports inorder.core.lanes",
    ),
    "a row below, two dots up": (
        {"inorder.journal.codec": "from ..client.topic import Topic"},
        "inorder.journal.codec:1 imports inorder.client.topic",
    ),
    "a stranger in the same row": (
        {"inorder.broker": "import inorder.pool"},
        "inorder.broker:1 imports inorder.pool",
    ),
    "an edge that knows another": (
        {"inorder.server.push": "import inorder.cli"},
        "inorder.server.push:1 imports inorder.cli",
    ),
    "testing in the library": (
        {"inorder.client.topic": "from inorder import testing", "inorder.testing.__init__": ""},
        "inorder.client.topic:1 imports inorder.testing.__init__",
    ),
    "testing at the front door": (
        {"inorder.__init__": "from .testing import ManualClock"},
        "inorder.__init__:1 imports inorder.testing",
    ),
    "the front door from inside": (
        {"inorder.client.topic": "from inorder import Message", "inorder.__init__": ""},
        "inorder.client.topic:1 imports inorder.__init__",
    ),
    "an unknown room": ({"inorder.utils": ""}, "inorder.utils is in no known room"),
    "an import of an unknown room": (
        {"inorder.broker": "from inorder.utils import f"},
        "inorder.broker:1 imports inorder.utils",
    ),
    "an impure import": (
        {"inorder.core.lanes": "from concurrent.futures import Future"},
        "inorder.core.lanes:1 imports concurrent.futures, and the room is pure",
    ),
    "patterns that know the broker's core": (
        {"inorder.patterns.step": "from inorder.core.lanes import Lanes"},
        "inorder.patterns.step:1 imports inorder.core.lanes",
    ),
    "a coroutine": (
        {"inorder.patterns.step": "async def f(): ..."},
        "inorder.patterns.step:1 waits, and the room is pure",
    ),
    "an open file": (
        {"inorder.core.state": "\nopen('x')"},
        "inorder.core.state:2 opens a file, and the room is pure",
    ),
    "a cycle": (
        {"inorder.message": "import inorder.errors", "inorder.errors": "from .message import Message"},
        "cycle: inorder.message imports inorder.errors imports inorder.message",
    ),
}


@pytest.mark.parametrize(("sources", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_the_checker_names(sources: Sources, sentence: str) -> None:
    assert violations(sources) == [sentence]
