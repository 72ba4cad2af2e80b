"""Words of a stream stay whole on a terminal's lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.terminal.word_wrap import WordWrap


def shown(text, width, cut=1):
    wrap = WordWrap(width)
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    return "".join(map(wrap.wrapped, pieces)) + wrap.rest()


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_a_word_that_does_not_fit_begins_the_next_line(cut):
    assert shown("the stars over the sea", 9, cut) == "the stars\nover the \nsea"


def test_a_line_of_code_is_left_as_it_is():
    code = "```\nlet answer = forty_two + nothing\n```\n"
    assert shown(code, 10) == code
    assert shown(f"{code}and so it ends", 10).removeprefix(code) == "and so it \nends"


def test_letters_that_are_words_break_anywhere():
    assert shown("灯台守の狐", 4) == "灯台\n守の\n狐"


WORDS = st.lists(st.text("abcdef", min_size=1, max_size=8), max_size=20)


@given(WORDS, st.integers(8, 20), st.integers(1, 7))
def test_words_and_their_order_stay(words, width, cut):
    text = shown(" ".join(words), width, cut)
    assert text.split() == words
    assert all(len(line.rstrip()) <= width for line in text.split("\n"))
