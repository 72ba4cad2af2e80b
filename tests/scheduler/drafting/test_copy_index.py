"""What an answer copies is found, and nothing else is."""

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.drafting.copy_index import MATCH_TOKENS, CopyIndex, predicted

TEXT = list(range(100, 160))


def index_of(*texts, prediction=()):
    index = CopyIndex()
    if prediction:
        index.learn(predicted(prediction))
    for text in texts:
        index.learn(text)
    return index


def test_a_copy_is_seen_after_eight_tokens_and_not_before():
    index = index_of(TEXT, [7], TEXT[10:17])
    assert index.propose(4) == ()
    index.learn(TEXT[17:18])
    assert index.propose(4) == tuple(TEXT[18:22])


def test_a_copy_that_goes_on_is_not_left_for_a_newer_place():
    begun, other = TEXT[:20], [*TEXT[12:20], 9]
    index = index_of(begun, TEXT[20:40], other, [7], TEXT[:20])
    assert index.propose(3) == tuple(TEXT[20:23])


def test_the_last_place_is_copied_where_a_copy_begins():
    index = index_of([*TEXT[:8], 1, 2], [*TEXT[:8], 3, 4], [7], TEXT[:8])
    assert index.propose(2) == (3, 4)


def test_one_changed_word_ends_a_copy_until_eight_more_are_the_same():
    index = index_of(TEXT, TEXT[:12], [7])
    assert index.propose(2) == ()
    index.learn(TEXT[13:21])
    assert index.propose(2) == tuple(TEXT[21:23])


def test_a_text_that_repeats_itself_goes_on_so():
    index = index_of([1, 2, 3] * 4)
    assert index.propose(7) == (1, 2, 3, 1, 2, 3, 1)


def test_a_prediction_is_copied_and_ends_where_it_ends():
    index = index_of([5], TEXT[40:55], prediction=TEXT)
    assert index.propose(16) == tuple(TEXT[55:])
    index.learn(TEXT[55:])
    assert index.propose(16) == ()


def test_nothing_is_matched_across_the_end_of_a_prediction():
    index = index_of(TEXT[4:8], TEXT[:8], prediction=TEXT[:4])
    assert index.propose(16) == ()


def test_none_is_proposed_where_none_is_wanted():
    index = index_of(TEXT, TEXT[:8])
    assert index.propose(0) == ()


words = st.lists(st.integers(0, 2), max_size=60)


@given(words, words, st.integers(0, 20))
def test_what_is_proposed_stands_behind_the_same_eight_tokens(prediction, text, most):
    index = index_of(text, prediction=prediction)
    proposed = index.propose(most)
    whole = [*prediction, -1, *text] if prediction else text
    places = [
        end
        for end in range(MATCH_TOKENS, len(whole))
        if whole[end - MATCH_TOKENS : end] == whole[-MATCH_TOKENS:]
    ]
    if len(text) < MATCH_TOKENS or most == 0:
        assert proposed == ()
    assert len(proposed) <= most
    if proposed:
        assert any(behind(whole, place, most) == proposed for place in places)
    else:
        assert most == 0 or len(text) < MATCH_TOKENS or all(whole[one] == -1 for one in places)


def behind(whole, place, most):
    """What stands behind a place, going round where the text ends."""
    copied = []
    for at in range(most):
        copied.append(
            whole[place + at] if place + at < len(whole) else copied[at - period(whole, place)]
        )
    return tuple(copied[: copied.index(-1)] if -1 in copied else copied)


def period(whole, place):
    return len(whole) - place


@given(words, st.lists(st.integers(1, 7), max_size=30))
def test_it_does_not_matter_in_which_pieces_a_text_is_learned(text, cuts):
    index, at = CopyIndex(), 0
    for cut in cuts:
        index.learn(text[at : at + cut])
        at += cut
    index.learn(text[at:])
    assert index.propose(16) == index_of(text).propose(16)
