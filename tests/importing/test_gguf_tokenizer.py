"""Tokenizers made from a GGUF file's metadata cut text as those that the metadata came from."""

import json

import pytest
from tokenizers import Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE
from transformers import AutoTokenizer

from molink.checkpoint.gguf.header import read_gguf
from molink.errors import CheckpointError, UnsupportedModelError
from molink.importing.gguf_tokenizer import PATTERNS, end_tokens, tokenizer_files
from molink.models import DEMO_MODEL_DIR
from tests.checkpoint.gguf.written import Typed, write_gguf

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
        ("qwen2", "I'LL pay 123", ["I", "'LL", " pay", " ", "1", "2", "3"]),
        ("tekken", "aB 12/\n", ["a", "B", " ", "1", "2", "/\n"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("gpt-2", "It's 12345!", ["It", "'s", " 12345", "!"]),
    ],
)
def test_patterns_cut_words_as_published(tmp_path, pre, text, words):
    assert pre in PATTERNS
    tokenizer = made(tmp_path, demo_metadata() | {"pre": pre})
    spans = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert [text[start:stop] for start, stop in spans] == words


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


@pytest.mark.parametrize(
    ("change", "words", "error"),
    [
        ({"model": "rwkv"}, "kind rwkv", UnsupportedModelError),
        ({"pre": "some-new-one"}, "pattern some-new-one", UnsupportedModelError),
        ({"merges": ["a"]}, "no pairs", CheckpointError),
        ({"merges": ["zzz qqq"]}, "do not fit together", CheckpointError),
        ({"tokens": []}, "holds no tokens", CheckpointError),
        ({"token_type": [1]}, "types of them", CheckpointError),
    ],
)
def test_what_is_not_known_is_refused_with_what_to_do(tmp_path, change, words, error):
    with pytest.raises(error, match=words) as raised:
        made(tmp_path, demo_metadata() | change)
    assert "--config" in str(raised.value) or "fetch it again" in str(raised.value)
