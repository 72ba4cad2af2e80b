"""The ledger of a cell, message by message."""

from dataclasses import replace

import pytest

from molink_scheduler.cell.actions import AskLender, Reason, Recall, Refuse, Swap, VoidLeases
from molink_scheduler.cell.events import CellLink, DeviceGone, Tick
from molink_scheduler.cell.leases import Lease
from molink_scheduler.cell.ledger import ANSWER_S, STEADY_S, CellLedger
from molink_scheduler.cell.quotas import Quotas
from tests.scheduler.cell.cell_parts import ALL_FREE, NEAR, Cell, cell_of, facts, trio


def refusal(actions) -> Refuse:
    [found] = [one for one in actions if isinstance(one, Refuse)]
    return found


def test_a_lease_counts_once_the_lender_has_answered_and_not_before():
    cell = cell_of(a=facts("b"), b=facts("a"))
    [ask] = cell.want("a", 30)
    assert [(one.lender, one.blocks) for one in ask.offers] == [("b", 30)]
    assert cell.ledger.capacity_blocks("a") == 100
    cell.answer("a", cell.lease(ask), room=70)
    assert cell.ledger.capacity_blocks("a") == 130
    assert cell.ledger.capacity_blocks("b") == 70


def test_what_was_lent_is_free_by_the_words_of_both():
    """The debtor has given it back once it says so, and the lender has it once it reports so."""
    cell = cell_of(a=facts("b"), b=facts("a"))
    lease = cell.lend("a", "b", 30)
    cell.report("b", lease)
    assert cell.want("b", 10) == [Recall("a", lease.number, 20)]
    assert (cell.ledger.capacity_blocks("a"), cell.ledger.lent_bytes("b")) == (130, 30)
    cell.give_back("b", lease.number, 0)  # The lender has no say in it.
    assert cell.ledger.capacity_blocks("a") == 130
    cell.give_back("a", lease.number, 20)
    assert (cell.ledger.capacity_blocks("a"), cell.ledger.lent_bytes("b")) == (120, 30)
    cell.report("b", lease.with_blocks(20))
    assert cell.ledger.lent_bytes("b") == 20
    assert cell.ledger.capacity_blocks("b") == 80


def test_what_was_lent_is_called_back_before_anything_is_borrowed():
    cell = trio()
    lease = cell.lend("a", "b", 30)
    [recall, ask] = cell.want("b", 50)
    assert recall == Recall("a", lease.number, 0)
    assert isinstance(ask, AskLender)
    assert ask.blocks == 20
    assert not cell.want("b", 50)


def test_a_recall_that_was_lost_is_said_again():
    cell = trio()
    lease = cell.lend("a", "b", 30)
    recalls = cell.want("b", 10)
    cell.now += ANSWER_S / 2
    assert not cell.tell(Tick())
    cell.now += ANSWER_S / 2
    assert cell.tell(Tick()) == recalls
    cell.give_back("a", lease.number, 20)
    cell.now += ANSWER_S
    assert not cell.tell(Tick())


def test_candidates_go_by_cost_then_room_then_name():
    far = CellLink(1e-3, 1e9)
    devices = {name: facts("a") for name in "bcdef"}
    devices["c"] = facts("a", memory=90)
    devices["d"] = facts("a", attend_bytes_per_s=2e6)
    a = facts(links={name: far if name == "b" else NEAR for name in "bcdef"}, memory=0)
    [ask] = cell_of(a=a, **devices).want("a", 80)
    assert [one.lender for one in ask.offers] == ["d", "e", "f"]


@pytest.mark.parametrize(
    ("blocks", "reason", "words"),
    [
        (0, Reason.NOT_A_COUNT, "0 blocks cannot"),
        (-1, Reason.NOT_A_COUNT, "-1 blocks cannot"),
        (2**40, Reason.MORE_THAN_THE_CELL, "have 2e-07 GB together"),
    ],
)
def test_impossible_numbers_of_blocks_are_refused_with_the_figure(blocks, reason, words):
    cell = cell_of(a=facts("b"), b=facts("a"))
    refused = refusal(cell.want("a", blocks))
    assert refused.reason is reason
    assert words in refused.sentence


