"""`inorder topic` and `inorder subscription`: what they make, show, change and refuse."""

import socket
from pathlib import Path

import pytest

from inorder.broker import MessageQueue
from inorder.cli.looking import BrokerLook, JournalLook
from inorder.client.pubsub import PubSub
from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.errors import PermissionDenied
from inorder.journal.reading import JournalReader
from inorder.pending import Pending

from .conftest import Program


@pytest.fixture
def orders(inorder: Program) -> Program:
    inorder.ok("topic", "create", "orders")
    return inorder


def test_a_topic_is_created_listed_shown_and_deleted(inorder: Program) -> None:
    assert inorder.ok("topic", "create", "orders", "--message-retention-duration", 3600) == ["created topic orders"]
    inorder.ok("topic", "create", "dead")
    inorder.ok("subscription", "create", "billing", "orders")
    header, dead, orders = [line.split() for line in inorder.ok("topic", "list")]
    assert header[:2] == ["topic", "published"]
    assert (orders[0], orders[-2:]) == ("orders", ["1", "h"])
    assert (dead[0], dead[-2:]) == ("dead", ["until", "acked"])
    [shown] = inorder.json("topic", "show", "orders")
    assert shown["subscriptions"] == ["billing"]
    assert shown["options"] == {"message_retention_duration": 3600, "annotations": ""}
    assert "retention      1 h" in inorder.ok("topic", "show", "orders")
    assert inorder.json("topic", "delete", "orders", "--yes") == [{"topic": "orders", "deleted": True}]
    assert [topic["topic"] for topic in inorder.json("topic", "list")] == ["dead"]
    assert inorder.json("subscription", "show", "billing")[0]["topic_deleted"]
    assert "orders (deleted)" in "\n".join(inorder.ok("subscription", "list"))


def test_what_is_kept_with_a_topic_or_a_subscription_cannot_disturb_a_terminal(orders: Program) -> None:
    text = "\x9b31m\u202eé"  # red, and from right to left
    orders.ok("topic", "create", "noted", "--annotations", text)
    orders.ok("subscription", "create", "filtered", "noted", "--filter", f'attributes.a = "{text}"')
    for noun, name in (("topic", "noted"), ("subscription", "filtered")):
        [line] = [line for line in orders.ok(noun, "show", name) if line.startswith("options")]
        assert r"\x9b31m\u202eé" in line


def test_nothing_but_create_makes_a_folder(inorder: Program, folder: Path) -> None:
    for given in (("topic", "list"), ("publish", "orders", "x"), ("pull", "billing"), ("tail", "orders")):
        ran = inorder(*given)
        assert (ran.code, ran.out) == (2, "")
        assert f"there is no folder {folder}" in ran.err
        assert f"inorder topic create TOPIC --target '{inorder.target}'" in ran.err
        assert not folder.exists()


def test_what_is_refused_makes_no_folder_either(inorder: Program, folder: Path) -> None:
    for given in (("1st",), ("a/b",), ("orders", "--message-retention-duration", "-1")):
        assert inorder("topic", "create", *given).code == 2
        assert not folder.exists()


def test_what_is_missing_can_be_created_by_the_command_that_is_told(orders: Program) -> None:
    ran = orders("publish", "nowhere", "x")
    assert ran.code == 2
    assert ran.err == (
        f"inorder: Topic not found: nowhere\n  to create it: inorder topic create nowhere --target '{orders.target}'\n"
    )
    ran = orders("pull", "billing")
    assert f"to create it: inorder subscription create billing TOPIC --target '{orders.target}'" in ran.err
    ran = orders("topic", "create", "orders")
    assert f"to see it: inorder topic show orders --target '{orders.target}'" in ran.err
    orders.ok("subscription", "create", "billing", "orders")
    ran = orders("subscription", "create", "billing", "orders")
    assert f"to see it: inorder subscription show billing --target '{orders.target}'" in ran.err


@pytest.mark.parametrize("noun", ["topic", "subscription"])
def test_nobody_is_told_to_create_what_is_to_be_deleted(orders: Program, noun: str) -> None:
    ran = orders(noun, "delete", "nowhere", "--yes")
    assert ran.code == 2
    assert f"\n  to see which there are: inorder {noun} list --target '{orders.target}'\n" in ran.err


def test_a_subscription_is_created_with_options_and_changed_by_parts(orders: Program) -> None:
    orders.ok("topic", "create", "dead")
    [created] = orders.json(
        *("subscription", "create", "billing", "orders", "--message-ordering", "--ack-deadline", 30),
        *("--dead-letter-topic", "dead", "--queue-max-messages", 7, "--queue-max-bytes", "none"),
    )
    options = created["options"]
    assert (options["enable_message_ordering"], options["ack_deadline_seconds"]) == (True, 30)
    assert options["dead_letter_policy"] == {
        "dead_letter_topic": "dead",
        "max_delivery_attempts": 5,
        "source": "billing",
    }
    assert options["queue_limits"] == {"max_messages": 7, "max_bytes": None, "when_full": "drop"}
    [updated] = orders.json(
        "subscription", "update", "billing", "--queue-when-full", "block", "--dead-letter-max-delivery-attempts", 9
    )
    assert updated["options"]["queue_limits"] == {"max_messages": 7, "max_bytes": None, "when_full": "block"}
    assert updated["options"]["dead_letter_policy"] == {
        "dead_letter_topic": "dead",
        "max_delivery_attempts": 9,
        "source": "billing",
    }
    [updated] = orders.json("subscription", "update", "billing", "--no-queue-limits", "--no-dead-letter-policy")
    assert (updated["options"]["queue_limits"], updated["options"]["dead_letter_policy"]) == (None, None)
    [updated] = orders.json("subscription", "update", "billing", "--no-message-ordering")
    assert not updated["options"]["enable_message_ordering"]
    assert orders("subscription", "update", "billing").code == 2


