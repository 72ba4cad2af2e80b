"""The head's core alone, and whole rings of real cores over links with seeded delays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.batch import ADMITTED_BULK_BYTES_MAX, BatchClass, Span, bulk_bytes
from molink_scheduler.events import (
    BatchReturned,
    RefuseRequest,
    RequestCancelled,
    RequestSubmitted,
    SampledToken,
)
from molink_scheduler.head.kept_requests import KeptRequests
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import STATE_CHUNK_TOKENS, HeadSettings, RingTerms
from molink_scheduler.request import (
    GRAMMAR_CHARS_MAX,
    LOGIT_BIAS_COUNT_MAX,
    Request,
    SamplingParams,
)
from molink_scheduler.resume import Resume
from molink_scheduler.timing.steps import DECODES_BEFORE_PREFILL_MAX, REPLAY_ROWS_MAX
from molink_scheduler.token_ids import token_bytes

lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=12)


def head_of(kv_tokens=1024, **options) -> HeadScheduler:
    return HeadScheduler(HeadSettings(RingTerms(kv_tokens, **options)))


def returned(run, *tokens: tuple[int, int, bool]) -> BatchReturned:
    batch = run.batch
    sampled = tuple(SampledToken(*token) for token in tokens)
    return BatchReturned(batch.batch_class, batch.micro_batch, batch.spans, sampled)


def test_a_prompt_is_cut_into_spans_and_only_the_last_one_samples(make_request):
    head = head_of(span_tokens=16)
    head.handle(RequestSubmitted(make_request(1, 40, 4)), 0.0)
    runs = [head.next_batch(0.0, 0.0)[1] for _ in range(3)]
    spans = [run.batch.spans[0] for run in runs]
    assert [(s.start, s.end, s.samples) for s in spans] == [
        (0, 16, False),
        (16, 32, False),
        (32, 40, True),
    ]
    assert [len(run.batch.admissions) for run in runs] == [1, 0, 0]
    assert runs[1].token_ids == tuple(range(17, 33))
    assert head.next_batch(0.0, 0.0) == ([], None)


def test_a_fresh_head_replays_to_itself_in_larger_steps_than_it_sends(make_request):
    """On a slow link a step has 32 rows; rows that do not cross it have what memory allows."""
    settings = HeadSettings(RingTerms(kv_tokens_capacity=2048), row_bytes=8192)
    head = HeadScheduler(settings, KeptRequests(Resume(((1, 1000),), held=())))
    head.handle(RequestSubmitted(make_request(1, 1100, 8)), 0.0)
    runs = [head.next_batch(1e6, 0.0)[1] for _ in range(4)]
    assert [(run.batch.tokens, run.batch.replay) for run in runs] == [
        (REPLAY_ROWS_MAX, True),
        (1000 - REPLAY_ROWS_MAX, True),
        (32, False),
        (32, False),
    ]


@pytest.mark.parametrize(("fifo", "first"), [(False, 2), (True, 1)])
def test_short_prompts_pass_long_ones_except_where_times_are_promised(make_request, fifo, first):
    head = head_of(span_tokens=16, fifo_prompts=fifo)
    for request_id, tokens in ((0, 16), (1, 300), (2, 10)):
        head.handle(RequestSubmitted(make_request(request_id, tokens, 4)), 0.0)
    spans = [head.next_batch(0.0, 0.0)[1].batch.spans[0] for _ in range(2)]
    assert [span.request_id for span in spans] == [0, first]


def test_short_prompts_share_a_prefill_batch(make_request):
    head = head_of(span_tokens=16)
    for request_id in (1, 2, 3):
        head.handle(RequestSubmitted(make_request(request_id, 6, 4)), 0.0)
    _, run = head.next_batch(0.0, 0.0)
    assert [(s.request_id, s.tokens) for s in run.batch.spans] == [(1, 6), (2, 6), (3, 4)]


def test_what_grammars_take_in_a_header_is_bounded_on_every_link(make_ring):
    """128 one-token prompts, each with the longest grammar and the most biases there may be."""
    sampling = SamplingParams(
        max_tokens=1,
        logit_bias=tuple((token, 1.0) for token in range(LOGIT_BIAS_COUNT_MAX)),
        grammar="g" * GRAMMAR_CHARS_MAX,
    )
    ring = make_ring(seed=5, stage_count=3, kv_tokens=4096)
    carried = []
    for stage in ring.stages:
        compute = stage.compute
        stage.compute = lambda batch, chains, compute=compute: (
            carried.append(batch),
            compute(batch, chains),
        )
    for number in range(1, 129):
        ring.submit_at(0.0, Request(number, token_bytes((1,)), sampling))
    ring.run()
    ring.assert_nothing_left()
    assert len(ring.ended) == 128
    assert max(len(batch.admissions) for batch in carried) == 3
    assert all(bulk_bytes(batch.admissions) <= ADMITTED_BULK_BYTES_MAX for batch in carried)


def test_a_sequence_decodes_with_its_group_and_leaves_when_it_ends(make_request):
    head = head_of()
    for request_id in (1, 2):
        head.handle(RequestSubmitted(make_request(request_id, 3, 4)), 0.0)
    _, prefill = head.next_batch(0.0, 0.0)
    head.handle(returned(prefill, (1, 7, False), (2, 8, False)), 0.0)
    _, decode = head.next_batch(0.0, 0.0)
    assert decode.batch.batch_class is BatchClass.DECODE
    assert decode.token_ids == (7, 8)
    releases = head.handle(returned(decode, (1, 9, True), (2, 10, False)), 0.0)
    assert [r.release.request_id for r in releases] == [1]
    _, decode = head.next_batch(0.0, 0.0)
    assert [s.request_id for s in decode.batch.spans] == [2]


def test_the_head_knows_since_when_a_micro_batch_and_a_prompt_are_under_way(make_request):
    head = head_of(span_tokens=16)
    head.handle(RequestSubmitted(make_request(1, 40, 9)), 0.0)
    assert (head.round_waits_s(5.0), head.prompt_waits_s(5.0)) == (0.0, 0.0)
    spans = [head.next_batch(0.0, at)[1] for at in (10.0, 11.0, 12.0)]
    assert head.prompt_waits_s(14.0) == 4.0, "since the first left"
    head.handle(returned(spans[0]), 15.0)
    assert head.prompt_waits_s(18.0) == 3.0, "since some came back"
    head.handle(returned(spans[1]), 18.0)
    head.handle(returned(spans[2], (1, 7, False)), 18.0)
    assert (head.round_waits_s(20.0), head.prompt_waits_s(20.0)) == (0.0, 0.0)
    _, decode = head.next_batch(0.0, 20.0)
    assert head.round_waits_s(50.0) == 30.0
    head.handle(returned(decode, (1, 8, False)), 50.0)
    assert head.round_waits_s(60.0) == 0.0


def test_a_group_waits_while_its_batch_circles(make_request):
    head = head_of()
    head.handle(RequestSubmitted(make_request(1, 3, 9)), 0.0)
    _, prefill = head.next_batch(0.0, 0.0)
    head.handle(returned(prefill, (1, 7, False)), 0.0)
    _, decode = head.next_batch(0.0, 0.0)
    assert decode is not None
    assert head.next_batch(0.0, 0.0) == ([], None)


def test_cancelling_waits_for_what_is_in_flight_then_releases(make_request):
    head = head_of()
    head.handle(RequestSubmitted(make_request(1, 3, 9)), 0.0)
    _, prefill = head.next_batch(0.0, 0.0)
    assert head.handle(RequestCancelled(1), 0.0) == []
    releases = head.handle(returned(prefill, (1, 7, False)), 0.0)
    assert [r.release.request_id for r in releases] == [1]
    assert head.next_batch(0.0, 0.0) == ([], None)


def test_a_request_that_waits_is_cancelled_without_a_word_to_the_stages(make_request):
    head = head_of()
    head.handle(RequestSubmitted(make_request(1, 3, 9)), 0.0)
    assert head.handle(RequestCancelled(1), 0.0) == []
    assert head.next_batch(0.0, 0.0) == ([], None)
    assert head.handle(RequestCancelled(1), 0.0) == []


def test_spans_return_in_other_pieces_than_they_left(make_request):
    head = head_of(span_tokens=16)
    head.handle(RequestSubmitted(make_request(1, 16, 9)), 0.0)
    head.next_batch(0.0, 0.0)
    first, second = Span(1, 0, 10, False), Span(1, 10, 16, True)
    head.handle(BatchReturned(BatchClass.PREFILL, -1, (first,), ()), 0.0)
    assert head.next_batch(0.0, 0.0) == ([], None)
    token = SampledToken(1, 7, finished=False)
    head.handle(BatchReturned(BatchClass.PREFILL, -1, (second,), (token,)), 0.0)
    _, decode = head.next_batch(0.0, 0.0)
    assert decode.token_ids == (7,)


def test_a_span_that_returns_twice_counts_once(make_request):
    head = head_of()
    head.handle(RequestSubmitted(make_request(1, 5, 9)), 0.0)
    _, run = head.next_batch(0.0, 0.0)
    head.handle(returned(run, (1, 7, False)), 0.0)
    head.handle(returned(run, (1, 7, False)), 0.0)
    _, decode = head.next_batch(0.0, 0.0)
    assert decode.token_ids == (7,)
    assert decode.batch.spans == (Span(1, 5, 6, True),)


def test_a_micro_batch_that_returns_twice_frees_its_place_once(make_request):
    head = head_of(micro_batch_count=1)
    head.handle(RequestSubmitted(make_request(1, 5, 9)), 0.0)
    _, prefill = head.next_batch(0.0, 0.0)
    head.handle(returned(prefill, (1, 7, False)), 0.0)
    _, first = head.next_batch(0.0, 0.0)
    head.handle(returned(first, (1, 8, False)), 1.0)
    head.next_batch(0.0, 1.0)
    head.handle(returned(first, (1, 8, False)), 1.2)
    assert head.micro_batches.free_slot() is None, "the second micro-batch is still under way"


def test_prefill_gets_its_turn_when_decode_never_rests(make_request):
    head = head_of(micro_batch_count=1, span_tokens=4)
    head.handle(RequestSubmitted(make_request(1, 2, 500)), 0.0)
    _, run = head.next_batch(0.0, 0.0)
    head.handle(returned(run, (1, 7, False)), 0.0)
    head.handle(RequestSubmitted(make_request(2, 4, 5)), 0.0)
    classes = []
    for _ in range(DECODES_BEFORE_PREFILL_MAX + 2):
        _, run = head.next_batch(0.0, 0.0)
        classes.append(run.batch.batch_class)
        if run.batch.batch_class is BatchClass.DECODE:
            head.handle(returned(run, (1, 7, False)), 0.0)
    assert BatchClass.PREFILL in classes


def test_a_request_that_can_never_fit_is_the_callers_mistake(make_request):
    (refusal,) = head_of(kv_tokens=32).handle(RequestSubmitted(make_request(1, 20, 20)), 0.0)
    assert refusal == RefuseRequest("request 1 may grow to 39 tokens, the ring holds 32", 1)


def test_the_newest_is_preempted_and_keeps_its_tokens(make_ring, make_request):
    ring = make_ring(seed=1, stage_count=3, kv_tokens=64, forecasts=False)
    ring.submit_at(0.0, make_request(1, 16, 40))
    ring.submit_at(0.1, make_request(2, 16, 40))
    ring.run()
    assert ring.preemptions > 0
    for request_id in (1, 2):
        assert ring.answers[request_id] == ring.expected_answer(request_id)
    assert ring.ended == [1, 2]
    ring.assert_nothing_left()


@pytest.mark.parametrize("seed", range(5))
def test_nobody_enters_without_a_state_slot(make_ring, make_request, seed):
    """KV is plenty, so only slots decide: each stage asserts that they suffice."""
    ring = make_ring(seed=seed, stage_count=3, kv_tokens=4096, state_slots=2)
    for request_id in range(1, 7):
        ring.submit_at(0.05 * request_id, make_request(request_id, 20, 6))
    ring.run()
    for request_id in range(1, 7):
        assert ring.answers[request_id] == ring.expected_answer(request_id)
    assert ring.preemptions == 0
    ring.assert_nothing_left()


def test_slots_and_blocks_run_out_together(make_ring, make_request):
    ring = make_ring(seed=1, stage_count=3, kv_tokens=64, state_slots=2, forecasts=False)
    for request_id in (1, 2, 3):
        ring.submit_at(0.1 * request_id, make_request(request_id, 16, 40))
    ring.run()
    assert ring.preemptions > 0
    for request_id in (1, 2, 3):
        assert ring.answers[request_id] == ring.expected_answer(request_id)
    ring.assert_nothing_left()


def test_a_lower_priority_goes_first_among_those_that_wait(make_request):
    head = head_of(span_tokens=4)
    for request_id, priority in ((1, 0), (2, 5), (3, 0), (4, -1), (5, -1)):
        head.handle(RequestSubmitted(make_request(request_id, 4, 9, priority)), 0.0)
    order = [head.next_batch(0.0, 0.0)[1].batch.spans[0].request_id for _ in range(5)]
    assert order == [4, 5, 1, 3, 2]


def test_a_prompt_under_way_is_not_interrupted(make_request):
    head = head_of(span_tokens=4)
    head.handle(RequestSubmitted(make_request(1, 8, 9)), 0.0)
    first = head.next_batch(0.0, 0.0)[1]
    head.handle(RequestSubmitted(make_request(2, 4, 9, priority=-1)), 0.0)
    order = [head.next_batch(0.0, 0.0)[1].batch.spans[0].request_id for _ in range(2)]
    assert (first.batch.spans[0].request_id, order) == (1, [1, 2])


def test_the_last_in_order_is_preempted_not_the_newest(make_ring, make_request):
    ring = make_ring(seed=1, stage_count=3, kv_tokens=64, forecasts=False)
    ring.submit_at(0.0, make_request(1, 16, 40, priority=1))
    ring.submit_at(0.1, make_request(2, 16, 40))
    ring.run()
    assert ring.preemptions > 0
    for request_id in (1, 2):
        assert ring.answers[request_id] == ring.expected_answer(request_id)
    assert ring.ended == [2, 1]
    ring.assert_nothing_left()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    requests=lengths,
    priorities=st.lists(st.integers(-1, 1), min_size=12, max_size=12),
    stage_count=st.integers(1, 4),
    micro_batch_count=st.integers(1, 4),
    kv_tokens=st.integers(96, 400),
    span_tokens=st.integers(1, 40),
    forecasts=st.booleans(),
)
def test_every_request_gets_all_its_tokens_in_order(
    make_ring,
    make_request,
    seed,
    requests,
    priorities,
    stage_count,
    micro_batch_count,
    kv_tokens,
    span_tokens,
    forecasts,
):
    options = {"span_tokens": span_tokens, "forecasts": forecasts}
    ring = make_ring(seed, stage_count, kv_tokens, micro_batch_count, **options)
    for number, (prompt_tokens, max_tokens) in enumerate(requests, 1):
        at, priority = ring.random.uniform(0, 2), priorities[number - 1]
        ring.submit_at(at, make_request(number, prompt_tokens, max_tokens, priority))
    ring.run()
    for request_id in ring.requests:
        assert ring.answers[request_id] == ring.expected_answer(request_id)
    assert sorted(ring.ended) == sorted(ring.requests)
    ring.assert_nothing_left()


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    requests=lengths,
    micro_batch_count=st.integers(1, 3),
    forecasts=st.booleans(),
)
def test_cancelled_requests_leave_nothing_and_disturb_nobody(
    make_ring, make_request, seed, requests, micro_batch_count, forecasts
):
    ring = make_ring(seed, 3, 128, micro_batch_count, forecasts=forecasts)
    cancelled = set()
    for number, (prompt_tokens, max_tokens) in enumerate(requests, 1):
        at = ring.random.uniform(0, 2)
        ring.submit_at(at, make_request(number, prompt_tokens, max_tokens))
        if ring.random.random() < 0.5:
            cancelled.add(number)
            ring.cancel_at(at + ring.random.uniform(0, 3), number)
    ring.run()
    for request_id in set(ring.requests) - cancelled:
        assert ring.answers[request_id] == ring.expected_answer(request_id)
    for request_id in cancelled:
        expected = ring.expected_answer(request_id)
        assert ring.answers[request_id] == expected[: len(ring.answers[request_id])]
    ring.assert_nothing_left()


@pytest.mark.parametrize("seed", range(8))
def test_prompts_of_hybrid_models_are_cut_at_whole_chunks_of_their_recurrence(
    seed, make_ring, make_request
):
    """By the head and by the stages behind it, several prompts in a batch or one in many."""
    ring = make_ring(
        *(seed, 3, 4096),
        span_tokens=128,
        prefill_tokens_in_flight_max=300,
        state_slots=4,
        stage_rows=100,
    )
    for number in range(12):
        ring.submit_at(ring.random.uniform(0, 1), make_request(number, 10 + 37 * number, 1))
    ring.run()
    ring.assert_nothing_left()
    ends = {10 + 37 * number for number in range(12)}
    cut = [span.end for _, span in ring.prefill_spans if not span.samples]
    assert len(cut) > 50 and all(end % STATE_CHUNK_TOKENS == 0 for end in cut)
    assert {span.end for _, span in ring.prefill_spans if span.samples} == ends


@pytest.mark.parametrize("seed", range(8))
def test_a_step_without_time_for_a_chunk_is_cut_anywhere(seed, make_ring, make_request):
    ring = make_ring(seed, 2, 4096, span_tokens=48, state_slots=3)
    for number in range(6):
        ring.submit_at(ring.random.uniform(0, 1), make_request(number, 200 + number, 20))
    ring.run()
    ring.assert_nothing_left()
    assert all(ring.answers[number] == ring.expected_answer(number) for number in range(6))
    assert any(span.end % STATE_CHUNK_TOKENS for _, span in ring.prefill_spans if not span.samples)