def test_a_device_without_a_stage_borrows_nothing():
    cell = cell_of(a=facts("b", block=0), b=facts("a"))
    assert refusal(cell.want("a", 5)).reason is Reason.NOT_A_COUNT
    assert cell.ledger.capacity_blocks("a") == 0


def test_refusals_say_why_and_how_much():
    cell = cell_of(a=facts("b"), b=facts("a", used_bytes=100))
    refused = refusal(cell.want("a", 5))
    assert (refused.reason, refused.figure) == (Reason.NO_ROOM, 0)
    cell = cell_of(a=facts("b"), b=facts("a"))
    assert refusal(cell.want("a", 5, slower_s=50e-6)).sentence.startswith("A step may take 0.05 ms")
    cell = cell_of(a=facts(links={"b": CellLink(2e-3, 1e9)}), b=facts("a"))
    assert refusal(cell.want("a", 5)).reason is Reason.NO_LENDER


def test_what_is_borrowed_already_counts_against_the_time_that_is_borne():
    cell = cell_of(a=facts("b"), b=facts("a"))
    borne_s = 101e-6 + 50e-6  # The link, and attention to 50 blocks of a byte.
    cell.lend("a", "b", 30)
    assert refusal(cell.want("a", 30, slower_s=borne_s)).reason is Reason.TOO_SLOW
    [ask] = cell.want("a", 30, slower_s=2 * borne_s)
    assert ask.offers[0].blocks == 30


@pytest.mark.parametrize("blocks", [-1, 31, 2**40])
def test_a_lease_that_was_not_offered_is_none(blocks):
    cell = cell_of(a=facts("b"), b=facts("a"))
    [ask] = cell.want("a", 30)
    void, refused = cell.answer("a", cell.lease(ask, blocks=blocks))
    assert void == VoidLeases("a", ((ask.offers[0].lease, 0),))
    assert (refused.reason, refused.figure) == (Reason.BAD_LEASE, blocks)
    assert cell.ledger.capacity_blocks("a") == 100


def test_a_report_of_a_lease_of_no_blocks_is_void():
    cell = cell_of(a=facts("b"), b=facts("a"))
    for blocks in (0, -1):
        lease = Lease(7, "a", 1, "b", 1, blocks, 1)
        assert cell.report("a", lease, asked_up_to=7) == [VoidLeases("a", ((7, 0),))]
        assert cell.ledger.capacity_blocks("a") == 100


def test_two_that_ask_one_lender_at_once_are_both_answered_by_it():
    """The first has the room; the ledger counts what it is told, whoever is told first."""
    cell = trio()
    cell.report("c", used_bytes=100)
    cell.report("a", used_bytes=100)
    [first], [second] = cell.want("a", 60), cell.want("c", 60)
    assert {first.offers[0].lender, second.offers[0].lender} == {"b"}
    assert not cell.answer("c", cell.lease(second, blocks=40), room=0)
    assert not cell.answer("a", cell.lease(first), room=40)
    assert cell.ledger.lent_bytes("b") == 100
    cell.now += ANSWER_S
    assert refusal(cell.want("a", 5)).reason is Reason.NO_ROOM


def test_a_refusal_lowers_the_room_that_the_lender_is_thought_to_have():
    cell = cell_of(a=facts("b"), b=facts("a"))
    [ask] = cell.want("a", 60)
    assert not cell.answer("a", cell.lease(ask, blocks=0), room=3)
    cell.report("a", asked_up_to=ask.offers[-1].lease)
    [again] = cell.want("a", 60)
    assert again.offers[0].blocks == 3
    cell.report("a", asked_up_to=again.offers[-1].lease)
    cell.report("b")
    assert cell.want("a", 60)[0].offers[0].blocks == 60