def test_a_value_that_cannot_be_is_refused_with_its_limit(orders: Program, capsys: pytest.CaptureFixture[str]) -> None:
    ran = orders("subscription", "create", "billing", "orders", "--ack-deadline-seconds", 601)
    assert (ran.code, ran.err) == (2, "inorder: ack_deadline_seconds: above 0, up to 600, not 601.0\n")
    with pytest.raises(SystemExit):
        orders("subscription", "create", "billing", "orders", "--queue-max-messages", "many")
    assert "--queue-max-messages: invalid whole number value: 'many'" in capsys.readouterr().err


@pytest.mark.parametrize("given", [("create", "billing", "orders"), ("update", "worker")], ids=["create", "update"])
def test_an_option_is_not_given_and_taken_away_at_once(orders: Program, given: tuple[str, ...]) -> None:
    orders.ok("subscription", "create", "worker", "orders")
    ran = orders("subscription", *given, "--no-retry-policy", "--retry-minimum-backoff", 5)
    assert (ran.code, ran.err.startswith("inorder: --no-retry-policy: not together")) == (2, True)
    [left] = orders.json("subscription", "list")
    assert (left["subscription"], left["options"]["retry_policy"]) == ("worker", None)


def test_what_waits_is_shown_and_a_list_can_be_of_one_topic(orders: Program) -> None:
    orders.ok("subscription", "create", "billing", "orders")
    orders.ok("publish", "orders", "a", "b")
    [shown] = orders.json("subscription", "show", "billing")
    assert (shown["backlog_messages"], shown["parked_keys"], shown["counters"]) == (2, 0, None)
    assert "backlog       2 messages" in orders.ok("subscription", "show", "billing")
    orders.ok("topic", "create", "quiet")
    assert orders.json("subscription", "list", "--topic", "quiet") == []
    assert len(orders.json("subscription", "list", "--topic", "orders")) == 1
    assert orders("subscription", "list", "--topic", "nowhere").code == 2
    assert orders.ok("subscription", "delete", "billing", "--yes") == ["deleted subscription billing"]
    assert orders("subscription", "show", "billing").code == 2


def test_nothing_is_deleted_where_nobody_can_answer(orders: Program) -> None:
    ran = orders("topic", "delete", "orders")
    assert ran.code == 2
    assert "Delete topic orders, to which 0 messages were published?" in ran.err
    assert "give --yes" in ran.err
    assert len(orders.json("topic", "list")) == 1


