"""Spans with drafts: what they are, and what they cannot be."""

import pytest

from molink_scheduler.batch import DRAFTS_MAX, Span


def test_a_span_is_known_up_to_its_drafts():
    plain, drafted = Span(1, 8, 9, True), Span(1, 8, 12, True, (5, 6, 7))
    assert (plain.known_end, plain.tokens) == (9, 1)
    assert (drafted.known_end, drafted.tokens) == (9, 4)


@pytest.mark.parametrize(
    ("start", "end", "samples", "drafts", "why"),
    [
        (8, 10, False, (5,), "samples"),
        (8, 10, True, (5, 6), "token of the span that is known"),
        (8, 9 + DRAFTS_MAX + 1, True, (5,) * (DRAFTS_MAX + 1), f"at most {DRAFTS_MAX} drafts"),
        (8, 10, True, (-1,), "from 0 on"),
    ],
)
def test_drafts_that_cannot_be_verified_are_refused(start, end, samples, drafts, why):
    with pytest.raises(ValueError, match=why):
        Span(1, start, end, samples, drafts)
    assert Span(1, 8, 9 + DRAFTS_MAX, True, (0,) * DRAFTS_MAX).known_end == 9


@pytest.mark.parametrize(("samples", "wants"), [(False, 1), (True, -1), (True, DRAFTS_MAX + 1)])
def test_only_a_span_that_samples_may_want_drafts_and_not_too_many(samples, wants):
    with pytest.raises(ValueError, match=f"may want {DRAFTS_MAX}"):
        Span(1, 8, 9, samples, wants=wants)
    assert Span(1, 8, 9, samples=True, wants=DRAFTS_MAX).tokens == 1