def test_an_answer_of_an_old_incarnation_is_not_believed():
    cell = cell_of(a=facts("b"), b=facts("a"))
    [ask] = cell.want("a", 30)
    lease = cell.lease(ask)
    cell.incarnation["b"], cell.sent["b"] = 2, 0
    cell.report("b")
    void, refused = cell.answer("a", lease, room=70)
    assert void == VoidLeases("a", ((lease.number, 0),))
    assert refused.reason is Reason.BAD_LEASE
    assert cell.ledger.capacity_blocks("a") == 100
    assert cell.report("a", lease, asked_up_to=lease.number) == [void]
    assert cell.ledger.capacity_blocks("a") == 100


@pytest.mark.parametrize("incarnation", [0, 2])
def test_an_answer_of_another_process_than_was_asked_is_not_believed(incarnation):
    cell = cell_of(a=facts("b"), b=facts("a"))
    [ask] = cell.want("a", 30)
    lease = replace(cell.lease(ask), lender_incarnation=incarnation)
    assert refusal(cell.answer("a", lease, room=70)).reason is Reason.BAD_LEASE
    assert cell.ledger.capacity_blocks("a") == 100


def test_an_answer_of_another_lender_than_was_offered_is_not_believed():
    cell = trio()
    [ask] = cell.want("a", 30)
    other = {offer.lender for offer in ask.offers} - {ask.offers[0].lender}
    lease = replace(cell.lease(ask), lender=other.pop())
    assert refusal(cell.answer("a", lease, room=70)).reason is Reason.BAD_LEASE
    assert cell.ledger.capacity_blocks("a") == 100


def test_a_new_ledger_believes_no_lease_of_a_lender_that_has_started_again():
    cell = Cell(facts={"a": facts("b"), "b": facts("a")}, incarnation={"b": 2})
    cell.report("b")
    lease = Lease(7, "a", 1, "b", 1, 30, 1)
    assert cell.report("a", lease, asked_up_to=7) == [VoidLeases("a", ((7, 0),))]
    assert cell.ledger.capacity_blocks("a") == 100


def test_messages_of_an_old_process_and_older_ones_of_this_one_are_nothing():
    cell = cell_of(a=facts("b"), b=facts("a"))
    lease = cell.lend("a", "b", 30)
    cell.sent["a"] -= 2
    assert not cell.report("a", asked_up_to=99)
    assert cell.ledger.capacity_blocks("a") == 130
    cell.sent["a"] += 5
    cell.incarnation["a"] = 0
    assert not cell.give_back("a", lease.number, 0)
    assert not cell.report("a", asked_up_to=99)
    assert cell.ledger.capacity_blocks("a") == 130


def test_the_leases_of_a_lender_that_started_again_are_void():
    cell = cell_of(a=facts("b"), b=facts("a"))
    lease = cell.lend("a", "b", 30)
    cell.incarnation["b"], cell.sent["b"] = 2, 0
    assert cell.report("b") == [VoidLeases("a", ((lease.number, 0),))]
    assert cell.ledger.capacity_blocks("a") == 100
    assert cell.report("a", lease) == [VoidLeases("a", ((lease.number, 0),))]


def test_what_a_debtor_owed_that_is_gone_is_free_and_stays_so():
    cell = cell_of(a=facts("b"), b=facts("a"))
    lease = cell.lend("a", "b", 30)
    cell.report("b", lease)
    void = (lease.number, 0)
    assert cell.tell(DeviceGone("a")) == [VoidLeases("b", (void,))]
    assert cell.report("b", lease) == [VoidLeases("b", (void,))]
    assert cell.report("a", lease) == [VoidLeases("a", (void,))], "it was away, and comes back"


