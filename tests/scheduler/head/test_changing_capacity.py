"""A head whose capacity changes: what it gives up, who waits, what stages are told, and when."""

import pytest

from molink_scheduler.events import (
    BatchReturned,
    CapacityChosen,
    RefuseRequest,
    RequestSubmitted,
    RoomOffered,
    SampledToken,
    SendCacheChange,
    SendCapacity,
    SendRelease,
)
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.kv.capacity import Offer, RingCapacity, StageRoom, least_offered


def head_of(kv_tokens: int, **options) -> HeadScheduler:
    return HeadScheduler(HeadSettings(RingTerms(kv_tokens, **options)))


def returned(run, *tokens: tuple[int, int, bool]) -> BatchReturned:
    batch, sampled = run.batch, tuple(SampledToken(*token) for token in tokens)
    return BatchReturned(batch.batch_class, batch.micro_batch, batch.spans, sampled)


def lowered(blocks: int, *heard: int) -> CapacityChosen:
    return CapacityChosen(RingCapacity(blocks, heard))


def orders_of(head: HeadScheduler):
    return head.next_batch(0.0, 0.0)[0]


def running(head: HeadScheduler, make_request, *lengths: int, max_tokens: int = 9) -> None:
    """Requests of these prompts, numbered from 1 on, that have their first token each."""
    for request_id, length in enumerate(lengths, 1):
        head.handle(RequestSubmitted(make_request(request_id, length, max_tokens)), 0.0)
    _, run = head.next_batch(0.0, 0.0)
    head.handle(returned(run, *((one.request_id, 7, False) for one in run.batch.spans)), 0.0)


def test_a_word_comes_only_when_all_fits_and_behind_what_made_it_fit(make_request):
    """The newest goes, once what is under way of it is back."""
    head = head_of(16 * 10, micro_batch_count=1)
    running(head, make_request, 30, 40)
    _, decode = head.next_batch(0.0, 0.0)
    assert len(decode.batch.spans) == 2
    head.handle(lowered(4, 0, 3), 0.0)
    assert orders_of(head) == [], "both are under way, and hold five blocks"
    (release,) = head.handle(returned(decode, (1, 8, False), (2, 8, False)), 0.0)
    assert release == SendRelease(release.release) and release.release.request_id == 2
    orders, run = head.next_batch(0.0, 0.0)
    assert orders == [SendCapacity(RingCapacity(4, (3,)), 10)]
    assert [span.request_id for span in run.batch.spans] == [1]
    assert orders_of(head) == [], "it is said once"


def test_what_is_cached_and_unused_goes_before_anybody(make_request):
    head = head_of(16 * 10, prefix_cache=True)
    running(head, make_request, 64)
    _, decode = head.next_batch(0.0, 0.0)
    head.handle(returned(decode, (1, 8, True)), 0.0)
    assert head.kv.blocks_cached == 4
    head.handle(lowered(2, 0), 0.0)
    drops, word = orders_of(head)
    assert isinstance(drops, SendCacheChange) and len([*drops.change.numbers]) == 2
    assert word == SendCapacity(RingCapacity(2, ()), 10)


def test_the_head_gives_its_own_blocks_back_when_its_offer_was_heard():
    head = head_of(16 * 10)
    head.handle(RoomOffered(6), 0.0)
    for number, kept in ((0, 10), (1, 6)):  # Chosen before the coordinator had heard, and after.
        head.handle(lowered(5, number), 0.0)
        assert orders_of(head) == [SendCapacity(RingCapacity(5, ()), kept)]


def test_a_request_longer_than_the_present_room_lets_others_pass_and_waits(make_request):
    head = head_of(16 * 10)
    head.handle(lowered(3, 1), 0.0)
    for request_id, tokens in ((1, 100), (2, 20)):
        head.handle(RequestSubmitted(make_request(request_id, tokens, 9)), 0.0)
    _, run = head.next_batch(0.0, 0.0)
    assert [span.request_id for span in run.batch.spans] == [2]
    assert [one.request_id for one in head.prompts.waiting] == [1]
    head.handle(returned(run, (2, 7, True)), 0.0)
    head.handle(lowered(10, 2), 0.0)
    _, run = head.next_batch(0.0, 0.0)
    assert [span.request_id for span in run.batch.spans] == [1]


def test_one_longer_than_all_places_is_refused_with_both_figures(make_request):
    head = HeadScheduler(HeadSettings(RingTerms(32, kv_tokens_most=160)))
    (refusal,) = head.handle(RequestSubmitted(make_request(1, 150, 20)), 0.0)
    assert refusal == RefuseRequest("request 1 may grow to 169 tokens, the ring holds 160", 1)
    assert head.handle(RequestSubmitted(make_request(2, 100, 20)), 0.0) == []


def test_a_ring_of_one_block_serves_what_fits_there(make_ring, make_request):
    ring = make_ring(seed=1, stage_count=2, kv_tokens=16)
    for request_id in (1, 2):
        ring.submit_at(0.0, make_request(request_id, 6, 9))
    ring.run()
    ring.assert_nothing_left()
    assert sorted(ring.ended) == [1, 2]


def test_a_stage_gives_back_at_no_word_that_has_not_heard_of_its_last_offer():
    room = StageRoom(10)
    room.offer(6)
    room.counted(RingCapacity(5, (0, 1)))
    assert room.blocks == 10
    room.offer(8)
    room.counted(RingCapacity(5, (1,)))
    assert room.blocks == 10
    room.counted(RingCapacity(5, (2,)))
    assert room.blocks == 8
    room.offer(12)
    assert (room.blocks, room.offered) == (12, 12)


def test_the_least_offer_counts():
    offers = [Offer(0, 9), Offer(4, 7), Offer(1, 8)]
    assert least_offered(offers) == RingCapacity(7, (0, 4, 1))
    with pytest.raises(ValueError, match="one KV block at least"):
        least_offered([Offer(1, 0)])
