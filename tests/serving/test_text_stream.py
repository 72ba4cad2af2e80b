"""Text piece by piece is the text of the whole, and stop strings end it exactly."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.models import DEMO_MODEL_DIR
from molink.serving.text_stream import TextStream


@dataclass
class ByteTokenizer:
    """Token i is byte i: every multi-byte character is cut apart."""

    chat_template: str | None = None

    def encode(self, text, *, add_special_tokens=True):
        return list(text.encode())

    def decode(self, token_ids, *, skip_special_tokens=False):
        return bytes(token_ids).decode(errors="replace")

    def apply_chat_template(self, conversation, **options):
        return ""


@dataclass
class CountingTokenizer(ByteTokenizer):
    """The same, with how many tokens were decoded in each call."""

    decoded: list[int] = field(default_factory=list)

    def decode(self, token_ids, *, skip_special_tokens=False):
        self.decoded.append(len(token_ids))
        return super().decode(token_ids)


TOKENIZER = ByteTokenizer()


def stream(text: str, *stop: str) -> tuple[list[str], TextStream]:
    stream = TextStream(TOKENIZER, stop)
    pieces = []
    for token in TOKENIZER.encode(text):
        pieces.append(stream.push((token,)))
        if stream.stopped_at is not None:
            return pieces, stream
    return [*pieces, stream.finish()], stream


@given(st.text())
def test_pieces_join_to_the_whole(text):
    text = text.encode(errors="replace").decode()
    pieces, _ = stream(text)
    assert "".join(pieces) == text


@pytest.mark.parametrize(
    ("min_tokens", "text", "stopped_at"),
    [(0, "ab", "c"), (3, "abcab", "c"), (5, "abcab", "c"), (6, "abcabc", None)],
)
def test_a_stop_string_within_the_least_tokens_ends_nothing(min_tokens, text, stopped_at):
    stream = TextStream(TOKENIZER, ("c",), min_tokens=min_tokens)
    pieces = [stream.push((token,)) for token in TOKENIZER.encode("abcabc")]
    assert ("".join(pieces), stream.stopped_at) == (text, stopped_at)


def test_half_a_character_is_held_back():
    pieces, _ = stream("aé🦊")
    assert pieces == ["a", "", "é", "", "", "", "🦊", ""]


@pytest.mark.parametrize("token", [0x80, 0xF0])
def test_an_answer_of_halves_alone_costs_the_same_with_each_token(token):
    tokenizer = CountingTokenizer()
    stream = TextStream(tokenizer)
    text = "".join(stream.push((token,)) for _ in range(500)) + stream.finish()
    assert text == "\ufffd" * 500
    assert max(tokenizer.decoded) < 50


def test_a_text_is_decoded_little_more_than_once_a_token():
    tokenizer = CountingTokenizer()
    stream = TextStream(tokenizer)
    assert "".join(stream.push((ord("a"),)) for _ in range(500)) == "a" * 500
    assert len(tokenizer.decoded) < 1.1 * 500 and max(tokenizer.decoded) < 25


def test_a_stop_string_ends_the_text_before_it():
    pieces, ended = stream("one two three", "two")
    assert "".join(pieces) == "one "
    assert ended.stopped_at == "two"


def test_what_may_become_a_stop_string_is_held_back():
    pieces, _ = stream("a##b", "###")
    assert pieces == ["a", "", "", "##b", ""]


def test_what_was_held_comes_out_at_the_end():
    pieces, ended = stream("end#", "##")
    assert "".join(pieces) == "end#"
    assert ended.stopped_at is None


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_the_first_stop_string_in_the_text_wins(text, stops):
    pieces, ended = stream(text, *stops)
    shown = "".join(pieces)
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)
    assert (ended.stopped_at is not None) == any(stop in text for stop in stops)
    if ended.stopped_at is None:
        assert shown == text


@pytest.mark.parametrize(
    "text", ["Once upon a time, a fox.", "Größe, naïve 🦊 and ½ more", "  two "]
)
def test_a_real_tokenizer_gives_the_same_text_in_pieces(text):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL_DIR)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    stream = TextStream(tokenizer)
    pieces = [stream.push((token,)) for token in token_ids]
    assert "".join([*pieces, stream.finish()]) == tokenizer.decode(token_ids)


@pytest.mark.parametrize(("skips", "shown"), [(True, "ab"), (False, "a<|end|>b")])
def test_special_tokens_are_shown_where_asked_for(skips, shown):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL_DIR)
    stream = TextStream(tokenizer, skip_special_tokens=skips)
    token_ids = tokenizer.encode("a<|end|>b", add_special_tokens=False)
    pieces = [stream.push((token,)) for token in token_ids]
    assert "".join([*pieces, stream.finish()]) == shown


THINK, CALL = ("<think>", "</think>"), ("<call>", "</call>")


def quiet(text: str, *stop: str, pairs=(THINK, CALL), min_tokens=0) -> tuple[str, str | None, int]:
    """What is shown, what stopped it, and after how many tokens the tail knew."""
    stream = TextStream(TOKENIZER, stop, quiet=pairs, min_tokens=min_tokens)
    shown = ""
    for count, token in enumerate(TOKENIZER.encode(text), 1):
        shown += stream.push((token,))
        if stream.stopped_at is not None:
            return shown, stream.stopped_at, count
    return shown + stream.finish(), stream.stopped_at, len(text)


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("<think>a\n\nb</think>c\n\nd", "\n\n", "<think>a\n\nb</think>c"),
        ("a <call>{.}</call> b. c", ".", "a <call>{.}</call> b"),
        ("a<b", "<", "a"),
        ("a<call>x</call>", "<", "a<call>x</call>"),
        ("a<call>x</call>b<call>", "<c", "a<call>x</call>b<call>"),
        ("a<call>xb", "b", "a<call>xb"),
        ("ab<cal", "<c", "ab"),
        ("a</think>b", "think", "a</"),
        ("<think>x</think></think>", "</t", "<think>x</think>"),
        ("one<call>", "e<", "one<call>"),
        ("a<c.", "<", "a"),
    ],
)
def test_stops_count_outside_of_quiet_marks_alone(text, stop, shown):
    assert quiet(text, stop)[0] == shown
    assert (quiet(text, stop)[1] is None) == (shown == text)


def test_an_answer_may_begin_in_a_quiet_part_and_end_in_one():
    pairs = (("", "</think>"), ("[CALL]", ""))
    text = "a. b</think>\n[CALL]f. </think> g."
    assert quiet(text, ".", pairs=pairs) == (text, None, len(text))
    assert quiet("a. b</think>c. d", ".", pairs=pairs) == ("a. b</think>c", ".", 14)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<call>", "</call>", "a", "<", "."])))
def test_where_text_is_cut_does_not_matter(pieces):
    text = "".join(pieces)
    stream = TextStream(TOKENIZER, (".", "a<"), quiet=(THINK, CALL))
    shown = stream.push(tuple(TOKENIZER.encode(text)))
    assert shown + stream.finish() == quiet(text, ".", "a<")[0]


def test_quiet_parts_leave_the_least_length_alone():
    assert quiet("<call>.</call>a.b.c", ".", min_tokens=17)[0] == "<call>.</call>a.b"
