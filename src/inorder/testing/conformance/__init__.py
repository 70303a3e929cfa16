"""What every broker promises, as tests: inherit them, say how a broker is made, and run pytest.

    from inorder.testing.conformance import QueueConformance

    class TestMyBroker(QueueConformance):
        def make_queue(self, clock):
            return MyBroker(clock=clock)

Nothing here looks inside a broker, sleeps or skips. A docstring begins with the requirement it checks,
such as "message-queue BR-006"; tests without one check what the specifications leave open.
This package needs pytest; `inorder.testing` itself does not.
"""

import pytest

# Before they are imported: only then does a failing `assert` show the values it compared.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "case",
            "queue_basics",
            "queue_delivery",
            "queue_failures",
            "queue_input",
            "queue_limits",
            "queue_ordering",
            "queue_poison",
            "queue_replay",
            "queue_window",
        )
    )
)

from inorder.testing.conformance.case import QueueCase  # noqa: E402
from inorder.testing.conformance.queue import QueueConformance  # noqa: E402

__all__ = ["QueueCase", "QueueConformance"]
