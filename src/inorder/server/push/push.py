"""One subscription that is pushed: its messages go to the endpoint, each in a request of its own.

How many requests are under way at once is found out: few at first, one more for each that succeeds soon, half as many
when some fail, and after several rounds that failed none at all for a while. A message that failed rests before it
comes again, longer each time, and its key with it: by the retry policy, or else as Google does without one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from inorder.broker import MessageQueue
from inorder.errors import InorderError
from inorder.message import SIZE, Leased, Message
from inorder.options import MAX_ACK_DEADLINE_SECONDS, SubscriptionOptions
from inorder.server.desk import Desk
from inorder.server.push.config import PushTarget
from inorder.server.push.http import PROCESSING, HttpClient, NoAnswer
from inorder.server.push.payload import request_of
from inorder.server.resources import push_target
from inorder.server.status import Refusal

ACKED = {PROCESSING, 200, 201, 202, 204}  # every other status is a nack
FIRST_WINDOW = 4
MAX_WINDOW = 200
SOON_SECONDS = 1.0  # an endpoint that takes longer gets no more at once
MAX_OUT = 2_000  # messages that are being sent or rest
MAX_BYTES = 100_000_000  # of those that are being sent
REST_SECONDS = (0.1, 60.0)  # after the first failure, and at most
SPARE_SECONDS = 5.0  # by which a lease outlives the request, whose end is what counts

_log = logging.getLogger(__name__)


class Push:
    """Takes from the desk as long as the subscription has an endpoint. Lives on one loop."""

    pushes = True
    once = False
    own = False

    def __init__(
        self, broker: MessageQueue, name: str, resource: str, desk: Desk, http: HttpClient, ended: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._name = name
        self._resource = resource
        self.desk = desk
        self._http = http
        self._ended = ended
        self.consumer = desk.consumer()
        self._options: SubscriptionOptions | None = None  # of which is known where to send
        self._target: PushTarget | None = None
        self._window = FIRST_WINDOW
        self._sending: dict[int, asyncio.Task[None]] = {}  # by lease
        self._bytes = 0
        self._resting: dict[int, asyncio.TimerHandle] = {}
        self._round = 0  # grows when the window shrinks: what was sent before says nothing new
        self._failed_rounds = 0  # since the last success
        self._pause: asyncio.TimerHandle | None = None
        self._finishing = False
        self._over = False

    # -- for the desk ------------------------------------------------------------------------------

    def room(self) -> tuple[int, int]:
        if self._pause is not None or self._finishing or self._over:
            return 0, 0
        out = len(self._sending)
        return min(self._window - out, MAX_OUT - out - len(self._resting)), MAX_BYTES - self._bytes

    def alone(self) -> bool:
        return not self._sending

    def give(self, leased: Leased) -> None:
        options = self.desk.options
        if options is not None and options is not self._options:
            self._options, self._target = options, push_target(options)
        seconds = min(self.desk.ack_deadline_seconds, MAX_ACK_DEADLINE_SECONDS - SPARE_SECONDS)
        self._broker.extend(self._name, leased.leases, seconds + SPARE_SECONDS)
        for message in leased.messages(self.consumer):
            self._bytes += message._record[SIZE]
            self._sending[message._lease] = asyncio.create_task(self._send(message, seconds))

    def freed(self, lease: int, size: int) -> None:
        """What is under way is known here."""

    def held(self) -> Sequence[int]:
        return ()

    def end(self, error: Exception) -> None:
        if isinstance(error, Refusal):  # it is deleted, detached or pulled, or the server stops
            self.stop()
            return
        # Messages could not be read, perhaps only now, and here is no client that would ask for them again.
        self._slow_down(f"its messages cannot be taken: {error}")
        self._rest()

    # -- requests ----------------------------------------------------------------------------------

    async def _send(self, message: Message, seconds: float) -> None:
        lease, sent_in = message._lease, self._round
        problem = ""
        try:
            assert self._target is not None
            attempt = message.delivery_attempt if self.desk.counts_attempts else None
            headers, body = request_of(message, self._target, self._resource, attempt)
            began = asyncio.get_running_loop().time()
            async with asyncio.timeout(seconds):
                status = await self._http.post(self._target.endpoint, headers, body)
            if status not in ACKED:
                problem = f"status {status}"
            elif asyncio.get_running_loop().time() - began < SOON_SECONDS:
                self._window = min(self._window + 1, MAX_WINDOW)
        except TimeoutError:
            problem = f"no answer within {seconds:g} seconds"
        except NoAnswer as error:
            problem = str(error)
        finally:
            self._sending.pop(lease, None)
            self._bytes -= message._record[SIZE]
        with suppress(InorderError):  # the broker was closed meanwhile: the message comes again
            if problem:
                self._failed(message, sent_in, problem)
            else:
                self._succeeded(lease)

    def _succeeded(self, lease: int) -> None:
        self._failed_rounds = 0
        self._broker.settle(self._name, [lease], ())
        self._broker.written()
        self.desk.settled([lease], failed=False)

    def _failed(self, message: Message, sent_in: int, problem: str) -> None:
        if sent_in == self._round:
            self._slow_down(problem)
            if self._failed_rounds > 1:
                self._rest()
        if self._finishing or (self._options is not None and self._options.retry_policy is not None):
            self._give_back(message._lease)
            return
        rest = _rest_seconds(message.delivery_attempt)
        self._broker.extend(self._name, [message._lease], rest + SPARE_SECONDS)
        self._resting[message._lease] = asyncio.get_running_loop().call_later(rest, self._rested, message._lease)

    def _slow_down(self, problem: str) -> None:
        self._round += 1
        self._failed_rounds += 1
        self._window = max(self._window // 2, 1)
        if self._failed_rounds == 1:
            _log.warning("a push of subscription %r failed: %s", self._name, problem)

    def _rest(self) -> None:
        """Send nothing more for a while."""
        if self._pause is None:
            seconds = _rest_seconds(max(self._failed_rounds - 1, 1))
            self._pause = asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self.desk.ask()

    def _rested(self, lease: int) -> None:
        del self._resting[lease]
        with suppress(InorderError):
            self._give_back(lease)

    def _give_back(self, lease: int) -> None:
        self._broker.settle(self._name, (), [lease])
        self._broker.written()
        self.desk.settled([lease], failed=True)

    def finish(self) -> None:
        """Begin nothing more. What is being sent may still be answered; what rests goes back now."""
        self._finishing = True
        for lease, timer in tuple(self._resting.items()):
            timer.cancel()
            self._rested(lease)

    def stop(self) -> Sequence[asyncio.Task[None]]:
        """Send no more. What is under way comes again, without blame; the requests end in a moment."""
        if self._over:
            return ()
        self._over = True
        sending = tuple(self._sending.values())
        leases = [*self._sending, *self._resting]
        for task in sending:
            task.cancel()
        for timer in (*self._resting.values(), *([self._pause] if self._pause else [])):
            timer.cancel()
        self._resting.clear()
        with suppress(InorderError):
            self._broker.release(self._name, leases, self.consumer)
        self.desk.leave(self)
        self._ended()
        return sending


def _rest_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row."""
    shortest, longest = REST_SECONDS
    return min(shortest * 2.0 ** min(failures - 1, 30), longest)
