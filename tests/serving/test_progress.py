"""Pieces of a prompt and rounds of an answer: bounded, and true to what they promise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.serving.progress import (
    PAUSES_MAX,
    PIECES_MAX,
    Pause,
    PromptPiece,
    PromptPieces,
    Rounds,
)


def rounds_of(*gaps_s):
    rounds, now = Rounds(), 0.0
    for tokens, gap_s in enumerate(gaps_s, 1):
        rounds.add(now, now + gap_s, tokens)
        now += gap_s
    return rounds


def test_a_piece_that_is_told_again_counts_once():
    prompt = PromptPieces()
    for piece in ((0, 32, 1.0), (32, 64, 2.0), (0, 32, 1.0), (32, 64, 2.0), (64, 80, 3.0)):
        prompt.add(PromptPiece(*piece))
    assert prompt.pieces == [(0, 32, 1.0), (32, 64, 2.0), (64, 80, 3.0)]


def test_pieces_that_are_many_are_joined_and_none_is_lost():
    prompt = PromptPieces()
    for at in range(1000):
        prompt.add(PromptPiece(10 * at, 10 * at + 10, float(at)))
        assert len(prompt.pieces) <= PIECES_MAX
    assert (prompt.pieces[0].start, prompt.pieces[-1].end) == (0, 10_000)
    ends = [piece.end for piece in prompt.pieces]
    assert [piece.start for piece in prompt.pieces[1:]] == ends[:-1]


@given(st.lists(st.floats(2e-4, 3600.0), min_size=1, max_size=60), st.floats(0, 0.99))
def test_quantiles_are_true_to_five_per_cent(gaps_s, part):
    rounds = Rounds()
    for gap_s in gaps_s:
        rounds.add(0.0, gap_s, 1)
    exact = sorted(gaps_s)[int(part * len(gaps_s))]
    assert rounds.quantile_s(part) == pytest.approx(exact, rel=0.051)
    assert rounds.longest_s == max(gaps_s)


def test_without_a_gap_there_is_no_quantile_and_tokens_together_are_no_round():
    assert Rounds().quantile_s(0.5) is None
    assert rounds_of(0.0, 0.0).count == 0


def test_a_pause_is_far_longer_than_usual_and_long_enough_to_be_felt():
    assert rounds_of(*[0.05] * 9, 0.4).pauses == []
    assert rounds_of(*[1.0] * 9, 3.9).pauses == []
    (pause,) = rounds_of(*[0.125] * 8, 2.0, *[0.125] * 8).pauses
    assert pause == Pause(1.0, 2.0, 9)


def test_of_many_pauses_the_longest_are_kept():
    gaps = [gap for at in range(40) for gap in (*[0.05] * 9, 1.0 + at % 20)]
    pauses = rounds_of(*gaps).pauses
    assert len(pauses) == PAUSES_MAX
    assert sorted(round(one.length_s) for one in pauses) == [17, 17, 18, 18, 19, 19, 20, 20]
    assert [one.at for one in pauses] == sorted(one.at for one in pauses)
