"""Terms of slots and shares of members: pure values, so a test is a value and a step."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.consumers.partitions.assignment import Roster
from inorder.consumers.partitions.routes import Routes, Term
from inorder.errors import FailedPrecondition, ForeignState
from inorder.options import SLOTS
from inorder.patterns.partitioning import rebalanced


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
    slot = next(slot for slot in range(SLOTS) if len(there_and_back.route(slot).terms) == 3)
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
    reopened = sealed.opened([slot for slots in sealed.staying().values() for slot in slots])
    assert not reopened.moving
    assert reopened.owners == new().owners


def test_shrinking_moves_only_the_slots_of_the_partitions_that_go() -> None:
    planned = new(5).resized(4)
    assert {*planned.leaving()} == {4}
    assert resized(new(5), 4).live == [0, 1, 2, 3]


def test_slots_that_come_to_have_the_same_route_share_it() -> None:
    first = new(2).resized(3).sealed({0: 7})  # slots 1,365 to 2,047 leave 0 for 2
    both = first.resized(4).sealed({0: 7})  # and so do 1,024 to 1,364
    assert {*both.of_slot[1024:2048]} == {both.of_slot[1024]}
    assert both.route(1024) == (((0, 0, 7),), 2)


def test_few_routes_are_kept_however_many_slots_there_are() -> None:
    assert len(resized(resized(new(4), 7), 4).distinct) <= 4 * 7


def test_routes_of_a_form_that_is_not_known_are_refused() -> None:
    with pytest.raises(ForeignState, match="it is of form 1, and form 2 is read"):
        Routes.load(b'{"histories": [], "history of slot": [], "wanted": []}', 0)


class EachSlot:
    """What `Routes` should say, slot by slot."""

    def __init__(self, count: int) -> None:
        self.terms = [[Term(0, slot * count // SLOTS, None)] for slot in range(SLOTS)]
        self.wanted = [slot * count // SLOTS for slot in range(SLOTS)]

    def owners(self) -> tuple[int, ...]:
        return tuple(terms[-1].partition for terms in self.terms)

    def slots(self, *, move: bool, sealed: bool) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for slot, (terms, wanted) in enumerate(zip(self.terms, self.wanted, strict=True)):
            if (terms[-1].partition != wanted) == move and (terms[-1].until is not None) == sealed:
                found.setdefault(terms[-1].partition, []).append(slot)
        return found

    def resize(self, count: int) -> None:
        self.wanted = [*rebalanced(self.owners(), count)]

    def cancel(self) -> None:
        self.wanted = [*self.owners()]

    def seal(self, positions: Mapping[int, int]) -> None:
        for partition, slots in self.slots(move=True, sealed=False).items():
            for slot in slots if partition in positions else ():
                self.terms[slot][-1] = self.terms[slot][-1]._replace(until=positions[partition])

    def open(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.terms[slot].append(Term(self.terms[slot][-1].number + 1, self.wanted[slot], None))


STEPS = st.one_of(
    st.tuples(st.just("resize"), st.integers(1, 9)),
    st.tuples(st.just("cancel"), st.none()),
    st.tuples(st.just("seal"), st.dictionaries(st.integers(0, 8), st.integers(1, 3), min_size=1)),
    st.tuples(st.just("open"), st.integers(1, 3)),
)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.lists(STEPS, min_size=3, max_size=10))
def test_routes_say_of_each_slot_what_its_own_history_says(count: int, steps: list[tuple[str, Any]]) -> None:
    routes, model = new(count), EachSlot(count)
    for step, how in steps:
        if step == "resize":
            model.resize(how)
            routes = routes.resized(how)
        elif step == "cancel":
            model.cancel()
            routes = routes.cancelled()
        elif step == "seal":
            model.seal(how)
            routes = routes.sealed(how)
        else:  # all that are sealed, or some
            sealed = [*routes.draining().values(), *routes.staying().values()]
            some = [slot for slots in sealed for slot in slots][::how]
            model.open(some)
            routes = routes.opened(some)
    assert routes.owners == model.owners()
    assert routes.shares == dict(sorted(Counter(model.owners()).items()))
    assert routes.live == sorted({*model.owners(), *model.wanted})
    assert routes.leaving() == model.slots(move=True, sealed=False)
    assert routes.draining() == model.slots(move=True, sealed=True)
    assert routes.staying() == model.slots(move=False, sealed=True)
    assert [*map(routes.route, range(SLOTS))] == [
        (tuple(terms), wanted) for terms, wanted in zip(model.terms, model.wanted, strict=True)
    ]
    assert len({*routes.distinct}) == len(routes.distinct)
    assert Routes.load(routes.dump(), 0) == routes


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
