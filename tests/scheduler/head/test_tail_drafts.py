"""Drafts that the tail sends home are for one position of one request, as many as were wanted."""

from dataclasses import replace

import pytest

from molink_scheduler.batch import PREFILL, Span
from molink_scheduler.drafting.acceptance import DraftKind
from molink_scheduler.drafting.proposals import COPY, GRAMMAR, TAIL
from molink_scheduler.events import BatchReturned, Refuse, RequestSubmitted, SampledToken
from molink_scheduler.head.drafts import DRAFTED_ROWS_MAX
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.token_ids import token_bytes
from tests.scheduler.head.test_drafts import Head

TAIL_ALONE = {"drafts_at_head": False, "drafts_at_tail": True}
BOTH = {"drafts_at_tail": True}


def returned(run, *tokens, drafts=(), forced=(), finished=False):
    """A batch as it comes back, with drafts (request, ids)."""
    batch, sampled = run.batch, tuple(SampledToken(*one, finished) for one in tokens)
    event = BatchReturned(batch.batch_class, batch.micro_batch, batch.spans, sampled)
    return replace(event, drafts=drafts, forced=forced)


def begun(drafts=(), options=TAIL_ALONE, head=None, request_id=1, **sampling) -> Head:
    """A head whose prompt came back with token 100, and these drafts."""
    head = head or Head(options=options)
    head.back = lambda run, *tokens: head.told(
        returned(run, *tokens, drafts=((request_id, drafts),) if drafts else ())
    )
    head.submit(request_id, **sampling)
    del head.back
    return head


def begun_together(drafts, head=None) -> Head:
    """A head whose prompts came back together, each with these drafts."""
    head = head or Head(options=TAIL_ALONE)
    for one in drafts:
        head.told(RequestSubmitted(Request(one, token_bytes((1, 2, one)), SamplingParams(20))))
    run = head.run()
    assert len(run.batch.spans) == len(drafts)
    head.told(returned(run, *((one, 100) for one in drafts), drafts=tuple(drafts.items())))
    head.core.micro_batches.count = 1
    return head


def test_the_last_span_of_a_prompt_wants_drafts_and_the_others_do_not():
    head = Head(options={**TAIL_ALONE, "span_tokens": 8})
    wants = []
    head.back = lambda run, *tokens: wants.extend(one.wants for one in run.batch.spans)
    head.submit(prompt=20)
    assert wants == [0, 0, 4]


def test_what_comes_with_the_token_leaves_with_the_next_span_at_once():
    head = begun((101, 102))
    run = head.run()
    assert run.batch.spans == (Span(1, 3, 6, True, (101, 102), wants=4),)
    assert run.token_ids == (100, 101, 102)
    head.told(returned(run, (1, 101), (1, 102), (1, 7), drafts=((1, (8,)),)))
    assert head.widths.seen == [(1, 2, 2)]
    run = head.run()
    assert run.batch.spans == (Span(1, 6, 8, True, (8,), wants=4),)
    head.told(returned(run, (1, 9)))
    tally = head.core.decode.drafts.tallies[TAIL]
    assert (tally.rounds, tally.drafts, tally.tried, tally.right) == (2, 3, 3, 2)
    assert head.run().batch.spans == (Span(1, 7, 8, True, wants=4),), "none came"


def test_nothing_is_wanted_where_nobody_drafts_and_as_many_as_are_worth_it():
    for width, options in ((0, TAIL_ALONE), (4, {"drafts_at_head": False})):
        head = Head(width=width, options=options)
        head.submit()
        assert head.run().batch.spans == (Span(1, 3, 4, True),)
    head = begun()
    head.widths.drafts = 2
    assert head.run().batch.spans[0].wants == 2


def test_a_width_that_was_probed_once_is_verified():
    """One draft was wanted with a span, none with the next: what came of it is what counts."""
    head = Head(width=1, options=TAIL_ALONE)
    head = begun((101,), head=head)
    head.widths.drafts = 0
    assert head.run().batch.spans == (Span(1, 3, 5, True, (101,)),)


