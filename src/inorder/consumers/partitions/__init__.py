"""Partition per entity, on any transport: a topic in several ordered parts, whose number can change.

    key ──▶ slot (one of 4,096, for ever) ──▶ partition (by the routes) ──▶ topic NAME-0, NAME-1, …

The parts of this package, each of which knows only those above it:

    routes       where each slot is, was and is to go: pure
    table        the routes in the store, and the count of their changes in the broker
    router       publishes, and makes sure that a message counts where it was stored
    resizing     moves slots, step by step; anybody can take the next step
    gate         keeps from handlers what does not count
    assignment   which member has which partition: pure
    membership   the same in the store
    group        consumers that come and go
    chores       a thread while there is something to do
    topic        what users see

The protocol of a resize, in ten lines:

1. The routes are one row of the store, written only on top of the version that was read. Each change is announced in
   the topic NAME-changes; no slot is sealed before it was announced that it leaves.
2. A slot has terms, each in one partition; a message carries the number of the term for which it was published.
3. To resize is to write which slots are to go where. Those slots are *leaving*; publishers who know it hold them back.
4. A slot is *sealed* at the next position of its old partition, read after the announcement. Below it messages count.
5. A publisher sends by the routes it knows, and looks at the announcements after the broker has answered: none since
   means that the message counts; else the seal decides. What came too late is sent again, in order, for the next term.
6. A consumer checks a delivered message in the same way, and acks unhandled what came too late.
7. A slot is *open* in its new partition when every group has acked what it has below its seal, key by key.
8. Before a seal or an opening is written, a publish to NAME-flushes makes durable what it rests on: positions, acks.
9. Nobody is waited for but groups: a publisher that died, or sleeps, finds its late message void; a resize whose
   process died is continued by any member, or by the next who asks; two who do it at once agree on one row.
10. A key that never drains (parked, or retried for ever) keeps its own slot waiting; `waiting` names it, and `skip`,
    `resume_key`, `cancel_resize` or deleting the group ends it. A slot that stays after all opens where it is.
"""

from inorder.consumers.partitions.group import Group, Member
from inorder.consumers.partitions.resizing import SlotWait
from inorder.consumers.partitions.topic import PartitionedTopic

__all__ = ["Group", "Member", "PartitionedTopic", "SlotWait"]
