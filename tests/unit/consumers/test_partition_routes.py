"""Terms of slots and shares of members: pure values, so a test is a value and a step."""

import pytest

from inorder.consumers.partitions.assignment import Roster
from inorder.consumers.partitions.routes import Routes
from inorder.errors import FailedPrecondition
from inorder.options import SLOTS


def new(count: int = 4) -> Routes:
    return Routes.new(count, strict=False, origin="here")


def resized(before: Routes, count: int, position: int = 100) -> Routes:
    """The routes after a resize from beginning to end; all partitions stand at one position."""
    planned = before.resized(count)
    sealed = planned.sealed(dict.fromkeys(planned.leaving(), position))
    return sealed.opened([slot for slots in sealed.draining().values() for slot in slots])


def test_slots_that_need_not_move_keep_their_term_through_a_resize() -> None:
    before, planned = new(), new().resized(5)
    moving = {slot for slots in planned.leaving().values() for slot in slots}
    assert 0 < len(moving) <= SLOTS // 5 + 1
    for slot in range(SLOTS):
        assert (planned.open_term(slot) == before.open_term(slot)) == (slot not in moving)


def test_a_slot_that_leaves_is_published_to_again_only_when_it_was_opened() -> None:
    planned = new().resized(5)
    [(source, slots), *_] = planned.leaving().items()
    slot = slots[0]
    assert planned.open_term(slot) is None
    sealed = planned.sealed({source: 7})
    assert sealed.open_term(slot) is None
    opened = sealed.opened([slot])
    assert opened.open_term(slot) == (1, 4, None)
    assert opened.moving
    assert resized(new(), 5).live == [0, 1, 2, 3, 4]
    assert not resized(new(), 5).moving


def test_what_is_stored_below_the_seal_counts_and_nothing_else() -> None:
    planned = new().resized(5)
    [(source, slots), *_] = planned.leaving().items()
    assert planned.judge(slots[0], 0, 3) == "undecided"
    sealed = planned.sealed({source: 7})
    assert [sealed.judge(slots[0], 0, position) for position in (6, 7, 8)] == ["counts", "void", "void"]


def test_a_message_of_an_old_term_does_not_count_in_a_later_one_of_the_same_partition() -> None:
    there_and_back = resized(resized(new(4), 8, position=10), 4, position=20)
    slot = next(slot for slot in range(SLOTS) if len(there_and_back.terms[slot]) == 3)
    assert there_and_back.judge(slot, 0, 30) == "void"
    assert there_and_back.judge(slot, 2, 30) == "counts"


def test_a_term_that_never_was_is_an_error_and_no_verdict() -> None:
    with pytest.raises(FailedPrecondition, match=r"slot 3 never had a term 9"):
        new().judge(3, 9, 0)


def test_a_cancelled_resize_leaves_slots_where_they_are() -> None:
    planned = new().resized(5)
    assert planned.cancelled() == new()
    sealed = planned.sealed(dict.fromkeys(planned.leaving(), 7)).cancelled()
    assert sealed.owners == new().owners
    assert not sealed.draining()
    reopened = sealed.opened(sealed.staying())
    assert not reopened.moving
    assert reopened.owners == new().owners


def test_shrinking_moves_only_the_slots_of_the_partitions_that_go() -> None:
    planned = new(5).resized(4)
    assert {*planned.leaving()} == {4}
    assert resized(new(5), 4).live == [0, 1, 2, 3]


def test_routes_survive_as_bytes() -> None:
    routes = resized(new(), 5).resized(2).with_group("billing", {"ack_deadline_seconds": 10})
    assert Routes.load(routes.dump(), 0) == routes
    assert len(routes.dump()) < 100_000


# -- members ---------------------------------------------------------------------------------------


def joined(*members: str, partitions: int = 8) -> Roster:
    """Members that came one after the other, each of whom took what was free."""
    roster = Roster()
    for member in members:
        roster = roster.heard(member, range(partitions), 0, 100)
    return roster


def settled(roster: Roster, partitions: int = 8) -> Roster:
    """What has to be given is given, and taken by whose it should be."""
    for member in roster.until_us:
        roster = roster.given(member, roster.to_give(member, range(partitions)))
    for member in roster.until_us:
        roster = roster.heard(member, range(partitions), 0, 100)
    return roster


@pytest.mark.parametrize("count", range(1, 10))
def test_partitions_are_shared_evenly(count: int) -> None:
    """ordering-in-event-driven-systems Partition per entity: several consumers process different partitions."""
    members = [f"m{number}" for number in range(count)]
    roster = settled(joined(*members))
    shares = [len(roster.held_by(member)) for member in members]
    assert sum(shares) == 8
    assert max(shares) - min(shares) <= 1


def test_a_new_member_gets_nothing_before_somebody_gave_it() -> None:
    """ordering-in-event-driven-systems Partition per entity: one consumer per partition, also while they change."""
    roster = joined("a", "b")
    assert roster.held_by("a") == {*range(8)}
    assert roster.held_by("b") == set()
    given = roster.to_give("a", range(8))
    assert len(given) == 4
    assert roster.given("a", given).heard("b", range(8), 0, 100).held_by("b") == given


def test_few_partitions_change_hands() -> None:
    before = settled(joined("a", "b", "c"))
    after = settled(before.heard("d", range(8), 0, 100))
    moved = [partition for partition in range(8) if before.holders[partition] != after.holders[partition]]
    assert len(moved) == 2


def test_what_a_silent_member_had_is_free_after_its_session() -> None:
    roster = settled(joined("a", "b"))
    assert roster.heard("b", range(8), 99, 199).held_by("b") == roster.held_by("b")
    assert roster.heard("b", range(8), 100, 200).held_by("b") == {*range(8)}


def test_a_member_that_leaves_leaves_its_partitions_to_others() -> None:
    roster = settled(joined("a", "b")).without("a")
    assert roster.heard("b", range(8), 0, 100).held_by("b") == {*range(8)}


def test_a_partition_that_is_gone_is_given_back() -> None:
    roster = joined("a")
    assert roster.to_give("a", range(3)) == {3, 4, 5, 6, 7}


def test_more_members_than_partitions_leave_some_with_nothing() -> None:
    roster = settled(joined("a", "b", "c", partitions=2), partitions=2)
    assert sorted(len(roster.held_by(member)) for member in "abc") == [0, 1, 1]


def test_a_roster_survives_as_bytes() -> None:
    roster = settled(joined("a", "b"))
    assert Roster.load(roster.dump()) == roster