@pytest.mark.parametrize(("max_tokens", "wants"), [(2, 0), (3, 0), (4, 1), (40, 4)])
def test_no_more_is_wanted_than_the_request_may_have(max_tokens, wants):
    """Behind the last draft a token is drawn, too."""
    head = begun(max_tokens=max_tokens)
    assert head.run().batch.spans[0].wants == wants


@pytest.mark.parametrize(
    ("drafts", "why"),
    [
        (((1, (1, 2, 3, 4, 5)),), "5 drafts of request 1 came, 4 were"),
        (((1, (1000,)),), "not in the vocabulary"),
        (((1, (-1,)),), "no ids"),
        (((2, (5,)),), "drafts of request 2, of which it drew no token"),
        (((1, (5,)), (1, (6,))), "drafts of request 1, of which"),
    ],
)
def test_drafts_that_nobody_asked_for_are_refused_and_the_ring_goes_on(drafts, why):
    head = begun()
    run = head.run()
    (refused,) = head.told(returned(run, (1, 101), drafts=drafts))
    assert isinstance(refused, Refuse) and why in refused.reason
    assert head.sequence.in_flight
    head.told(returned(run, (1, 101), drafts=((1, (7,)),)))
    assert head.run().batch.spans == (Span(1, 4, 6, True, (7,), wants=4),)


def test_drafts_of_a_prompt_are_bounded_by_what_left_with_it():
    """Spans of prompts come back as the stages have cut them: what they say is not asked."""
    head, orders = Head(width=1, options=TAIL_ALONE), []

    def back(run, *tokens):
        (span,) = run.batch.spans
        event = returned(run, *tokens, drafts=((1, (5, 6)),))
        orders.extend(head.told(replace(event, spans=(replace(span, wants=2),))))

    head.back = back
    head.submit()
    assert [type(one) for one in orders] == [Refuse]


def test_drafts_that_come_with_no_span_are_refused():
    head = begun(grammar="a grammar")
    head.told(returned(head.run()))
    late = BatchReturned(PREFILL, -1, (), (SampledToken(1, 101, False),), drafts=((1, (5,)),))
    assert [type(one) for one in head.told(late)] == [Refuse]
    assert [*head.told(replace(late, drafts=()))] == []
    assert head.run().batch.spans == (Span(1, 4, 5, True, wants=4),)


def test_drafts_behind_a_token_that_is_late_are_of_another_position():
    head = begun(grammar="a grammar")
    head.told(returned(head.run(), drafts=((1, (5, 6)),)))
    head.told(BatchReturned(PREFILL, -1, (), (SampledToken(1, 101, False),)))
    assert head.run().batch.spans == (Span(1, 4, 5, True, wants=4),)


def test_drafts_of_one_request_are_not_another_ones():
    head = begun_together({1: (101, 102), 2: (201,)})
    spans = {one.request_id: one.drafts for one in head.run().batch.spans}
    assert spans == {1: (101, 102), 2: (201,)}


def test_drafts_are_forgotten_with_the_request():
    head = begun((101, 102))
    head.sequence.preempting = True
    head.core._settle(head.sequence)
    run = head.run()
    assert run.batch.batch_class is PREFILL and run.batch.spans[0].wants == 4
    head.told(returned(run, (1, 103)))
    assert head.run().batch.spans == (Span(1, 4, 5, True, wants=4),)


def test_an_answer_that_ends_leaves_nothing():
    head = begun()
    head.told(returned(head.run(), (1, 101), drafts=((1, (5,)),), finished=True))
    drafts = head.core.decode.drafts
    assert not (drafts._proposals._offers or drafts._wanted or drafts._tail_by or drafts._widths)


def test_the_heads_drafters_are_asked_beside_and_go_before_where_they_have_a_match():
    for copied, expected in (((7, 8, 9), (7, 8, 9)), ((), (101, 102))):
        head = begun((101, 102), options=BOTH)
        assert head.run() is None, "it departs once it is answered"
        head.draft(4, *copied)
        assert head.run().batch.spans == (Span(1, 3, 4 + len(expected), True, expected, wants=4),)


