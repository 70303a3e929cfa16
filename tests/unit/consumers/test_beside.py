"""What is done beside something else: handed over, waited for, and never forgotten."""

import threading

import pytest

from inorder.consumers.beside import Beside


def test_what_is_started_goes_on_beside_its_owner_and_is_waited_for() -> None:
    beside, go_on, done = Beside("beside"), threading.Event(), list[str]()

    def work() -> None:
        assert go_on.wait(30)
        done.append(threading.current_thread().name)

    for turn in (1, 2):
        go_on.clear()
        beside.start(work)
        assert beside.is_started
        assert len(done) == turn - 1
        go_on.set()
        beside.finish()
        assert not beside.is_started
        assert done == ["beside"] * turn
    beside.close()
    assert "beside" not in [thread.name for thread in threading.enumerate()]
    beside.close()


def test_what_it_raises_is_raised_where_it_is_waited_for() -> None:
    beside, done = Beside("beside"), list[int]()
    for error in (ValueError("no"), SystemExit(3)):

        def fail(error: BaseException = error) -> None:
            raise error

        beside.start(fail)
        with pytest.raises(type(error)):
            beside.finish()
    beside.start(lambda: done.append(1))
    beside.finish()
    assert done == [1]
    beside.close()


def test_where_no_thread_can_be_started_it_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    beside, done = Beside("beside"), list[int]()
    beside.start(lambda: done.append(1))
    assert done == [1]
    beside.finish()

    def fail() -> None:
        raise ZeroDivisionError

    beside.start(fail)
    with pytest.raises(ZeroDivisionError):
        beside.finish()
    beside.close()
