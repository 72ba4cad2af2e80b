"""Who departs with which micro-batch, and who stays at home."""

from molink_scheduler.head.decode_batcher import DecodeBatcher
from molink_scheduler.head.prefill_load import PrefillLoad
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.timing.round_tracker import StageStamp
from molink_scheduler.timing.steps import DecodeClock

STAMPS = (StageStamp(0.01, 1e6), StageStamp(0.01, 1e6))


def circle_of(make_request, members: int, row_bytes: int = 0, **options) -> DecodeBatcher:
    circle = DecodeBatcher(HeadSettings(RingTerms(1024, **options), row_bytes), DecodeClock())
    for request_id in range(members):
        circle.came_home(Sequence(make_request(request_id, 3, 9)))
    return circle


def departed(circle: DecodeBatcher, refused: frozenset[int] = frozenset()) -> list[int] | None:
    departure = circle.depart(lambda one: one.request_id not in refused, 0.0)
    return departure and [span.request_id for span in departure.spans]


def test_micro_batches_take_even_shares_in_the_order_of_coming_home(make_request):
    circle = circle_of(make_request, 4, micro_batch_count=2)
    assert departed(circle) == [0, 1]
    assert departed(circle) == [2, 3]
    assert departed(circle) is None, "both places are taken"


def test_who_has_no_room_stays_at_home_and_takes_no_place(make_request):
    circle = circle_of(make_request, 2, micro_batch_count=1)
    assert departed(circle, frozenset({0, 1})) is None
    assert departed(circle, frozenset({0})) == [1]
    circle.trip_ended(0, STAMPS, PrefillLoad(), 1.0)
    assert departed(circle) == [0]


def test_making_room_for_one_may_send_another_away(make_request):
    circle = circle_of(make_request, 3, micro_batch_count=1)

    def has_room(sequence: Sequence) -> bool:
        circle.leave(2)
        return sequence.request_id != 2

    departure = circle.depart(has_room, 0.0)
    assert departure is not None
    assert [span.request_id for span in departure.spans] == [0, 1]


def test_a_chosen_number_is_kept_whatever_trips_take(make_request):
    circle = circle_of(make_request, 8, micro_batch_count=3)
    for trip in range(100):
        circle.depart(lambda one: True, float(trip))
        circle.trip_ended(0, STAMPS, PrefillLoad(), trip + 0.5)
    assert circle.micro_batches.count == 3


def test_else_the_measured_trips_decide(make_request):
    """Wire time of eight rows is most of this ring's trip: two halves travel at once."""
    circle = circle_of(
        make_request,
        8,
        micro_batch_count=None,
        micro_batch_candidates=(1, 2, 3, 4),
        row_bytes=100_000,
    )
    sequences = list(circle._at_home.values())
    for trip in range(60):
        departure = circle.depart(lambda one: True, float(trip))
        assert departure is not None
        circle.trip_ended(departure.place, STAMPS, PrefillLoad(), trip + 0.9)
        for sequence in sequences:
            if sequence.in_flight:
                sequence.returned_tokens = sequence.planned_tokens
            sequence.known.append(0)
            circle.came_home(sequence)
    assert circle.micro_batches.count > 1
