"""Who departs with which micro-batch, and who stays at home."""

from molink_scheduler.head.decode_batcher import DecodeBatcher
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.timing.round_tracker import StageStamp
from molink_scheduler.timing.steps import DecodeClock, PrefillLoad

STAMPS = (StageStamp(0.01, 1e6), StageStamp(0.01, 1e6))


def circle_of(make_request, members: int, row_bytes: int = 0, **options) -> DecodeBatcher:
    decode = DecodeBatcher(HeadSettings(RingTerms(1024, **options), row_bytes), DecodeClock())
    for request_id in range(members):
        decode.token_ready(Sequence(make_request(request_id, 3, 9)))
    return decode


def departed(decode: DecodeBatcher, refused: frozenset[int] = frozenset()) -> list[int] | None:
    departure = decode.depart(lambda one: one.request_id not in refused, 0.0)
    return departure and [span.request_id for span in departure.spans]


def test_micro_batches_take_even_shares_in_the_order_of_coming_home(make_request):
    decode = circle_of(make_request, 4, micro_batch_count=2)
    assert departed(decode) == [0, 1]
    assert departed(decode) == [2, 3]
    assert departed(decode) is None, "both places are taken"


def test_who_has_no_room_stays_at_home_and_takes_no_place(make_request):
    decode = circle_of(make_request, 2, micro_batch_count=1)
    assert departed(decode, frozenset({0, 1})) is None
    assert departed(decode, frozenset({0})) == [1]
    decode.round_completed(0, STAMPS, PrefillLoad(), 1.0)
    assert departed(decode) == [0]


def test_making_room_for_one_may_send_another_away(make_request):
    decode = circle_of(make_request, 3, micro_batch_count=1)

    def has_room(sequence: Sequence) -> bool:
        decode.leave(2)
        return sequence.request_id != 2

    departure = decode.depart(has_room, 0.0)
    assert departure is not None
    assert [span.request_id for span in departure.spans] == [0, 1]


def test_a_chosen_number_is_kept_whatever_trips_take(make_request):
    decode = circle_of(make_request, 8, micro_batch_count=3)
    for trip in range(100):
        decode.depart(lambda one: True, float(trip))
        decode.round_completed(0, STAMPS, PrefillLoad(), trip + 0.5)
    assert decode.micro_batches.count == 3


def test_else_the_measured_trips_decide(make_request):
    """Wire time of eight rows is most of this ring's trip: two halves travel at once."""
    decode = circle_of(
        make_request,
        8,
        micro_batch_count=None,
        micro_batch_candidates=(1, 2, 3, 4),
        row_bytes=100_000,
    )
    sequences = list(decode._ready.values())
    for trip in range(60):
        departure = decode.depart(lambda one: True, float(trip))
        assert departure is not None
        decode.round_completed(departure.slot, STAMPS, PrefillLoad(), trip + 0.9)
        for sequence in sequences:
            if sequence.in_flight:
                sequence.returned_tokens = sequence.planned_tokens
            sequence.known.append(0)
            decode.token_ready(sequence)
    assert decode.micro_batches.count > 1