def test_a_journal_and_its_broker_show_the_same(tmp_path: Path) -> None:
    with PubSub(tmp_path) as pubsub:
        topic = pubsub.topic("orders").create(message_retention_duration=60).result()
        topic.subscription("billing").create(enable_message_ordering=True).result()
        pubsub.topic("calm").create().result()
        pubsub.topic("quiet").create().result()
        topic.publish_message(b"x").result()
        journal, broker = JournalLook(JournalReader(tmp_path)), BrokerLook(pubsub)
        assert journal.topics() == broker.topics()
        assert journal.topic("orders") == broker.topic("orders")
        assert journal.subscriptions() == broker.subscriptions() == broker.subscriptions("orders")
        assert journal.subscriptions("quiet") == broker.subscriptions("quiet") == []
        assert journal.subscription("billing") == broker.subscription("billing")
        assert journal.standing("billing").backlog_messages == broker.standing("billing").backlog_messages == 1
        assert broker.standing("billing").counters is not None


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("memory:", "target 'memory:' is of no use here"),
        ("memory:?sync=none", "target 'memory:' is of no use here"),
        ("", "no target: give --target file:FOLDER or grpc://HOST:PORT"),
        ("kafka:x", "target: file:FOLDER or grpc://HOST:PORT, not 'kafka:x'"),
        ("./data", "target: file:FOLDER or grpc://HOST:PORT, not './data'"),
        ("file:", "target: a folder after 'file:', as in 'file:./data' or 'file:/data', not 'file:'"),
        ("file://./data", "target: a folder after 'file:', as in 'file:./data' or 'file:/data', not 'file://./data'"),
        ("file:./data?journl=sqlite", "file:./data: unknown option 'journl'; there are journal, sync, sync_seconds"),
    ],
)
@pytest.mark.parametrize("given", [("create", "orders"), ("list",)], ids=["create", "list"])
def test_a_target_that_is_of_no_use_is_refused(
    target: str, problem: str, given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Program(capsys, target)("topic", *given)
    assert ran.code == 2
    assert ran.err.startswith(f"inorder: {problem}")


def test_who_names_a_topic_for_dead_letters_that_is_not_there_is_told_so(inorder: Program) -> None:
    inorder.ok("topic", "create", "orders")
    note = "inorder: note: topic dead does not exist: until it does, dead letters stay and are retried\n"
    created = inorder("subscription", "create", "billing", "orders", "--dead-letter-topic", "dead")
    assert (created.code, created.err) == (0, note)
    assert inorder("subscription", "update", "billing", "--ack-deadline", 20).err == note
    inorder.ok("topic", "create", "dead")
    inorder.ok("subscription", "update", "billing", "--ack-deadline", 30)


def test_who_may_not_look_at_the_topic_for_dead_letters_changes_a_subscription_all_the_same(
    orders: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders("subscription", "create", "billing", "orders", "--dead-letter-topic", "dead")
    monkeypatch.setattr(Topic, "exists", lambda _: Pending.failed(PermissionDenied("no right to look")))
    orders.ok("subscription", "update", "billing", "--ack-deadline", 20)


def test_a_target_that_is_given_and_empty_is_not_that_of_the_environment(
    inorder: Program, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    inorder.ok("topic", "create", "orders")
    monkeypatch.setenv("INORDER_TARGET", inorder.target)
    ran = Program(capsys, "")("topic", "delete", "orders", "--yes")  # as of a variable that is not set
    assert (ran.code, ran.err.partition(":")[0]) == (2, "inorder")
    assert len(inorder.json("topic", "list")) == 1


@pytest.mark.parametrize("given", [("create", "orders"), ("list",)], ids=["create", "list"])
def test_a_file_is_no_folder_and_nothing_else_is_said_of_it(
    inorder: Program, folder: Path, given: tuple[str, ...]
) -> None:
    folder.write_text("a letter")
    ran = inorder("topic", *given)
    assert (ran.code, ran.err) == (2, f"inorder: {folder} is a file, and a journal needs a folder\n")
    assert folder.read_text() == "a letter"


class Behind(PubSub):
    """Lists what was there a moment ago."""

    def topics(self) -> Pending[list[Topic]]:
        return super().topics().map(lambda found: [self.topic("gone"), *found])

    def subscriptions(self) -> Pending[list[Subscription]]:
        return super().subscriptions().map(lambda found: [self.subscription("gone"), *found])


def test_what_is_deleted_while_it_is_listed_is_left_out() -> None:
    with Behind("memory:") as pubsub:
        pubsub.topic("orders").create().result().subscription("billing").create().result()
        look = BrokerLook(pubsub)
        assert [topic.name for topic in look.topics()] == ["orders"]
        assert [subscription.name for subscription in look.subscriptions()] == ["billing"]


@pytest.mark.parametrize(
    ("options", "next_step"),
    [
        ("", "starts one; if it has TLS, the target needs ?tls=1"),
        ("&tls=1", "and with TLS? a certificate that this machine does not know needs &ca=FILE"),
    ],
)
def test_a_server_that_does_not_answer_may_run_and_want_other_credentials(
    capsys: pytest.CaptureFixture[str], options: str, next_step: str
) -> None:
    """gRPC says the same of all of these: it could not connect."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        ran = Program(capsys, f"grpc://127.0.0.1:{nobody.getsockname()[1]}?timeout=0.1{options}")("topic", "list")
    assert ran.code == 2
    assert ran.err.startswith("inorder: no answer from 127.0.0.1:")
    assert ran.err.endswith(f"{next_step}\n")


def test_a_journal_of_another_kind_is_told_with_the_way_to_name_it(
    orders: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Program(capsys, f"{orders.target}&journal=sqlite")("topic", "create", "returns")
    assert ran.code == 2
    assert "holds a journal of another kind" in ran.err
    assert "'file:FOLDER?journal=sqlite', or segments if it says nothing" in ran.err


def test_a_second_owner_is_told_who_the_first_is(orders: Program, folder: Path) -> None:
    queue = MessageQueue.open(folder)
    try:
        ran = orders("publish", "orders", "x")
        assert ran.code == 2
        assert "is in use by process" in ran.err
        assert "work beside it" in ran.err
        assert orders.json("topic", "list")[0]["topic"] == "orders"
    finally:
        queue.close()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["topic", "list", "--all"], "inorder topic list: error: unrecognized arguments: --all"),
        (["keys", "resume", "billing", "a", "--every"], "inorder keys resume: error: unrecognized arguments: --every"),
    ],
)
def test_what_a_command_does_not_know_is_told_with_what_it_does(
    inorder: Program, capsys: pytest.CaptureFixture[str], command: list[str], told: str
) -> None:
    with pytest.raises(SystemExit):
        inorder(*command)
    usage, _, problem = capsys.readouterr().err.strip().rpartition("\n")
    assert (problem, "--target TARGET" in usage) == (told, True)
