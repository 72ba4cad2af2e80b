"""Tokenizers made from a GGUF file's metadata cut text as those that the metadata came from."""

import json

import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE
from transformers import AutoTokenizer

from molink.checkpoint.gguf.header import read_gguf
from molink.errors import CheckpointError, UnsupportedModelError
from molink.importing.gguf.patterns import WORDS
from molink.importing.gguf.tokenizer import KINDS, end_tokens, tokenizer_files
from molink.models import DEMO_MODEL_DIR
from tests.checkpoint.gguf.written import Typed, write_gguf
from tests.nasty_text import nasty_texts

TEXTS = (
    "Hello, world! It's 12345 o'clock.",
    "  two spaces,\n\nlines\tand tabs   ",
    "Größe, 東京, emoji 🦊 and e\u0301",
    "<|user|>Tell me a story<|end|>",
    "",
)
PREFIX = "tokenizer.ggml."


def made(tmp_path, metadata, length=2048):
    path = write_gguf(tmp_path / "t.gguf", {PREFIX + k: v for k, v in metadata.items()})
    files = tokenizer_files(read_gguf(path), length)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return Tokenizer.from_file(str(tmp_path / "tokenizer.json"))


def demo_metadata():
    content = json.loads((DEMO_MODEL_DIR / "tokenizer.json").read_text())
    vocabulary = sorted(content["model"]["vocab"].items(), key=lambda pair: pair[1])
    special = {token["id"] for token in content["added_tokens"]}
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [token for token, _ in vocabulary],
        "token_type": [Typed(5, 3 if number in special else 1) for _, number in vocabulary],
        "merges": [" ".join(pair) for pair in content["model"]["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "eot_token_id": 3,
        "padding_token_id": 0,
        "add_bos_token": True,
    }


def test_the_demo_model_s_own_tokenizer_comes_back(tmp_path):
    tokenizer = made(tmp_path, demo_metadata())
    wanted = Tokenizer.from_file(str(DEMO_MODEL_DIR / "tokenizer.json"))
    for text in TEXTS:
        ids = wanted.encode(text).ids
        assert tokenizer.encode(text).ids == ids
        assert tokenizer.decode(ids) == wanted.decode(ids)
    assert tokenizer.get_vocab_size() == wanted.get_vocab_size()
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token) == (
        "<|bos|>",
        "<|eos|>",
        "<|pad|>",
    )
    assert end_tokens(read_gguf(tmp_path / "t.gguf")) == [2, 3]


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("llama-bpe", "It's 12345!\n\nyes", ["It", "'s", " ", "123", "45", "!\n\n", "yes"]),
        ("glm4", "I'LL 1234", ["I", "'LL", " ", "123", "4"]),
        ("qwen2", "I'LL pay 123", ["I", "'LL", " pay", " ", "1", "2", "3"]),
        ("qwen35", "e\u0301te\u0301 12", ["e\u0301te\u0301", " ", "1", "2"]),
        ("tekken", "aB 12/\n", ["a", "B", " ", "1", "2", "/\n"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("kimi-k2", "Hi东京ABc 1234", ["Hi", "东京", "ABc", " ", "123", "4"]),
        ("gpt-2", "It's 12345!", ["It", "'s", " 12345", "!"]),
        ("default", "a.b 12345", ["a", ".", "b", " ", "123", "45"]),
        ("starcoder", "x = 42  y", ["x", " =", " ", "4", "2", " ", " y"]),
        ("falcon", "a`b 12345", ["a", "`", "b", " ", "123", "45"]),
        ("deepseek-llm", "Hi, 东京\nx 42", ["Hi", ",", " ", "东京", "\n", "x", " ", "42"]),
        ("deepseek-coder", "f(x) 42", ["f", "(", "x", ")", " ", "4", "2"]),
        ("deepseek-v3", ".map かな1234", [".map", " ", "かな", "123", "4"]),
        ("bloom", "one, two", ["one", ",", " two"]),
        ("viking", "one 42", ["one", " ", "4", "2"]),
        ("bailingmoe", "we'Ve 12\n\n", ["we", "'Ve", " ", "1", "2", "\n\n"]),
        ("seed-coder", "x=1\n", ["x", "=", "1", "\n"]),
        ("exaone-moe", "one two/\n", ["one two", "/\n"]),
        ("tiny_aya", "1234567 ab", ["1", "234", "567", " ab"]),
        ("afmoe", "12345 東京x", ["12", "345", " ", "東京", "x"]),
        ("laguna", "a b\n\nc", ["a", " b", "\n\n", "c"]),
        ("ufakzeka", "It's", ["It", "'s"]),
        ("jais-2", "a" + " " * 13 + "b", ["a", " " * 8, " " * 4, " b"]),
        ("chameleon", "a  b!1", ["a", "  ", "b", "!", "1"]),
        ("youtu", "가나 x", ["가나", " x"]),
        ("minicpm5", "1234x", ["123", "4", "x"]),
        ("spark2_5", "a!\n\n1", ["a", "!", "\n", "\n", "1"]),
        ("superbpe", "1234567", ["1", "234", "567"]),
    ],
)
def test_patterns_cut_words_as_published(tmp_path, pre, text, words):
    tokenizer = made(tmp_path, demo_metadata() | {"pre": pre})
    spans = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert [text[start:stop] for start, stop in spans] == words