def test_widths_are_those_of_who_drafts():
    head = begun((101,), options=BOTH, temperature=0.7)
    head.draft(4, 7, 8)
    head.told(returned(head.run(), (1, 7), (1, 8), (1, 9), drafts=((1, (5,)),)))
    head.draft(7)
    head.told(returned(head.run(), (1, 5), (1, 6)))
    drawn = [kind.by for kind in head.widths.kinds if kind.is_drawn]
    at_home, judged = [COPY, ""], [COPY, TAIL]
    assert drawn == [
        *(TAIL, *at_home),
        *(TAIL, judged[0], *at_home),
        *(TAIL, judged[1], *at_home),
    ]
    assert head.widths.seen == [(1, 2, 2), (1, 1, 1)]


def test_a_draft_of_the_tail_that_is_only_compared_is_no_row():
    head = Head(width=0, options=TAIL_ALONE)
    head.widths.is_probing = True
    head = begun((101,), head=head)
    for drawn, seen in ((101, [(1, 1, 1)]), (7, [(1, 1, 1), (1, 1, 0)])):
        run = head.run()
        (span,) = run.batch.spans
        assert (span.drafts, span.wants) == ((), 1)
        head.told(returned(run, (1, drawn), drafts=((1, (102,)),)))
        assert head.widths.seen == seen
    tally = head.core.decode.drafts.tallies[TAIL]
    assert (tally.tried, tally.right) == (2, 1)


def test_a_grammar_has_drafts_where_no_layer_does_and_its_own_figures():
    head = begun(options={"drafts_at_head": False}, grammar="a grammar", temperature=0.0)
    run = head.run()
    assert run.batch.spans[0].wants == 4
    head.told(returned(run, (1, 101), drafts=((1, (5, 6)),), forced=(1,)))
    run = head.run()
    assert run.batch.spans[0].drafts == (5, 6)
    head.told(returned(run, (1, 5), (1, 6), (1, 7)))
    assert set(head.widths.kinds) == {DraftKind(GRAMMAR)}
    tallies = head.core.decode.drafts.tallies
    assert (tallies[GRAMMAR].right, tallies[TAIL].rounds) == (2, 0)


def test_drafts_of_the_tail_take_free_blocks_only_and_bounded_rows():
    head = Head(kv_tokens=16_384, width=16, options=TAIL_ALONE)
    begun_together({one: tuple(range(16)) for one in range(1, 21)}, head)
    assert head.run().batch.tokens == DRAFTED_ROWS_MAX
    short = Head(kv_tokens=16 * 3, width=16, options=TAIL_ALONE)
    begun(tuple(range(6)), head=short, prompt=40, max_tokens=8)
    (span,) = short.run().batch.spans
    assert len(span.drafts) == 6, "the request may have no more"
    begun_together({1: tuple(range(16)), 2: ()}, short := Head(48, 16, TAIL_ALONE))
    spans = short.run().batch.spans
    assert [len(one.drafts) for one in spans] == [12, 0], "the last block is left to the other"


def test_a_tail_drafts_as_deep_for_all_as_for_the_one_who_wants_most():
    head = begun((101,))
    run = head.run()
    ((_, passes, _),) = head.core.decode.tracker._departures.values()
    assert passes == run.batch.spans[0].wants == 4
    alone = begun(options={"drafts_at_head": False}, grammar="a grammar")
    alone.run()
    ((_, passes, _),) = alone.core.decode.tracker._departures.values()
    assert passes == 0, "what a grammar forces takes no layer"


def test_a_layer_that_is_never_right_is_asked_no_more_and_a_grammar_is():
    head = begun((101,), max_tokens=900)
    for _ in range(200):
        run = head.run()
        assert run.batch.spans[0].wants
        head.told(returned(run, (1, 100), drafts=((1, (101,)),)))
    head.told(returned(head.run(), (1, 100)))
    assert head.run().batch.spans[0].wants == 0
    head.core.decode.drafts.at_tail = True
    constrained = Request(2, token_bytes((1, 2)), SamplingParams(40, grammar="a grammar"))
    head.told(RequestSubmitted(constrained))
    assert head.run().batch.spans[0].wants
