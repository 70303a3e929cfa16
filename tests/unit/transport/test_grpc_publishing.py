"""Requests to one topic: their order, their numbers, and what becomes of those behind one that failed."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event, Lock, Thread
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from google.pubsub_v1.types import pubsub

from inorder.errors import (
    Closed,
    DeadlineExceeded,
    InorderError,
    KeyPaused,
    OutOfSequence,
    QueueFull,
    TopicNotFound,
    Unauthenticated,
    Unavailable,
)
from inorder.message import Batch, Message, batch_of
from inorder.pending import Pending
from inorder.protocol import inorder_v1_pb2 as v1
from inorder.transport.address import Address
from inorder.transport.grpc import publishing
from inorder.transport.grpc.calls import Busy, later
from inorder.transport.grpc.publishing import MAX_COLUMNS, MAX_UNDER_WAY, Outlet
from inorder.transport.grpc.transport import GrpcTransport
from inorder.transport.grpc.transport import Server as Described

from ..interrupts import is_interrupted

PATIENCE_SECONDS = 30


class Sent(NamedTuple):
    """A request as the server sees it."""

    texts: list[str]
    attempt: v1.Attempt
    answer: Pending[bytes]

    def store(self) -> None:
        response = pubsub.PublishResponse(message_ids=[f"id-{text}" for text in self.texts])
        self.answer.set_result(pubsub.PublishResponse.serialize(response))

    def fail(self, error: InorderError) -> None:
        self.answer.set_exception(error)


class Server:
    """Keeps requests until the test answers them. Stands for `Calls`."""

    timeout_seconds = 60.0

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.there = True
        self.probes = 0

    def lives(self) -> Pending[bool]:
        self.probes += 1
        return Pending.of(self.there)

    def begin(self, method: str, request: bytes, timeout: float | None, metadata: Any) -> tuple[Pending[bytes], Any]:
        texts = [message.data.decode() for message in pubsub.PublishRequest.deserialize(request).messages]
        answer: Pending[bytes] = Pending()
        self.sent.append(Sent(texts, v1.Attempt.FromString(metadata[0][1]), answer))
        return answer, lambda: answer.set_exception(Unavailable("cancelled"))

    def worth_repeating(self, error: BaseException | None) -> bool:
        return type(error) in (Unavailable, Busy)

    def take(self, count: int) -> list[Sent]:
        """The next requests, as soon as there are so many."""
        wait_until(lambda: len(self.sent) >= count)
        taken, self.sent = self.sent[:count], self.sent[count:]
        return taken


def wait_until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, f"this did not happen within {PATIENCE_SECONDS} s"
        time.sleep(0.001)


class ColumnServer(Server):
    """One that takes columns."""

    def begin(self, method: str, request: bytes, timeout: float | None, metadata: Any) -> tuple[Pending[bytes], Any]:
        texts = [data.decode() for data in v1.PublishColumns.FromString(request).messages.data]
        answer: Pending[bytes] = Pending()
        self.sent.append(Sent(texts, v1.Attempt.FromString(metadata[0][1]), answer))
        return answer, lambda: answer.set_exception(Unavailable("cancelled"))


def test_what_waits_goes_together_in_columns() -> None:
    server = ColumnServer()
    outlet = Outlet(server, "orders", "projects/p/topics/orders", once=True, columns=True)  # type: ignore[arg-type]
    lists = [[f"{key}{number}" for number in range(1_000)] for key in "abcdefghi"]
    answers = [publish(outlet, *one) for one in lists]
    sent = server.take(MAX_UNDER_WAY)
    assert [len(one.texts) for one in sent] == [1_000] * MAX_UNDER_WAY
    assert all(one.attempt.columns for one in sent)
    position = 0

    def store(one: Sent) -> None:
        nonlocal position
        columns = v1.PublishedColumns(id_prefix="e-0-", first_position=position)
        position += len(one.texts)
        one.answer.set_result(columns.SerializeToString())

    for one in sent:
        store(one)
    behind = server.take(2)
    assert [len(one.texts) for one in behind] == [MAX_COLUMNS, 2_000]
    behind[0].fail(Unavailable("gone"))
    behind[1].fail(OutOfSequence("its predecessor is not there"))
    again = server.take(2)
    assert [one.texts for one in again] == [one.texts for one in behind], "sent once more, as they were"
    assert [one.attempt.number for one in again] == [one.attempt.number for one in behind]
    for one in again:
        store(one)
    expected = iter(range(9_000))
    for answer in answers:
        assert answer.result(PATIENCE_SECONDS) == [f"e-0-{next(expected)}" for _ in range(1_000)]


def outlet_of(server: Server) -> Outlet:
    return Outlet(server, "orders", "projects/p/topics/orders", once=True)  # type: ignore[arg-type]


def publish(outlet: Outlet, *texts: str) -> Pending[list[str]]:
    """Each with its first letter as its key."""
    return outlet.publish(batch_of([Message(text.encode(), ordering_key=text[0]) for text in texts]))


class Meanwhile(list[Any]):
    """A column during whose reading something else happens, once."""

    def __init__(self, column: Any, event: Callable[[], object]) -> None:
        super().__init__(column)
        self._event = event

    def __iter__(self) -> Iterator[Any]:
        event, self._event = self._event, lambda: None
        event()
        return super().__iter__()


def publish_meanwhile(outlet: Outlet, text: str, event: Callable[[], object]) -> Pending[list[str]]:
    """As `publish`; the event is when the request is being made."""
    keys, data, attributes, sizes = batch_of([Message(text.encode(), ordering_key=text[0])])
    return outlet.publish((keys, data, Meanwhile(attributes, event), sizes))


def numbers(requests: list[Sent]) -> list[int]:
    return [one.attempt.number for one in requests]


def test_what_comes_while_enough_is_under_way_goes_together() -> None:
    server = Server()
    outlet = outlet_of(server)
    answers = [publish(outlet, f"a{number}") for number in range(MAX_UNDER_WAY + 3)]
    under_way = server.take(MAX_UNDER_WAY)
    assert not server.sent
    assert numbers(under_way) == list(range(MAX_UNDER_WAY))
    under_way[0].store()
    [together] = server.take(1)
    assert together.texts == [f"a{MAX_UNDER_WAY + number}" for number in range(3)]
    for one in (*under_way[1:], together):
        one.store()
    assert [answer.result() for answer in answers] == [[f"id-a{number}"] for number in range(MAX_UNDER_WAY + 3)]


def test_what_was_not_answered_goes_again_under_its_number_once_all_has_come_back() -> None:
    server = Server()
    outlet = outlet_of(server)
    answers = [publish(outlet, text) for text in ("a1", "a2", "a3")]
    first, second, third = server.take(3)
    second.fail(Unavailable("cut"))
    third.fail(Unavailable("cut"))
    publish(outlet, "a4")
    assert not server.sent  # the first may still be on its way
    first.store()
    again = server.take(3)
    assert [one.texts for one in again] == [["a2"], ["a3"], ["a4"]]
    assert numbers(again) == [1, 2, 3]
    assert {one.attempt.producer for one in again} == {first.attempt.producer}
    for one in again:
        one.store()
    assert [answer.result() for answer in answers] == [["id-a1"], ["id-a2"], ["id-a3"]]


def test_a_request_keeps_its_number_although_the_one_behind_it_was_answered_meanwhile() -> None:
    server = Server()
    outlet = outlet_of(server)
    answers = [publish(outlet, text) for text in ("a1", "a2", "a3")]
    for one in server.take(3):
        one.fail(Unavailable("cut"))  # all were stored before that
    first, second, third = server.take(3)
    first.fail(Unavailable("not connected yet"))
    second.store()
    third.fail(Unavailable("cut"))
    answers.append(publish(outlet, "a4"))
    again = server.take(3)
    assert [one.texts for one in again] == [["a1"], ["a3"], ["a4"]]
    assert numbers(again) == [0, 2, 3]
    for one in again:
        one.store()
    assert [answer.result() for answer in answers] == [[f"id-a{number}"] for number in range(1, 5)]


def test_behind_a_batch_that_is_refused_its_keys_fail_and_others_go_on_under_another_name() -> None:
    server = Server()
    outlet = outlet_of(server)
    refused, mixed = publish(outlet, "a1"), publish(outlet, "a2", "c1")
    other_key, same_key = publish(outlet, "b1"), publish(outlet, "a3")
    first, *behind = server.take(MAX_UNDER_WAY)
    first.fail(TopicNotFound("orders"))
    for one in behind:
        one.fail(OutOfSequence(f"{one.attempt.number}"))
    [again] = server.take(1)
    assert (again.texts, again.attempt.number) == (["b1"], 0)
    assert again.attempt.producer != first.attempt.producer
    again.store()
    assert isinstance(refused.exception(), TopicNotFound)
    assert isinstance(same_key.exception(), KeyPaused)
    assert isinstance(mixed.exception(), TopicNotFound), "c1 has no key that is paused"
    assert other_key.result() == ["id-b1"]


def test_who_is_told_of_a_failure_publishes_nothing_behind_another_one_that_is_still_to_be_told() -> None:
    server = Server()
    outlet = outlet_of(server)
    meanwhile: list[Pending[list[str]]] = []
    first, behind = publish(outlet, "a1"), publish(outlet, "a2", "b1")
    first.add_done_callback(lambda _: meanwhile.extend(publish(outlet, text) for text in ("b2", "c1")))
    behind.add_done_callback(lambda _: meanwhile.append(publish(outlet, "a3")))
    refused, out_of_sequence = server.take(2)
    out_of_sequence.fail(OutOfSequence("a1 is missing"))
    refused.fail(TopicNotFound("orders"))
    assert [type(one.exception(0)) for one in (first, behind, meanwhile[0])] == [TopicNotFound] * 3
    [sent] = server.take(1)
    assert sent.texts == ["c1", "a3"]
    sent.store()
    assert [one.result(PATIENCE_SECONDS) for one in meanwhile[1:]] == [["id-c1"], ["id-a3"]]


def test_a_request_that_is_being_made_fails_with_the_one_before_it() -> None:
    server = Server()
    outlet = outlet_of(server)
    refused = publish(outlet, "a1")
    [first] = server.take(1)
    behind = publish_meanwhile(outlet, "a2", lambda: first.fail(TopicNotFound("orders")))
    other_key = publish(outlet, "b1")
    assert isinstance(refused.exception(), TopicNotFound)
    assert isinstance(behind.exception(0), KeyPaused)
    [sent] = server.take(1)
    assert (sent.texts, sent.attempt.number) == (["b1"], 0)
    sent.store()
    assert other_key.result() == ["id-b1"]


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def test_a_request_whose_making_is_interrupted_goes_all_the_same_and_before_what_comes_later() -> None:
    server = Server()
    outlet = outlet_of(server)
    with pytest.raises(KeyboardInterrupt):
        publish_meanwhile(outlet, "a1", press_ctrl_c)
    last = publish(outlet, "a2")
    texts: list[str] = []
    while len(texts) < 2:
        [sent] = server.take(1)
        texts += sent.texts
        sent.store()
    assert texts == ["a1", "a2"]
    assert last.result(PATIENCE_SECONDS) == ["id-a2"]


def test_a_request_whose_sending_is_interrupted_goes_again_under_its_number() -> None:
    class Interrupted(Server):
        pressed = False

        def begin(self, *call: Any) -> tuple[Pending[bytes], Any]:
            begun = super().begin(*call)
            if not self.pressed:
                self.pressed = True
                press_ctrl_c()
            return begun

    server = Interrupted()
    outlet = outlet_of(server)
    with pytest.raises(KeyboardInterrupt):
        publish(outlet, "a1")
    first, again = server.take(2)
    assert (again.texts, again.attempt) == (["a1"], first.attempt)
    again.store()
    after = publish(outlet, "a2")
    [sent] = server.take(1)
    assert sent.attempt.number == 1
    sent.store()
    assert after.result(PATIENCE_SECONDS) == ["id-a2"]


class Storing(Server):
    """Stores each number of a producer once and in order, and answers when it is told to."""

    def __init__(self, when: Callable[[Callable[[], None]], object]) -> None:
        super().__init__()
        self.stored: list[str] = []
        self._when = when
        self._next: Counter[str] = Counter()

    def begin(self, *call: Any) -> tuple[Pending[bytes], Any]:
        begun = super().begin(*call)
        self._when(partial(self._answer, self.sent[-1]))
        return begun

    def _answer(self, sent: Sent) -> None:
        expected = self._next[sent.attempt.producer]
        if sent.attempt.number > expected:
            sent.fail(OutOfSequence(f"{expected}"))
            return
        if sent.attempt.number == expected:
            self._next[sent.attempt.producer] += 1
            self.stored += sent.texts
        sent.store()


def at_once(answer: Callable[[], None]) -> None:
    answer()


@pytest.mark.parametrize("when", [at_once, partial(later, 0)])
def test_a_publish_that_is_interrupted_at_any_step_holds_up_nobody_and_is_stored_once(
    when: Callable[[Callable[[], None]], object],
) -> None:
    step, went_through = 0, False
    while not went_through:
        step += 1
        server = Storing(when)
        outlet = outlet_of(server)
        others: list[Pending[list[str]]] = []  # what another thread publishes meanwhile, and this one sends
        other = Thread(target=lambda outlet=outlet, others=others: others.append(publish(outlet, "b1")))
        turn, too_late = Lock(), Event()

        def meanwhile(other: Thread = other, turn: Any = turn, too_late: Event = too_late) -> None:
            with turn:
                if not too_late.is_set():  # else the request is made by whoever takes over, beside what comes after
                    other.start()
                    other.join()

        went_through = not is_interrupted(
            partial(publish_meanwhile, outlet, "a1", meanwhile), step, "inorder.transport"
        )
        with turn:
            too_late.set()
        others += [publish(outlet, "a2"), publish(outlet, "b2")]
        assert [answer.exception(PATIENCE_SECONDS) for answer in others] == [None] * len(others), f"step {step}"
        assert [text for text in server.stored if text[0] == "a"] in (["a1", "a2"], ["a2"]), f"step {step}"
        assert [text for text in server.stored if text[0] == "b"] in (["b1", "b2"], ["b2"]), f"step {step}"
    assert server.stored == ["a1", "b1", "a2", "b2"]
    assert step > 20


def test_a_request_that_is_being_made_while_others_go_again_goes_behind_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "later", lambda seconds, go_on: go_on())
    server = Server()
    outlet = outlet_of(server)
    publish(outlet, "a1")
    [first] = server.take(1)
    answer = publish_meanwhile(outlet, "a2", lambda: first.fail(Unavailable("cut")))
    again = server.take(2)
    assert ([one.texts for one in again], numbers(again)) == ([["a1"], ["a2"]], [0, 1])
    for one in again:
        one.store()
    assert (answer.result(), server.sent) == (["id-a2"], [])


@pytest.mark.parametrize("error", [Unavailable("cut"), Unauthenticated("The token is no longer valid.")])
def test_what_may_have_been_stored_is_not_sent_again_under_another_name(error: InorderError) -> None:
    server = Server()
    server.timeout_seconds = 0.0  # it is tried again, and once more is too long
    outlet = outlet_of(server)
    first, behind = publish(outlet, "a1"), publish(outlet, "b1")
    not_sent, same_key = publish(outlet, "d1"), publish(outlet, "b2")
    later = [publish(outlet, "e1"), publish(outlet, "b3")]
    while not first.done():
        *in_doubt, refused = server.take(MAX_UNDER_WAY)
        for one in in_doubt:
            one.fail(error)  # perhaps both were stored before that
        refused.fail(OutOfSequence("2"))
        wait_until(lambda: first.done() or server.sent)
    sent = server.take(2)
    assert behind.done()
    for answer in (first, behind):
        assert isinstance(answer.exception(), type(error))
    assert isinstance(same_key.exception(), KeyPaused)
    assert isinstance(later[1].exception(), KeyPaused)
    assert [one.texts for one in sent] == [["d1"], ["e1"]]
    for one in sent:
        one.store()
    assert (not_sent.result(), later[0].result()) == (["id-d1"], ["id-e1"])


@pytest.mark.parametrize("error", [DeadlineExceeded("a proxy gave up"), Unauthenticated("It is no longer valid.")])
def test_what_may_have_been_stored_goes_again_under_its_number(error: InorderError) -> None:
    """What was several batches is not taken apart: alone, each would be stored once more."""
    server = Server()
    outlet = outlet_of(server)
    [publish(outlet, f"x{number}") for number in range(MAX_UNDER_WAY)]
    under_way = server.take(MAX_UNDER_WAY)
    answers = [publish(outlet, "a1"), publish(outlet, "b1")]
    for one in under_way:
        one.store()
    [together] = server.take(1)
    together.fail(error)  # perhaps it was stored before that
    [again] = server.take(1)
    assert (again.texts, again.attempt) == (together.texts, together.attempt)
    again.store()
    assert [answer.result() for answer in answers] == [["id-a1"], ["id-b1"]]


def in_doubt_together(server: Server, outlet: Outlet) -> tuple[list[Pending[list[str]]], list[Sent]]:
    """Two batches in one request and one in the next, each sent again because its answer was lost."""
    [publish(outlet, f"x{number}") for number in range(MAX_UNDER_WAY)]
    under_way = server.take(MAX_UNDER_WAY)
    answers = [publish(outlet, "a1"), publish(outlet, "b1")]
    under_way[0].store()
    [together] = server.take(1)
    answers.append(publish(outlet, "c1"))
    for one in under_way[1:]:
        one.store()
    [behind] = server.take(1)
    server.timeout_seconds = 0.0  # it is tried again, and once more is too long
    for one in (together, behind):
        one.fail(Unavailable("cut"))
    return answers, server.take(2)


def test_what_may_have_been_stored_stays_in_doubt_when_the_server_then_has_no_time() -> None:
    server = Server()
    outlet = outlet_of(server)
    answers, again = in_doubt_together(server, outlet)
    for one in again:
        one.fail(Busy("too many requests", 0.0))
    assert [type(answer.exception(PATIENCE_SECONDS)) for answer in answers] == [Unavailable] * 3
    assert not server.sent


def test_doubt_ends_when_the_server_refuses_what_it_would_have_known_if_it_had_stored_it() -> None:
    server = Server()
    outlet = outlet_of(server)
    answers, again = in_doubt_together(server, outlet)
    again[0].fail(QueueFull("worker", "1 message"))
    again[1].fail(Unavailable("cut"))
    alone = server.take(3)
    assert [one.texts for one in alone] == [["a1"], ["b1"], ["c1"]]
    for one in alone:
        one.store()
    assert [answer.result() for answer in answers] == [["id-a1"], ["id-b1"], ["id-c1"]]


def test_what_is_out_of_sequence_behind_one_that_fails_is_in_no_doubt_any_more() -> None:
    server = Server()
    outlet = outlet_of(server)
    first, behind = publish(outlet, "a1"), publish(outlet, "b1")
    for one in server.take(2):
        one.fail(Unavailable("cancelled"))
    waited, refused = server.take(2)
    waited.fail(Closed("there was no room for the message before the publisher was closed"))
    refused.fail(OutOfSequence("1"))
    [again] = server.take(1)
    assert (again.texts, again.attempt.number) == (["b1"], 0)
    again.store()
    assert isinstance(first.exception(), Closed)
    assert behind.result() == ["id-b1"]


def test_of_batches_that_are_refused_together_each_is_tried_alone() -> None:
    server = Server()
    outlet = outlet_of(server)
    [publish(outlet, f"x{number}") for number in range(MAX_UNDER_WAY)]
    under_way = server.take(MAX_UNDER_WAY)
    good, bad, later = publish(outlet, "a1"), publish(outlet, "b1"), publish(outlet, "c1")
    for one in under_way:
        one.store()
    [together] = server.take(1)
    together.fail(QueueFull("worker", "1 message"))
    alone = server.take(3)
    assert [one.texts for one in alone] == [["a1"], ["b1"], ["c1"]]
    alone[0].store()
    alone[1].fail(QueueFull("worker", "1 message"))
    alone[2].fail(OutOfSequence("2"))
    server.take(1)[0].store()
    assert good.result() == ["id-a1"]
    assert isinstance(bad.exception(), QueueFull)
    assert later.result() == ["id-c1"]


def test_a_topic_that_was_made_anew_gets_what_the_first_has_never_seen() -> None:
    server = Server()
    outlet = outlet_of(server)
    publish(outlet, "a1")
    [first] = server.take(1)
    first.store()
    answer = publish(outlet, "a2")
    [second] = server.take(1)
    second.fail(OutOfSequence("the next one is 0"))
    [again] = server.take(1)
    assert (again.attempt.number, again.texts) == (0, ["a2"])
    assert again.attempt.producer != first.attempt.producer
    again.store()
    assert answer.result() == ["id-a2"]


def test_what_waits_for_room_is_asked_again_not_to_wait() -> None:
    server = Server()
    outlet = outlet_of(server)
    answer = publish(outlet, "a1")
    [first] = server.take(1)
    outlet.stop_waiting()
    first.fail(Unavailable("cancelled"))
    [again] = server.take(1)
    assert (again.attempt.number, again.attempt.now) == (0, True)
    again.store()
    assert answer.result() == ["id-a1"]


def test_a_request_from_which_nothing_comes_back_fails_once_the_server_is_found_to_be_gone() -> None:
    server = Server()
    server.timeout_seconds, server.there = 0.05, False
    outlet = outlet_of(server)
    answers = [publish(outlet, "a1"), publish(outlet, "b1")]
    for answer in answers:
        assert isinstance(answer.exception(PATIENCE_SECONDS), Unavailable)
    server.take(2)
    assert not server.sent  # nobody knows whether they were stored
    server.there = True
    later = publish(outlet, "c1")
    server.take(1)[0].store()
    assert later.result() == ["id-c1"]


def test_a_request_may_wait_for_longer_than_the_timeout_at_a_server_that_is_there() -> None:
    server = Server()
    server.timeout_seconds = 0.05
    outlet = outlet_of(server)
    answer = publish(outlet, "a1")
    wait_until(lambda: server.probes >= 3)
    [waits] = server.take(1)
    assert not answer.done()
    assert not server.sent
    waits.store()
    assert answer.result() == ["id-a1"]


class Undescribed(GrpcTransport):
    """A client whose server says what it is when the test does: itself, with one outlet that notes what it gets."""

    def __init__(self) -> None:
        super().__init__(Address("localhost:1"))
        self.described: Pending[Described] = Pending()
        self.published: list[str] = []
        self.meanwhile = ""  # what another thread publishes while the outlet takes the first batch
        self.waits = True

    def _described(self) -> Pending[Described]:
        return self.described

    def say(self) -> None:
        self.described.set_result(cast(Described, SimpleNamespace(outlet=lambda topic: self._noting())))

    def _noting(self) -> Outlet:
        return cast(Outlet, SimpleNamespace(publish=self._note, stop_waiting=lambda: setattr(self, "waits", False)))

    def _note(self, batch: Batch) -> Pending[list[str]]:
        self.published += [data.decode() for data in batch[1]]
        if self.meanwhile:
            text, self.meanwhile = self.meanwhile, ""
            self.put(text)
        return Pending.of([f"id-{data.decode()}" for data in batch[1]])

    def put(self, text: str) -> Pending[list[str]]:
        return self.publish("orders", batch_of([Message(text.encode(), ordering_key="a")]))


def test_what_is_published_before_the_server_is_known_is_not_overtaken() -> None:
    client = Undescribed()
    answers = [client.put(text) for text in ("a1", "a2", "a3")]
    client.meanwhile = "a4"
    client.say()
    client.put("a5")
    assert client.published == ["a1", "a2", "a3", "a4", "a5"]
    assert [answer.result() for answer in answers] == [["id-a1"], ["id-a2"], ["id-a3"]]
    client.close()


def test_what_was_published_before_a_server_could_not_be_reached_fails_and_what_comes_later_goes_on() -> None:
    client = Undescribed()
    early = [client.put(text) for text in ("a1", "a2")]
    first, client.described = client.described, Pending()
    first.set_exception(Unavailable("not there"))
    assert [type(answer.exception()) for answer in early] == [Unavailable, Unavailable]
    later = client.put("a3")
    client.stop_waiting()
    client.say()
    assert (later.result(), client.published, client.waits) == (["id-a3"], ["a3"], False)
    client.close()


def test_what_is_called_back_goes_again_at_once_and_then_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr(publishing, "later", lambda seconds, go_on: paused.append(seconds))
    server = Server()
    outlet = outlet_of(server)
    publish(outlet, "a1")
    outlet.stop_waiting()
    _, again = server.take(2)
    assert paused == []
    again.fail(Unavailable("nobody is there"))
    assert len(paused) == 1
    assert paused[0] > 0
    assert server.sent == []