LETTERS = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256)]]
LETTERS += [chr(256 + code) for code in range(68)]


@pytest.fixture(scope="module")
def tokenizers_of_bytes(tmp_path_factory):
    """One with all patterns each, in which every byte is a token."""
    assert len(LETTERS) == 256
    metadata = {"model": "gpt2", "tokens": LETTERS, "merges": []}
    folder = tmp_path_factory.mktemp("bytes")
    return {name: made(folder, metadata | {"pre": name}) for name in WORDS}


@settings(max_examples=60, deadline=None)
@given(nasty_texts)
def test_no_pattern_loses_a_byte(tokenizers_of_bytes, text):
    text = text.encode("utf-8", "ignore").decode()
    for name, tokenizer in tokenizers_of_bytes.items():
        given_back = tokenizer.decode(tokenizer.encode(text).ids)
        wanted = normalizers.NFC().normalize_str(text) if WORDS[name].composed else text
        assert given_back == wanted, name


SPM_TOKENS = [
    *("<unk>", "<s>", "</s>"),
    *(f"<0x{code:02X}>" for code in range(256)),
    *("▁", "t", "h", "e", "a", "c", "▁t", "he", "▁the", "▁a", "ca", "▁ca", "▁cat"),
]


def spm_metadata():
    pieces = SPM_TOKENS[259:]
    return {
        "model": "llama",
        "tokens": SPM_TOKENS,
        "scores": [0.0] * 259 + [-float(number) for number in range(len(pieces))],
        "token_type": [Typed(5, 2), Typed(5, 3), Typed(5, 3)]
        + [Typed(5, 6)] * 256
        + [Typed(5, 1)] * len(pieces),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(tmp_path):
    tokenizer = made(tmp_path, spm_metadata())
    encoded = tokenizer.encode("the cat é")
    assert encoded.tokens == ["<s>", "▁the", "▁cat", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(encoded.ids) == "the cat é"


def test_sentencepiece_without_a_space_in_front(tmp_path):
    tokenizer = made(tmp_path, spm_metadata() | {"add_space_prefix": False})
    encoded = tokenizer.encode("the cat")
    assert encoded.tokens == ["<s>", "t", "he", "▁cat"]
    assert tokenizer.decode(encoded.ids) == "the cat"


def test_merges_are_the_pairs_that_tokens_have(tmp_path):
    """In the order of the scores, written out by hand."""
    tokenizer = made(tmp_path, spm_metadata())
    numbers = {token: number for number, token in enumerate(SPM_TOKENS)}
    pairs = [
        ("▁", "t"),
        ("h", "e"),
        ("▁t", "he"),
        ("▁", "a"),
        ("c", "a"),
        ("▁", "ca"),
        ("▁ca", "t"),
    ]
    by_hand = Tokenizer(BPE(numbers, pairs, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    by_hand.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    by_hand.decoder = decoders.Fuse()
    by_hand.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    for text in ("the cat", "a hat", "teach the cat", " the"):
        assert tokenizer.encode(text).ids == by_hand.encode(text).ids


def test_tokens_of_spaces_stand_beside_those_that_sentencepiece_spells(tmp_path):
    """As in Gemma's files: the first are looked for in a text as they are."""
    metadata = spm_metadata() | {"add_space_prefix": False}
    metadata["tokens"] = [*SPM_TOKENS, "  ", "\u2581\u2581", "\n\n"]
    metadata["scores"] = [*metadata["scores"], -1000.0, -1000.0, -1000.0]
    metadata["token_type"] = [*metadata["token_type"], Typed(5, 4), Typed(5, 1), Typed(5, 4)]
    tokenizer = made(tmp_path, metadata)
    encoded = tokenizer.encode("  cat\n\n the")
    assert encoded.tokens == ["<s>", "  ", "ca", "t", "\n\n", "▁the"]
    assert tokenizer.decode(encoded.ids) == "  cat\n\n the"


def test_characters_merge_in_whole_lines(tmp_path):
    tokens = [*SPM_TOKENS, "\n", "\n\n", "▁▁", "e▁"]
    metadata = {
        "model": "gemma4",
        "tokens": tokens,
        "token_type": spm_metadata()["token_type"] + [Typed(5, 1)] * 4,
        "merges": ["▁ t", "h e", "▁t he", "\n \n", "▁ ▁"],
        "bos_token_id": 1,
        "unknown_token_id": 0,
    }
    tokenizer = made(tmp_path, metadata)
    encoded = tokenizer.encode("he  the\n\né")
    assert encoded.tokens == ["<s>", "he", "▁", "▁the", "\n\n", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(encoded.ids) == "he  the\n\né"


def unigram_metadata():
    pieces = {"▁": -3.0, "t": -4.0, "h": -4.0, "e": -4.0, "▁the": -5.0, "th": -1.0, "▁t": -2.0}
    return {
        "model": "t5",
        "tokens": ["<pad>", "</s>", "<unk>", *SPM_TOKENS[3:259], *pieces],
        "scores": [0.0] * 259 + list(pieces.values()),
        "token_type": [Typed(5, 3), Typed(5, 3), Typed(5, 2)]
        + [Typed(5, 6)] * 256
        + [Typed(5, 1)] * len(pieces),
        "unknown_token_id": 2,
        "eos_token_id": 1,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
    }


def test_the_likeliest_pieces_of_a_text(tmp_path):
    """Greedy merges by score would take `th`; the whole word is likelier than its parts."""
    tokenizer = made(tmp_path, unigram_metadata())
    encoded = tokenizer.encode(" the   the é")
    assert encoded.tokens == ["▁the", "▁the", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(encoded.ids) == "the the é"


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_tokens_that_are_there_twice_or_empty_keep_their_numbers(tmp_path, kind):
    metadata = {"gpt2": demo_metadata, "llama": spm_metadata, "t5": unigram_metadata}[kind]()
    tokens = metadata["tokens"]
    metadata["tokens"] = [*tokens, tokens[-1], "", "", "<|last|>"]
    metadata["token_type"] = [*metadata["token_type"], *(Typed(5, one) for one in (1, 1, 4, 3))]
    if kind != "gpt2":
        metadata["scores"] = [*metadata["scores"], *[0.0] * 4]
    tokenizer = made(tmp_path, metadata)
    assert tokenizer.get_vocab_size() == len(tokens) + 4
    assert tokenizer.token_to_id(tokens[-1]) == len(tokens) - 1
    assert tokenizer.encode("x<|last|>").ids[-1] == len(tokens) + 3


@pytest.mark.parametrize("strips", [True, False])
def test_control_tokens_of_phi_3_take_the_spaces_behind_them(tmp_path, strips):
    metadata = spm_metadata()
    metadata["tokens"] = [*SPM_TOKENS, "<|user|>"]
    metadata["scores"] = [*metadata["scores"], -1.0]
    metadata["token_type"] = [*metadata["token_type"], Typed(5, 3)]
    name = {"general.name": "Phi-3 mini" if strips else "Other"}
    path = write_gguf(tmp_path / "t.gguf", {PREFIX + k: v for k, v in metadata.items()} | name)
    content = tokenizer_files(read_gguf(path), 64)["tokenizer.json"].decode()
    tokens = Tokenizer.from_str(content).encode("<|user|>\n\n the").tokens
    assert tokens[1] == ("<|user|>\n\n " if strips else "<|user|>")
    assert ("<0x0A>" in tokens) != strips


def test_a_turn_ends_where_the_names_of_tokens_say_so(tmp_path):
    """Files name one end token; of two more with such names one is only text."""
    metadata = spm_metadata()
    metadata["tokens"] = [*SPM_TOKENS, "<end_of_turn>", "<|im_end|>"]
    metadata["scores"] = [*metadata["scores"], 0.0, 0.0]
    metadata["token_type"] = [*metadata["token_type"], Typed(5, 3), Typed(5, 1)]
    made(tmp_path, metadata)
    assert end_tokens(read_gguf(tmp_path / "t.gguf")) == [2, len(SPM_TOKENS)]


@pytest.mark.parametrize("others", [("<|return|>", "<|call|>"), ("<|calls|>", "<|flush|>")])
def test_where_turns_have_channels_the_end_of_a_thought_is_none_of_the_turn(tmp_path, others):
    metadata = spm_metadata()
    names = [*others, "<|end|>"]
    metadata["tokens"] = [*SPM_TOKENS, *names]
    metadata["scores"] = [*metadata["scores"], 0.0, 0.0, 0.0]
    metadata["token_type"] = [*metadata["token_type"], *(Typed(5, 3) for _ in names)]
    first = len(SPM_TOKENS)
    made(tmp_path, metadata | {"eot_token_id": first + 2})
    assert end_tokens(read_gguf(tmp_path / "t.gguf")) == [2, first, first + 1]


def test_a_token_of_endless_length_is_refused(tmp_path):
    """Finding the two parts of a token takes the square of its length."""
    metadata = spm_metadata()
    metadata["tokens"] = [*SPM_TOKENS[:-1], "a" * 2_000_000]
    with pytest.raises(CheckpointError, match="a token of over 4096 characters"):
        made(tmp_path, metadata)


def test_scores_that_are_no_numbers_are_refused(tmp_path):
    metadata = spm_metadata()
    with pytest.raises(CheckpointError, match=r"no number in tokenizer\.ggml\.scores"):
        made(tmp_path, metadata | {"scores": ["x"] * len(metadata["scores"])})
    charsmap = {"precompiled_charsmap": ["x"]}
    with pytest.raises(CheckpointError, match="precompiled_charsmap"):
        made(tmp_path, unigram_metadata() | charsmap)
    with pytest.raises(CheckpointError, match="do not fit together"):
        made(tmp_path, unigram_metadata() | {"precompiled_charsmap": [1, 2, 3]})


def test_names_of_what_is_there_twice_are_told_apart_whatever_they_are(tmp_path):
    metadata = {"model": "gpt2", "tokens": ["a", "[AGAIN_2]a", "a", "[AGAIN_2]a"], "merges": []}
    assert made(tmp_path, metadata).get_vocab_size() == 4


def test_what_texts_begin_with_where_the_file_does_not_say(tmp_path):
    silent = {key: value for key, value in demo_metadata().items() if key != "add_bos_token"}
    for pre, begins in [("llama-bpe", True), ("tekken", True), ("qwen2", False)]:
        tokens = made(tmp_path, silent | {"pre": pre}).encode("x").tokens
        assert (tokens[0] == "<|bos|>") == begins
    spm = {key: value for key, value in spm_metadata().items() if not key.endswith("_token_id")}
    assert made(tmp_path, spm).encode("the").tokens[0] == "<s>"
    assert set(KINDS) == {"gpt2", "llama", "gemma4", "t5"}


@pytest.mark.parametrize(
    ("change", "words", "error"),
    [
        ({"model": "rwkv"}, "kind rwkv", UnsupportedModelError),
        ({"pre": "some-new-one"}, "pattern some-new-one", UnsupportedModelError),
        ({"pre": 7}, "pattern 7", UnsupportedModelError),
        ({"merges": ["a"]}, "no pairs", CheckpointError),
        ({"merges": ["zzz qqq"]}, "do not fit together", CheckpointError),
        ({"token_type": ["x"] * 512}, "no number in tokenizer.ggml.token_type", CheckpointError),
        ({"token_type": [float("nan")] * 512}, "no number in tokenizer.ggml.tok", CheckpointError),
        ({"tokens": []}, "holds no tokens", CheckpointError),
        ({"token_type": [1]}, "types of them", CheckpointError),
    ],
)
def test_what_is_not_known_is_refused_with_what_to_do(tmp_path, change, words, error):
    with pytest.raises(error, match=words) as raised:
        made(tmp_path, demo_metadata() | change)
    assert "--config" in str(raised.value) or "fetch it again" in str(raised.value)
