"""What running requests come to hold is forecast by the lengths of answers; a flood does not make a
ring compute everything twice."""

from hypothesis import given, settings
from hypothesis import strategies as st

from molink_scheduler.head.kv_forecast import KvForecast
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.kv.blocks import blocks_for


def running(make_request, prompt: int, generated: int, max_tokens: int = 1000) -> Sequence:
    sequence = Sequence(make_request(1, prompt, max_tokens))
    sequence.known += [7] * generated
    return sequence


def after_answers_of(make_request, tokens: int) -> KvForecast:
    forecast = KvForecast()
    for _ in range(3):
        forecast.ended(running(make_request, 10, tokens))
    return forecast


def test_before_an_answer_has_ended_each_is_given_one_more_block(make_request):
    assert KvForecast().blocks([running(make_request, 16, 0), running(make_request, 32, 0)]) == 5


def test_what_was_cancelled_before_its_first_token_says_nothing(make_request):
    forecast = after_answers_of(make_request, 64)
    forecast.ended(running(make_request, 10, 0))
    assert forecast.answer_tokens == 64


def test_nobody_is_taken_to_generate_more_than_it_asked_for(make_request):
    forecast = after_answers_of(make_request, 640)
    assert forecast.blocks([running(make_request, 16, 0, max_tokens=17)]) == 2


def grown(lengths: list[tuple[int, int]], answer: int) -> int:
    """The most blocks that requests hold which grow by a token a round until `answer`."""
    most = 0
    for rounds in range(answer + 1):
        alive = [one for one in lengths if one[1] + rounds <= answer]
        most = max(most, sum(blocks_for(prompt + got + rounds) for prompt, got in alive))
    return most


@settings(deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 60)), min_size=1, max_size=12),
    answer=st.integers(80, 200),
)
def test_it_is_the_most_that_they_hold_at_once(make_request, lengths, answer):
    """Within a block for each of them, and never too little by more than that."""
    forecast = after_answers_of(make_request, answer)
    told = forecast.blocks([running(make_request, *one) for one in lengths])
    true = grown(lengths, answer)
    assert true - len(lengths) <= told <= true + len(lengths)


def test_a_flood_of_equal_answers_is_hardly_computed_twice(make_ring, make_request):
    """Forty requests at once on a ring with room for eight: once lengths are known, few are pushed
    out (27 were without the forecast)."""
    ring = make_ring(seed=3, stage_count=3, kv_tokens=8 * 80, micro_batch_count=3)
    for request_id in range(1, 41):
        ring.submit_at(0.01 * request_id, make_request(request_id, 16, 64))
    ring.run()
    assert len(ring.ended) == 40
    assert ring.preemptions <= 8
    ring.assert_nothing_left()
