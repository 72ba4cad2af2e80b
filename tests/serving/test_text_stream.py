"""Text piece by piece is the text of the whole, and stop strings end it exactly."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from molink.models import DEMO_MODEL_DIR
from molink.serving.model_card import ChatTokenizer
from molink.serving.text_stream import TextStream
from molink_scheduler.request import CONTEXT_TOKENS_MAX, SamplingParams


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


THINK, CALL = ("<think>", "</think>", False), ("<call>", "</call>", False)
FIRST, BARE = ("<think>", "</think>", True), ('{"name"', "", True)


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
    pairs = (("", "</think>", False), ("[CALL]", "", False))
    text = "a. b</think>\n[CALL]f. </think> g."
    assert quiet(text, ".", pairs=pairs) == (text, None, len(text))
    assert quiet("a. b</think>c. d", ".", pairs=pairs) == ("a. b</think>c", ".", 14)


PIECES = ["<think>", "</think>", "<call>", "</call>", "a", "<", ".", " ", '{"name"', "{"]


@pytest.mark.parametrize("pairs", [(THINK, CALL), (FIRST, BARE, CALL)])
@given(pieces=st.lists(st.sampled_from(PIECES)))
def test_where_text_is_cut_does_not_matter(pairs, pieces):
    text = "".join(pieces)
    stream = TextStream(TOKENIZER, (".", "a<"), quiet=pairs)
    shown = stream.push(tuple(TOKENIZER.encode(text)))
    assert shown + stream.finish() == quiet(text, ".", "a<", pairs=pairs)[0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Use the <think> tag. END b", "Use the <think> tag. "),
        (' \n<think>END</think>\n{"name": END}', None),
        ("<think>END</think> a <think> END", "<think>END</think> a <think> "),
        ("<think>END</think><think>END", "<think>END</think><think>"),
        ('a {"name": "x"} END b', 'a {"name": "x"} '),
        ('<call>END</call>{"name": END', '<call>END</call>{"name": '),
        ('{"name": END', None),
        ('{"nam": END', '{"nam": '),
    ],
)
def test_some_quiet_parts_begin_only_where_the_text_does(text, shown):
    expected = (text, None) if shown is None else (shown, "END")
    assert quiet(text, "END", pairs=(FIRST, BARE, CALL))[:2] == expected


def test_quiet_parts_leave_the_least_length_alone():
    assert quiet("<call>.</call>a.b.c", ".", min_tokens=17)[0] == "<call>.</call>a.b"


def sentencepiece() -> ChatTokenizer:
    """As Llama 2's and Mistral's: the decoder drops the space that begins a text."""
    words = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    words += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    words += [(f"\u2581w{number}", -1.0) for number in range(20)]
    tokenizer = Tokenizer(models.Unigram(words, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


SENTENCEPIECE = sentencepiece()


def continued(prompt: list[int], answer: list[int], *stop: str) -> str:
    sampling = SamplingParams(99, stop=stop, context=tuple(prompt[-CONTEXT_TOKENS_MAX:]))
    stream = TextStream.of(SENTENCEPIECE, sampling)
    pieces = []
    for token in answer:
        pieces.append(stream.push((token,)))
        if stream.stopped_at is not None:
            return "".join(pieces)
    return "".join([*pieces, stream.finish()])


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("w1 w2", "w3 w4"),
        ("w1", "w3"),
        ("w1 w2 w3 w4 w5 w6 w7 w8 w9", "w1 w2 w3 w4 w5 w6 w7 w8 w9 w1 w2 w3 w4 w5 w6 w7 w8"),
        ("w1 Gr\u00fc\U0001f600", "\u00e9\u4e16 w2"),
        ("  w1 ", "  w2"),
    ],
)
def test_prompt_and_answer_join_to_what_both_are_together(prompt, answer):
    given_ids = SENTENCEPIECE.encode(prompt)
    new = SENTENCEPIECE.encode(answer, add_special_tokens=False)
    both = SENTENCEPIECE.decode([*given_ids, *new], skip_special_tokens=True)
    text = continued(given_ids, new)
    assert SENTENCEPIECE.decode(given_ids, skip_special_tokens=True) + text == both
    assert text.startswith(" ") or not answer.startswith("w")


def test_half_a_character_at_the_end_of_a_prompt_is_shown_when_it_is_whole():
    first, *rest = (3 + byte for byte in "\u4e16".encode())
    assert continued([first], rest) == "\u4e16"


def test_an_answer_in_a_chat_is_a_text_of_its_own():
    ids = SENTENCEPIECE.encode("w3 w4", add_special_tokens=False)
    assert TextStream.of(SENTENCEPIECE, SamplingParams(9)).push(tuple(ids)) == "w3 w4"


def test_a_stop_string_may_begin_with_the_space_behind_the_prompt():
    ids = [SENTENCEPIECE.convert_tokens_to_ids(f"\u2581w{number}") for number in (1, 2, 3)]
    assert continued(ids[:1], ids[1:], " w2") == ""
    assert continued(ids[:1], ids[1:], " w3") == " w2"


def test_context_counts_for_no_least_length():
    sampling = SamplingParams(99, stop=("b",), min_tokens=2, context=tuple(b"xxxxxx"))
    stream = TextStream.of(TOKENIZER, sampling)
    assert stream.push(tuple(b"b")) == "b" and stream.stopped_at is None
    assert stream.push(tuple(b"a")) + stream.push(tuple(b"b")) == "a"
    assert stream.stopped_at == "b"


def test_a_prompt_may_end_in_the_sign_of_half_a_character_itself():
    ids = SENTENCEPIECE.encode("w1\ufffd", add_special_tokens=False)
    assert continued(ids, SENTENCEPIECE.encode("w2", add_special_tokens=False)) == " w2"
    stream = TextStream.of(TOKENIZER, SamplingParams(9, context=tuple("a\ufffd".encode())))
    assert stream.push(tuple(b"b")) == "b"
