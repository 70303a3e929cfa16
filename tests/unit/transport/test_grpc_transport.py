"""A connection in a process that has forked."""

import os
import signal
import threading

from inorder import PubSub
from inorder.errors import Closed


def test_a_forked_process_closes_a_connection_of_its_parent_whatever_threads_of_that_hold() -> None:
    pubsub = PubSub("grpc://127.0.0.1:1")
    transport = pubsub._connection.transport
    held, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        with transport._lock, transport._outlets._lock:  # type: ignore[attr-defined]
            held.set()
            goes_on.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if not child:
        try:
            signal.alarm(20)
            answers = [
                pubsub.topic("orders").publish_message(b"1").exception(5),
                pubsub.subscription("worker").pull().exception(5),
            ]
            pubsub.close().result(5)
            os._exit(not all(isinstance(answer, Closed) and "fork" in str(answer) for answer in answers))
        finally:
            os._exit(1)
    goes_on.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
    pubsub.close().result(5)
