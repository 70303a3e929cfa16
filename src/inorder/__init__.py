"""inorder keeps messages in order, per key, from one Python process to a cluster."""

from inorder.client.pubsub import PubSub
from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.errors import (
    Aborted,
    AlreadyExists,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InorderError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from inorder.message import Columns, Gap, Message
from inorder.metadata import BlockedKey, Counters, Metrics, SubscriptionMetadata, TopicMetadata, Unacked, UnackedKey
from inorder.options import (
    Batching,
    DeadLetterPolicy,
    FlowControl,
    PublishOptions,
    QueueLimits,
    RetryPolicy,
    SubscriptionOptions,
    TopicOptions,
)
from inorder.pending import Pending
from inorder.pool import Autoscale, ItemError, ItemGap, Outputs, PoolMetrics, Retry, WorkerPool

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "AlreadyExists",
    "Autoscale",
    "Batching",
    "BlockedKey",
    "Columns",
    "Counters",
    "DataLoss",
    "DeadLetterPolicy",
    "DeadlineExceeded",
    "FailedPrecondition",
    "FlowControl",
    "Gap",
    "InorderError",
    "InvalidArgument",
    "ItemError",
    "ItemGap",
    "Message",
    "Metrics",
    "NotFound",
    "Outputs",
    "Pending",
    "PermissionDenied",
    "PoolMetrics",
    "PubSub",
    "PublishOptions",
    "QueueLimits",
    "ResourceExhausted",
    "Retry",
    "RetryPolicy",
    "Subscription",
    "SubscriptionMetadata",
    "SubscriptionOptions",
    "Topic",
    "TopicMetadata",
    "TopicOptions",
    "Unacked",
    "UnackedKey",
    "Unauthenticated",
    "Unavailable",
    "WorkerPool",
]
