"""Where each token begins in an answer, for tokenizers that leave out a text's first space."""

from types import SimpleNamespace

from molink.api.openai.completions import CompletionDialect, ShownPrompt
from molink.api.openai.logprobs import TokenTexts
from molink.serving.token_events import PromptLogprob, TokenEvent, TokenLogprob
from tests.serving.test_text_stream import SENTENCEPIECE, ByteTokenizer

BEGIN = 1
W1, W2, W17 = (SENTENCEPIECE.convert_tokens_to_ids(f"\u2581w{number}") for number in (1, 2, 17))
TEXTS = TokenTexts(SimpleNamespace(card=SimpleNamespace(tokenizer=SENTENCEPIECE)))


def offsets(*, is_echoed: bool) -> list[int]:
    prompt = ShownPrompt((BEGIN, W1, W2), "w1 w2" if is_echoed else "", is_echoed, None)
    dialect = CompletionDialect(TEXTS, [prompt], 1, 0)
    scores = tuple(PromptLogprob(one, -1.0, (), 1) for one in (W1, W2)) if is_echoed else ()
    pieces = [
        TokenEvent((W17,), " w17", (TokenLogprob(W17, -1.0, ()),), prompt_logprobs=scores),
        TokenEvent((W17,), " w17", (TokenLogprob(W17, -1.0, ()),)),
    ]
    shown = [dialect.delta(0, piece) for piece in pieces]
    text = "".join(one["text"] for one in shown)
    assert text == ("w1 w2" if is_echoed else "") + " w17 w17"
    return [at for one in shown for at in one["logprobs"]["text_offset"]]


def test_fragments_of_a_character_begin_where_it_does():
    tokens = "é☃a🦊b".encode()
    texts = TokenTexts(SimpleNamespace(card=SimpleNamespace(tokenizer=ByteTokenizer())))
    dialect = CompletionDialect(texts, [ShownPrompt((), "", False, None)], 1, 0)
    texts.text = str
    scores = [TokenEvent((one,), "", (TokenLogprob(one, -1.0, ()),)) for one in tokens]
    shown = [dialect.delta(0, event)["logprobs"]["text_offset"][0] for event in scores]
    assert shown == [0, 0, 1, 1, 1, 2, 3, 3, 3, 3, 4]


def test_offsets_are_those_of_the_text_behind_its_prompt():
    assert offsets(is_echoed=False) == [0, 4]
    assert offsets(is_echoed=True) == [0, 0, 2, 5, 9]
