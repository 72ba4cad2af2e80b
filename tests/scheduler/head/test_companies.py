"""Who departs with whom where drafters are asked: companies, guesses and widths."""

from molink_scheduler.batch import Span
from molink_scheduler.drafting.asks import Draft, DraftAsk, Drafted
from molink_scheduler.drafting.proposals import COPY
from molink_scheduler.events import (
    Refuse,
    RequestCancelled,
    RequestSubmitted,
    RunBatch,
)
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.token_ids import token_bytes
from tests.scheduler.head.test_drafts import Head, asked


def begun_together(head: Head, *request_ids: int) -> list[DraftAsk]:
    """Requests whose prompts came back together, with a token each; what the head asks then."""
    for one in request_ids:
        head.told(RequestSubmitted(Request(one, token_bytes((1, 2, one)), SamplingParams(40))))
    run = head.run()
    assert len(run.batch.spans) == len(request_ids)
    return asked(head.back(run, *((one, 100) for one in request_ids)))


def members(run: RunBatch | None) -> list[int]:
    return [span.request_id for span in run.batch.spans] if run is not None else []


def test_who_came_back_together_departs_together():
    """Also who has no draft: alone they would leave with others, and stay with them."""
    head = Head()
    head.core.micro_batches.count = 1
    assert len(begun_together(head, 1, 2, 3)) == 3
    for one in (1, 3):
        head.draft(4, 7, request_id=one)
        assert head.run() is None, "request 2 is not answered yet"
    head.draft(4, request_id=2)
    assert members(head.run()) == [1, 2, 3]


def test_a_company_whose_last_question_is_void_departs():
    head = Head()
    head.core.micro_batches.count = 1
    begun_together(head, 1, 2)
    head.draft(4, 7, request_id=1)
    head.told(RequestCancelled(2))
    assert members(head.run()) == [1]


def test_the_place_of_a_micro_batch_that_waits_for_drafts_is_kept():
    """Else who joins would leave in it, and those whose place it was with another one."""
    head = Head()
    head.core.micro_batches.count = 1
    begun_together(head, 1, 2)
    for one in (1, 2):
        head.draft(4, request_id=one)
    run = head.run()
    head.widths.drafts = 0
    head.told(RequestSubmitted(Request(3, token_bytes((1, 2, 3)), SamplingParams(40))))
    prompt = head.run()
    head.widths.drafts = 4
    head.back(run, (1, 101), (2, 101))
    head.widths.drafts = 0
    head.back(prompt, (3, 100))
    assert head.run() is None, "request 3 needs no answer, and waits for the others' place"
    for one in (1, 2):
        head.draft(5, request_id=one)
    assert members(head.run()) == [1, 2, 3]


def test_a_guess_that_is_only_compared_costs_nobody_anything():
    head = Head(width=0)
    head.widths.is_probing = True
    (ask,) = asked(head.submit())
    assert (ask.width, ask.copies) == (1, 1)
    run = head.run()
    assert run.batch.spans == (Span(1, 3, 4, True),), "it departs at once"
    head.draft(4, 101)
    assert asked(head.back(run, (1, 101)))
    assert head.widths.seen == [(1, 1, 1)]
    run = head.run()
    assert run.batch.spans == (Span(1, 4, 5, True),), "and no draft goes with it"
    assert asked(head.back(run, (1, 200))) == [], "the question before is open"
    head.draft(5, 101)
    assert head.widths.seen == [(1, 1, 1), (1, 1, 0)], "an answer may come behind the token"


def test_what_is_copied_and_what_a_model_drafts_have_widths_of_their_own():
    head = Head()
    wide = {COPY: 9, "model": 2}
    head.widths.width = lambda request_id, kind: wide.get(kind.by, 4)
    (ask,) = asked(head.submit())
    assert (ask.copies, ask.width) == (9, 4), "nobody has drafted but for copies"
    head.told(Drafted((Draft(1, 4, (7, 7), "model"),)))
    (ask,) = asked(head.back(head.run(), (1, 7), (1, 9)))
    assert (ask.copies, ask.width, ask.start) == (9, 2, 4)
    (refused,) = head.told(Drafted((Draft(1, ask.position, (1, 2, 3), "model"),)))
    assert isinstance(refused, Refuse) and "request 1" in refused.reason
