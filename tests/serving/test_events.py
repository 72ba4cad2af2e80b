"""The ledger of events: numbered without gaps, bounded, printable."""

import asyncio

from molink.report.events import EventsReport
from molink.serving.events import EVENTS_MAX, ORDERS_MAX, TEXT_CHARS_MAX, EventLedger


def ledger(count=0):
    made = EventLedger(clock=lambda: 7.0)
    for number in range(1, count + 1):
        made.add("plan", f"event {number}", ring=number)
    return made


def test_readers_get_what_is_new_and_the_number_to_ask_with():
    report = ledger(5).report(after=3)
    assert [(one.seq, one.text) for one in report.events] == [
        (4, "event 4"),
        (5, "event 5"),
    ]
    assert report.next == 5
    assert ledger(5).report(after=5) == EventsReport((), 5)


def test_old_events_go_and_numbers_stay():
    made = ledger(EVENTS_MAX + 10)
    kept = made.after(0)
    assert (kept[0].seq, kept[-1].seq, len(kept)) == (11, EVENTS_MAX + 10, EVENTS_MAX)
    assert made.counts["plan"] == EVENTS_MAX + 10


def test_a_reader_of_a_coordinator_that_ran_before_gets_everything():
    assert [event.seq for event in ledger(2).after(900)] == [1, 2]


def test_what_comes_from_nodes_is_short_and_printable():
    made = ledger()
    made.add("node_lost", "anna\x1b[2J\n" + "x" * 9000, node="anna")
    (event,) = made.after(0)
    assert event.text.startswith("anna\N{REPLACEMENT CHARACTER}[2J x")
    assert len(event.text) == TEXT_CHARS_MAX


async def test_who_waits_is_woken():
    made = ledger()
    waiting = asyncio.create_task(made.changed.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    made.add("ready", "requests are answered")
    await asyncio.wait_for(waiting, 5)


def test_no_pc_that_changes_its_state_pushes_an_order_out():
    made = EventLedger(clock=lambda: 7.0)
    made.add("node_changed", "mallory stands by", node="mallory")
    made.add("order", "anna is drained, by order of k1", node="anna")
    made.add("node_quarantined", "bert is quarantined", node="bert")
    for _ in range(3 * EVENTS_MAX):
        made.add("node_changed", "mallory is paused", node="mallory")
    kept = made.after(0)
    assert [(event.seq, event.node) for event in kept[:3]] == [
        (2, "anna"),
        (3, "bert"),
        (2 * EVENTS_MAX + 4, "mallory"),
    ]
    assert [event.seq for event in made.after(2)][:2] == [3, 2 * EVENTS_MAX + 4]
    for _ in range(2 * ORDERS_MAX):
        made.add("order", "the intake is open, by order of k1")
    assert len(made.after(0)) == EVENTS_MAX + ORDERS_MAX
