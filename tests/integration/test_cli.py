"""The program as it is started: beside an owner, on a terminal, in a pipe, and interrupted."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inorder.broker import MessageQueue
from inorder.message import Message

INORDER = [sys.executable, "-m", "inorder"]

OWNER = """
import sys
from inorder.broker import MessageQueue
from inorder.message import Message
queue = MessageQueue.open(sys.argv[1], journal=sys.argv[2])
queue.register_topic("orders")
queue.register_subscription("billing", "orders")
position = 0
while True:
    queue.publish("orders", [Message(b"%d" % n) for n in range(position, position + 7)])
    position += 7
    print(position, flush=True)
"""


@contextmanager
def owner(folder: Path, kind: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-c", OWNER, str(folder), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert int(process.stdout.readline())
            yield process
        finally:
            process.kill()
            process.stdout.close()


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*INORDER, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A journal that takes a moment to read: 60 MB in all, 300 kB in a frame."""
    queue = MessageQueue.open(tmp_path, sync="none")
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    batch = [Message(b"x" * 1000)] * 300
    for _ in range(200):
        queue.publish("orders", batch)
    assert queue._journal is not None
    queue._journal.close()  # as if it was killed, so without a snapshot
    return tmp_path


def damage(folder: Path) -> None:
    file = min(folder.glob("*.log"))
    with open(file, "r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        opened.write(b"\0\0\0\0")


def test_both_names_of_the_program_say_its_version() -> None:
    script = Path(sys.executable).parent / "inorder"
    for command in (INORDER, [str(script)]):
        assert subprocess.check_output([*command, "--version"], text=True) == "inorder 0.1.0\n"
    wrong = run("journal")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("usage: inorder journal")


@pytest.mark.parametrize("kind", ["segments", "sqlite"])
def test_the_commands_work_beside_an_owner_that_writes(tmp_path: Path, kind: str) -> None:
    with owner(tmp_path, kind) as process:
        assert process.stdout is not None
        answered = int(process.stdout.readline())
        found = run("journal", "info", tmp_path, "--json")
        assert (found.returncode, found.stderr) == (0, "")
        plain = json.loads(found.stdout)
        assert plain["owner"].startswith(f"process {process.pid} on ")
        assert plain["topics"][0]["end"] >= answered
        assert plain["topics"][0]["end"] % 7 == 0
        dump = run("journal", "dump", tmp_path, "--events", "published")
        messages = [json.loads(line) for line in dump.stdout.splitlines()]
        assert (dump.returncode, dump.stderr) == (0, "")
        assert [message["data"] for message in messages] == [str(number) for number in range(len(messages))]
        assert len(messages) >= plain["topics"][0]["end"]
        verified = run("journal", "verify", tmp_path)
        assert (verified.returncode, verified.stderr) == (0, "")
        refused = run("journal", "repair", tmp_path, "--yes")
        assert refused.stdout == "nothing is damaged\n" or "never was durable" in refused.stdout


def test_dump_needs_little_memory(large: Path) -> None:
    script = """
import resource, sys
from inorder.cli import main
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
main(["journal", "dump", sys.argv[1]])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, file=sys.stderr)
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(large)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True
    )
    assert int(run.stderr) < 30  # MiB, of more than 60


def test_whoever_has_read_enough_hears_no_complaint(large: Path) -> None:
    with subprocess.Popen(
        [*INORDER, "journal", "dump", str(large)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"event": "topic_created"')
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_an_interrupt_is_no_traceback(large: Path) -> None:
    with subprocess.Popen(
        [*INORDER, "journal", "dump", str(large)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Who runs the tests in the background may ignore interrupts, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()  # it is at work, and waits for a reader
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == b""


@contextmanager
def on_a_terminal(*arguments: object, answer: bytes = b"") -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    ours, theirs = pty.openpty()
    command = [*INORDER, *map(str, arguments)]
    try:
        with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as process:
            os.write(ours, answer)
            yield process, ours
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(("answer", "code", "said"), [(b"y\n", 0, b"\ncut "), (b"\n", 1, b"nothing was changed\r\n")])
def test_repair_asks_first(large: Path, answer: bytes, code: int, said: bytes) -> None:
    damage(large)
    with on_a_terminal("journal", "repair", large, answer=answer) as (process, terminal):
        assert process.stdout is not None
        out = process.stdout.read()
        assert process.wait() == code
        assert said in out + os.read(terminal, 10_000)
    assert run("journal", "verify", large).returncode == code


def test_repair_does_not_ask_where_nobody_can_answer(large: Path) -> None:
    damage(large)
    refused = subprocess.run(
        [*INORDER, "journal", "repair", str(large)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "give --yes" in refused.stderr


def test_verify_shows_its_progress_on_a_terminal_when_it_takes_long(large: Path) -> None:
    script = "import sys, inorder.cli.progress as p; p.Bar.__init__.__defaults__ = (0,); import inorder.cli as c; "
    script += "sys.exit(c.main(sys.argv[1:]))"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", script, "journal", "verify", str(large)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as process:
        assert process.wait() == 0
        assert b"verifying [" in os.read(ours, 10_000)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("closed", ["stdin", "stdout", "stderr"])
def test_a_stream_that_is_closed_is_no_journal(tmp_path: Path, closed: str) -> None:
    """A file that is opened gets the lowest number that is free, and libraries write to that of stderr."""
    number = ("stdin", "stdout", "stderr").index(closed)
    program = f"""
import os, sys
from inorder.cli import main
from inorder.broker import MessageQueue
code = main(["topic", "create", "orders", "--target", "file:{tmp_path}"])
broker = MessageQueue.open("{tmp_path}")
leads_to = os.path.realpath("/proc/self/fd/{number}")
broker.close()
raise SystemExit(code or leads_to != os.devnull)
"""
    found = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, preexec_fn=lambda: os.close(number)
    )
    assert (found.returncode, found.stderr) == (0, b"")


def test_letters_that_a_stream_does_not_know_are_escaped(tmp_path: Path) -> None:
    target = ("--target", f"file:{tmp_path}")
    run("topic", "create", "orders", "--message-retention-duration", "600", *target)
    run("publish", "orders", "ключ", "--ordering-key", "é", *target)
    for words, expected in ((("--json",), "\\u043a\\u043b"), ((), "\\u043a\\u043b")):
        found = subprocess.run(
            [*INORDER, "tail", "orders", *target, *words],
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert expected in found.stdout
    assert json.loads(run("tail", "orders", "--json", *target).stdout)["data"] == "ключ"
