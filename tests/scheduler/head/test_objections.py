"""What the coordinator and the tail tell a head is checked: what cannot be is refused."""

from dataclasses import replace

import pytest

from molink_scheduler.batch import BatchClass
from molink_scheduler.events import (
    BatchReturned,
    Refuse,
    RefuseRequest,
    RequestSubmitted,
    SampledToken,
)
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.request import ModelLimits, Request, SamplingParams
from molink_scheduler.timing.round_tracker import STAMPS_MAX, StageStamp
from molink_scheduler.token_ids import token_bytes

LIMITS = ModelLimits(sequence_tokens_max=48, vocabulary_size=100)
NAN, INFINITE = float("nan"), float("inf")


def head_of(**options) -> HeadScheduler:
    terms = RingTerms(kv_tokens_capacity=64, micro_batch_count=2, **options)
    return HeadScheduler(HeadSettings(terms, limits=LIMITS))


def submit(head: HeadScheduler, *requests: Request):
    return [*(refusal for one in requests for refusal in head.handle(RequestSubmitted(one), 0.0))]


def request(request_id=1, prompt=(1, 2, 3), max_tokens=4, output=()) -> Request:
    return Request(request_id, token_bytes(prompt), SamplingParams(max_tokens=max_tokens), output)


def next_run(head: HeadScheduler):
    _, run = head.next_batch(0.0, 0.0)
    return run


def returned(run, *tokens: SampledToken, **changes) -> BatchReturned:
    batch = run.batch
    event = BatchReturned(batch.batch_class, batch.micro_batch, batch.spans, tokens)
    return replace(event, **changes)


def is_refused(head: HeadScheduler, event: BatchReturned) -> bool:
    decisions = head.handle(event, 0.0)
    return [type(decision) for decision in decisions] == [Refuse]


def decoding(*request_ids: int) -> HeadScheduler:
    """A head whose requests have their first token."""
    head = head_of()
    submit(head, *(request(one) for one in request_ids))
    run = next_run(head)
    head.handle(returned(run, *(SampledToken(one, 7, False) for one in request_ids)), 0.0)
    return head


@pytest.mark.parametrize(
    "broken",
    [
        request(prompt=(1, 100)),
        request(prompt=(2**32 - 1,)),
        request(output=(-1,)),
        replace(request(), prediction=(5, 100)),
        replace(request(), sampling=SamplingParams(max_tokens=4, logit_bias=((100, 1.0),))),
        replace(request(), sampling=SamplingParams(max_tokens=4, stop_token_ids=(2, 100))),
        request(output=(100,)),
        request(max_tokens=10**6),
        request(max_tokens=47),
        request(max_tokens=2, output=(5, 6)),
    ],
)
def test_a_request_that_cannot_be_computed_is_refused(broken):
    head = head_of()
    (refusal,) = submit(head, broken)
    assert isinstance(refusal, RefuseRequest) and refusal.request_id == 1
    assert head.waiting_count == 0 and next_run(head) is None


def test_a_request_that_was_submitted_before_is_refused_and_goes_on():
    head = head_of()
    assert submit(head, request(), request()) == [Refuse("request 1 was submitted twice")]
    assert head.waiting_count == 1


@pytest.mark.parametrize("token_id", [-1, 100, 10**12])
def test_a_token_outside_of_the_vocabulary_is_refused(token_id):
    """It would be computed with, and end the head's process."""
    head = head_of()
    submit(head, request())
    run = next_run(head)
    assert is_refused(head, returned(run, SampledToken(1, token_id, False)))
    assert not is_refused(head, returned(run, SampledToken(1, 99, False)))
    assert next_run(head).token_ids == (99,)


def test_a_token_comes_with_the_last_span_of_a_prompt_only():
    head = head_of(span_tokens=2)
    submit(head, request())
    first, last = next_run(head), next_run(head)
    assert is_refused(head, returned(first, SampledToken(1, 7, False)))
    assert not is_refused(head, returned(first))
    assert is_refused(head, returned(last))
    assert is_refused(head, returned(last, *[SampledToken(1, 7, False)] * 2))
    strangers = SampledToken(1, 7, False), SampledToken(2, 7, False)
    assert is_refused(head, returned(last, *strangers))
    assert not is_refused(head, returned(last, SampledToken(1, 7, False)))


def test_nothing_goes_on_beyond_its_length():
    """The next stage would refuse what was planned then, and blame the head."""
    head = head_of()
    submit(head, request(max_tokens=2))
    head.handle(returned(next_run(head), SampledToken(1, 7, False)), 0.0)
    run = next_run(head)
    assert is_refused(head, returned(run, SampledToken(1, 7, False)))
    assert not is_refused(head, returned(run, SampledToken(1, 7, True)))
    assert head.running_count == 0


def test_a_micro_batch_comes_back_as_it_left():
    head = decoding(1, 2)
    one, other = next_run(head), next_run(head)
    tokens = SampledToken(1, 8, False), SampledToken(2, 8, False)
    assert one.batch.batch_class is other.batch.batch_class is BatchClass.DECODE
    assert is_refused(head, returned(one, tokens[0], micro_batch=other.batch.micro_batch))
    assert is_refused(head, returned(one, tokens[0], micro_batch=10**9))
    both = (*one.batch.spans, *other.batch.spans)
    assert is_refused(head, returned(one, *tokens, spans=both))
    assert is_refused(head, returned(one, tokens[0], batch_class=BatchClass.PREFILL))
    assert not is_refused(head, returned(other, tokens[1]))


@pytest.mark.parametrize(
    "stamp",
    [
        StageStamp(NAN, 1.0),
        StageStamp(INFINITE, 1.0),
        StageStamp(-1.0, 1.0),
        StageStamp(0.1, NAN),
        StageStamp(0.1, -1.0),
        StageStamp(10**400, 1.0),
    ],
)
def test_what_no_stage_measures_is_refused(stamp):
    head = decoding(1)
    run = next_run(head)
    token = SampledToken(1, 8, False)
    assert is_refused(head, returned(run, token, stamps=(stamp,)))
    assert is_refused(head, returned(run, token, stamps=(StageStamp(0.1, 1.0),) * (STAMPS_MAX + 1)))
    assert not is_refused(head, returned(run, token, stamps=(StageStamp(0.1, INFINITE),)))


def test_the_copy_of_a_return_changes_nothing():
    head = decoding(1)
    run = next_run(head)
    back = returned(run, SampledToken(1, 8, False))
    assert head.handle(back, 0.0) == []
    assert head.handle(back, 0.0) == []
    assert next_run(head).token_ids == (8,)


@pytest.mark.parametrize(
    ("lends", "budget", "prompt", "is_taken"),
    [(True, 0.5, 40, False), (True, 1.0, 40, True), (True, 0.5, 20, True), (False, 0.5, 40, True)],
)
def test_a_ring_that_lends_blocks_cuts_no_prompt(lends, budget, prompt, is_taken):
    head = head_of(requests_max=4 if lends else None)
    sampling = SamplingParams(max_tokens=4, kv_budget=budget)
    refusals = submit(head, Request(1, token_bytes((1,) * prompt), sampling))
    assert refusals == [] if is_taken else "lies at lenders" in refusals[0].reason