def test_a_device_that_comes_and_goes_each_minute_lends_nothing():
    cell = cell_of(a=facts("b", "c"), b=facts("a"), c=facts("a", attend_bytes_per_s=1e5))
    for _ in range(5):
        cell.tell(DeviceGone("b"))
        cell.now += 60
        cell.report("b")
        [ask] = cell.want("a", 5)
        assert [one.lender for one in ask.offers] == ["c"]
        cell.report("a", asked_up_to=ask.offers[-1].lease)
    cell.now += STEADY_S
    [ask] = cell.want("a", 5)
    assert [one.lender for one in ask.offers] == ["b", "c"]


def test_a_lease_of_which_only_the_lender_tells_is_void_once_its_debtor_must_know():
    cell = cell_of(a=facts("b"), b=facts("a"))
    [ask] = cell.want("a", 30)
    lease = cell.lease(ask)
    assert not cell.report("b", lease), "the debtor may tell it yet"
    cell.report("a", asked_up_to=lease.number)
    assert cell.report("b", lease) == [VoidLeases("b", ((lease.number, 0),))]


def test_a_lender_that_missed_what_came_back_is_told():
    cell = cell_of(a=facts("b"), b=facts("a"))
    lease = cell.lend("a", "b", 30)
    cell.give_back("a", lease.number, 12)
    assert cell.report("b", lease) == [VoidLeases("b", ((lease.number, 12),))]


def test_a_ledger_that_starts_anew_knows_all_after_reports():
    cell = trio()
    lease = cell.lend("a", "b", 30)
    cell.ledger = CellLedger(quotas=ALL_FREE)
    assert not cell.report("b", lease)
    assert not cell.report("a", lease, asked_up_to=lease.number)
    assert not cell.report("c")
    assert cell.ledger.capacity_blocks("a") == 130
    assert cell.want("c", 5)[0].offers[0].lease > lease.number


def test_a_quota_that_became_smaller_calls_back_the_newest():
    cell = trio()
    old, new = Lease(1, "a", 1, "b", 1, 30, 1), Lease(2, "c", 1, "b", 1, 40, 1)
    cell.report("a", old, asked_up_to=1)
    cell.report("c", new, asked_up_to=2)
    cell.report("b", old, new, used_bytes=50)
    assert cell.tell(Tick()) == [Recall("c", new.number, 20)]
    assert not cell.tell(Tick())


def test_a_lender_offers_what_its_own_step_can_bear():
    """A tenth of its step of 2 ms, at 100 kB/s: 20 bytes."""
    busy = facts("a", step_s=2e-3, attend_bytes_per_s=1e5)
    cell = cell_of(a=facts("b"), b=busy)
    [ask] = cell.want("a", 60)
    assert ask.offers[0].blocks == 20
    cell.answer("a", cell.lease(ask), room=0)
    cell.report("a", cell.lease(ask), asked_up_to=ask.offers[-1].lease)
    cell.report("b", cell.lease(ask))
    assert refusal(cell.want("a", 60)).reason is Reason.NO_ROOM


def test_half_of_what_is_free_is_offered_unless_said_otherwise():
    cell = Cell(CellLedger(), facts={"a": facts("b"), "b": facts("a", used_bytes=40)})
    cell.report("a"), cell.report("b")
    assert cell.want("a", 60)[0].offers[0].blocks == 30
    assert Quotas().memory_share == 0.5


def test_a_cycle_of_debts_is_swapped_once_and_never_grows():
    cell = trio()
    sides = (("a", "b", 30), ("b", "c", 20), ("c", "a", 25))
    leases = [Lease(at, a, 1, b, 1, blocks, 1) for at, (a, b, blocks) in enumerate(sides)]
    for lease in leases:
        assert not cell.report(lease.debtor, lease, asked_up_to=lease.number)
    [swap] = cell.tell(Tick())
    assert isinstance(swap, Swap)
    assert {one.lease: one.blocks_left for one in swap.recalls} == {
        0: 10,
        1: 0,
        2: 5,
    }
    assert not cell.tell(Tick()), "it is under way"
    for recall in swap.recalls:
        cell.give_back(recall.debtor, recall.lease, recall.blocks_left)
    assert {one.number: one.blocks for one in cell.ledger.book} == {0: 10, 2: 5}
