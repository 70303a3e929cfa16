"""All that a broker promises, in one class."""

from inorder.testing.conformance.queue_basics import TopicsAndSubscriptions
from inorder.testing.conformance.queue_delivery import Delivery
from inorder.testing.conformance.queue_failures import Backoff, DeadLetters
from inorder.testing.conformance.queue_input import BadInput
from inorder.testing.conformance.queue_limits import FlowControlLimits, QueueCapacity, Retention
from inorder.testing.conformance.queue_ordering import Ordering
from inorder.testing.conformance.queue_poison import Poison
from inorder.testing.conformance.queue_replay import Changing, Filtering, Numbers, Seeking
from inorder.testing.conformance.queue_window import Window


class QueueConformance(
    TopicsAndSubscriptions,
    Delivery,
    Ordering,
    Window,
    FlowControlLimits,
    QueueCapacity,
    Retention,
    Backoff,
    DeadLetters,
    Poison,
    Seeking,
    Filtering,
    Changing,
    Numbers,
    BadInput,
):
    """Inherit this and say how a broker is made: `make_queue(clock)`."""
