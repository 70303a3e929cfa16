"""All that a `PubSub` promises, in one class.

    class TestMyTarget(PubSubConformance):
        def make_target(self) -> PubSub:
            return PubSub(...)

Time passes as it does for the target. If that is a manual clock, `make_target` sets `self.clock` to it,
and the tests move it; else they wait, for as short a time as `short_deadline` and `kept_deadline` allow.
"""

import pytest

# Before they are imported: only then does a failing `assert` show the values it compared.
pytest.register_assert_rewrite(
    *(
        f"inorder.testing.conformance.pubsub_{part}"
        for part in (
            "case",
            "ordering",
            "publishing",
            "handlers",
            "answers",
            "closing",
            "loops",
            "keys",
            "sharing",
            "changes",
            "misuse",
        )
    )
)

from inorder.testing.conformance.pubsub_answers import Answers, Leases  # noqa: E402
from inorder.testing.conformance.pubsub_changes import ChangedOptions, DeletedAndMadeAnew  # noqa: E402
from inorder.testing.conformance.pubsub_closing import Closing, ClosingAll, LoopsThatEndEarly  # noqa: E402
from inorder.testing.conformance.pubsub_handlers import Handlers, HandlersThatFail, SubscriberFlowControl  # noqa: E402
from inorder.testing.conformance.pubsub_keys import Gaps, Poison, Pulling, Replay  # noqa: E402
from inorder.testing.conformance.pubsub_loops import AsyncLoops, ColumnLoops, Loops  # noqa: E402
from inorder.testing.conformance.pubsub_misuse import Existence, Misuse, SubscriptionOptionsOfAHandle  # noqa: E402
from inorder.testing.conformance.pubsub_ordering import AcceptanceCriteria, BehaviourRequirements  # noqa: E402
from inorder.testing.conformance.pubsub_publishing import (  # noqa: E402
    BatchesOfAPublisher,
    KeysThatFail,
    PublisherFlowControl,
    Publishing,
)
from inorder.testing.conformance.pubsub_sharing import Sharing  # noqa: E402


class PubSubConformance(
    AcceptanceCriteria,
    BehaviourRequirements,
    Publishing,
    BatchesOfAPublisher,
    PublisherFlowControl,
    KeysThatFail,
    Handlers,
    HandlersThatFail,
    SubscriberFlowControl,
    Answers,
    Leases,
    Closing,
    ClosingAll,
    LoopsThatEndEarly,
    Loops,
    AsyncLoops,
    ColumnLoops,
    Gaps,
    Poison,
    Replay,
    Pulling,
    Sharing,
    Existence,
    SubscriptionOptionsOfAHandle,
    ChangedOptions,
    DeletedAndMadeAnew,
    Misuse,
):
    """Inherit this and say how a target is made: `make_target()`."""
