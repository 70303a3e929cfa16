"""The commands that work on a broker, as processes: beside an owner, in pipes, on a terminal, interrupted."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from inorder.broker import MessageQueue
from inorder.message import Message

from .test_cli import INORDER, owner

HEAVY = {"google", "grpc", "numpy", "pandas", "pyarrow", "pyspark", "sqlalchemy"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def environment(data: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    return {**kept, "INORDER_TARGET": f"file:{data}", "TERM": "xterm"}


@pytest.fixture
def orders(environment: dict[str, str]) -> dict[str, str]:
    """The environment of commands on a broker that has a topic and a subscription."""
    for given in (["topic", "create", "orders"], ["subscription", "create", "billing", "orders"]):
        assert run(environment, *given).returncode == 0
    return environment


def run(environment: dict[str, str], *given: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*INORDER, *given], env=environment, capture_output=True, text=True, check=False, **more)


@contextmanager
def started(environment: dict[str, str], *given: str, **more: Any) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that hears interrupts, though who runs the tests in the background may not; it ends with the block."""
    with subprocess.Popen(
        [*INORDER, *given],
        env=environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **{"stdout": subprocess.PIPE, **more},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def test_a_light_command_loads_nothing_heavy(orders: dict[str, str]) -> None:
    script = (
        "import sys; before = set(sys.modules); import inorder.cli; inorder.cli.main(['topic', 'list', '--json']); "
        "print(*set(sys.modules) - before, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script], env=orders, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["topic"] == "orders"
    loaded = {name.split(".")[0] for name in ran.stderr.split()}
    assert not loaded & HEAVY
    assert not {name for name in ran.stderr.split() if name.startswith(("inorder.spark", "inorder.server"))}


@pytest.mark.parametrize("kind", ["segments", "sqlite"])
def test_who_only_looks_works_beside_the_owner_and_who_changes_is_told_who_that_is(
    environment: dict[str, str], data: Path, kind: Any
) -> None:
    queue = MessageQueue.open(data, journal=kind)
    try:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        queue.publish("orders", [Message(b"a"), Message(b"b")])
        for given in (["topic", "list"], ["topic", "show", "orders"], ["subscription", "list"], ["tail", "orders"]):
            looked = run(environment, *given, "--json")
            assert (looked.returncode, looked.stderr) == (0, "")
            assert looked.stdout
        shown = json.loads(run(environment, "subscription", "show", "billing", "--json").stdout)
        assert shown["backlog_messages"] == 2
        for given in (["publish", "orders", "x"], ["pull", "billing"], ["keys", "blocked", "billing"]):
            refused = run(environment, *given)
            assert refused.returncode == 2
            assert f"is in use by process {os.getpid()} on " in refused.stderr
            assert "stop its owner first" in refused.stderr
    finally:
        queue.close()


def test_the_tail_follows_an_owner_until_it_is_interrupted(environment: dict[str, str], data: Path) -> None:
    with owner(data, "segments"), started(environment, "tail", "orders", "-f", "--from", "0", "--json") as tail:
        lines = pipe(tail.stdout)
        found = [json.loads(lines.readline())["data"] for _ in range(5_000)]
        assert found == [str(number) for number in range(5_000)]
        tail.send_signal(signal.SIGINT)
        lines.read()
        assert tail.wait() == 130
        assert pipe(tail.stderr).read() == b""


def test_a_line_of_a_pipe_is_published_before_the_pipe_ends(orders: dict[str, str]) -> None:
    with started(orders, "tail", "orders", "-f", "--json") as tail, started(orders, "publish", "orders") as publish:
        lines = pipe(publish.stdin)
        for number in range(3):
            lines.write(b"%d\nhalf" % number)
            lines.flush()
            seen = [json.loads(pipe(tail.stdout).readline())["data"]]
            lines.write(b" a line\n")
            lines.flush()
            seen += [json.loads(pipe(tail.stdout).readline())["data"]]
            assert seen == [str(number), "half a line"]
        lines.write(b"the last has no end")
        lines.close()
        assert publish.wait() == 0
        assert pipe(publish.stdout).read() == b"published 7 messages to orders\n"
        assert json.loads(pipe(tail.stdout).readline())["data"] == "the last has no end"


def test_who_interrupts_a_publish_hears_what_is_published(orders: dict[str, str]) -> None:
    with started(orders, "tail", "orders", "-f") as tail, started(orders, "publish", "orders") as publish:
        for line in (b"a\n", b"b\n"):
            pipe(publish.stdin).write(line)
            pipe(publish.stdin).flush()
            assert pipe(tail.stdout).readline().endswith(b"  " + line)
        publish.send_signal(signal.SIGINT)
        assert publish.wait() == 130
        # The second one is seen before its publisher is answered, and perhaps that was interrupted.
        said, place = pipe(publish.stderr).read().decode(), "standard input, line 2"
        assert said.removeprefix("inorder: note: published before that: ") in (
            "2 messages\n",
            f"1 message; whether those from {place} to {place} were, is not known\n",
        )


def test_what_nobody_could_read_is_not_acked(orders: dict[str, str]) -> None:
    run(orders, "publish", "orders", "a")
    reader, writer = os.pipe()
    os.close(reader)
    with started(orders, "pull", "billing", "--ack", stdout=writer) as pull:
        os.close(writer)
        assert pull.wait() == 141
    assert run(orders, "pull", "billing", "--ack").stdout.endswith("  a\n")
    assert run(orders, "pull", "billing", "--ack").stdout == ""


# -- on a terminal ---------------------------------------------------------------------------------


def said_on_a_terminal(environment: dict[str, str], *given: str, answer: bytes = b"") -> tuple[int, bytes]:
    """How a command ends whose input and output are a terminal, and what stands there then."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [*INORDER, *given], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        ) as process:
            os.write(ours, answer)
            code = process.wait()
            return code, os.read(ours, 100_000)
    finally:
        os.close(ours)
        os.close(theirs)


def test_colours_are_for_terminals(orders: dict[str, str]) -> None:
    assert "\x1b" not in run(orders, "topic", "list").stdout
    code, said = said_on_a_terminal(orders, "topic", "list")
    assert (code, said.startswith(b"\x1b[1mtopic")) == (0, True)
    code, said = said_on_a_terminal(orders, "topic", "show", "nowhere")
    assert (code, said.startswith(b"\x1b[31minorder:\x1b[0m Topic not found")) == (2, True)
    code, said = said_on_a_terminal({**orders, "NO_COLOR": "1"}, "topic", "list")
    assert (code, b"\x1b" in said) == (0, False)


@pytest.mark.parametrize(
    ("answer", "code", "said"), [(b"y\n", 0, b"deleted topic orders"), (b"\n", 1, b"nothing was changed")]
)
def test_what_cannot_be_taken_back_is_asked_first(
    orders: dict[str, str], answer: bytes, code: int, said: bytes
) -> None:
    ended, shown = said_on_a_terminal(orders, "topic", "delete", "orders", answer=answer)
    assert (ended, said in shown) == (code, True)
    assert b"Delete topic orders, to which 0 messages were published? [y/N]" in shown
    assert len(run(orders, "topic", "list", "--json").stdout.splitlines()) == code


def test_what_was_not_agreed_to_is_no_line_of_json(orders: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    for given in (("topic", "delete", "orders"), ("subscription", "delete", "billing")):
        os.write(ours, b"n\n")
        ran = subprocess.run([*INORDER, *given, "--json"], env=orders, stdin=theirs, capture_output=True)
        assert (ran.returncode, ran.stdout) == (1, b"")
        assert ran.stderr.endswith(b"[y/N] nothing was changed\n")
    os.close(ours)
    os.close(theirs)


def test_a_long_publish_shows_its_progress(orders: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(5_000)))
    script = "import sys, inorder.cli.progress as p; p.Bar.__init__.__defaults__ = (0,); import inorder.cli as c; "
    script += "sys.exit(c.main(sys.argv[1:]))"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", script, "publish", "orders", "--file", str(file)]
    with subprocess.Popen(command, env=orders, stdout=subprocess.PIPE, stderr=theirs) as process:
        assert process.wait() == 0
        assert b"publishing [" in os.read(ours, 10_000)
    os.close(ours)
    os.close(theirs)


def test_who_types_messages_is_told_how_to_end(orders: dict[str, str]) -> None:
    code, said = said_on_a_terminal(orders, "publish", "orders", answer=b"a\nb\n\x04")
    assert code == 0
    assert b"each line that you type is a message" in said
    assert b"published 2 messages to orders" in said
