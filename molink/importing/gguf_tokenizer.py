"""tokenizer.json and its config from the metadata of a GGUF file.

Two kinds of vocabulary are known: pairs of bytes ("gpt2"), where the file has tokens and merges and
names the pattern that cuts text into words, and SentencePiece's ("llama"), where merges follow from
the scores of the tokens. A pattern that is not known here is refused: a tokenizer that is almost
right makes a model that is almost right. The library's own conversion was rejected, because it
guesses then, and adds a token of its own beyond the vocabulary.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from molink.checkpoint.gguf.header import GgufHeader
from molink.errors import CheckpointError, UnsupportedModelError
from molink.printable import printable_line

__all__ = ["end_tokens", "tokenizer_files"]

KEY = "tokenizer.ggml."
SPACE = "\u2581"
"""How SentencePiece writes a space."""

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Types of tokens that are no pieces of text."""

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_4O = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_ENDING}|{_BEFORE}{_UPPER}+{_LOWER}*{_ENDING}"
    rf"|\p{{N}}{{1,3}}|{_REST}"
)
TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST}"


@dataclass(frozen=True, slots=True)
class Words:
    """How a vocabulary of bytes cuts text into words."""

    pattern: str | None
    """None: GPT-2's own."""
    whole_first: bool = False
    """Whether a word that is a token itself is not put together by merges."""
    composed: bool = False
    """Whether text is brought into Unicode's composed form before."""


PATTERNS = {
    "gpt-2": Words(None),
    "llama-bpe": Words(LLAMA3, whole_first=True),
    "llama3": Words(LLAMA3, whole_first=True),
    "llama-v3": Words(LLAMA3, whole_first=True),
    "qwen2": Words(QWEN2, composed=True),
    "deepseek-r1-qwen": Words(QWEN2, composed=True),
    "tekken": Words(TEKKEN, whole_first=True),
    "gpt-4o": Words(GPT_4O, whole_first=True),
}
"""By `tokenizer.ggml.pre`."""

WITH_CONFIG = "name the folder of the original model with --config"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a file says of its tokens."""

    header: GgufHeader
    tokens: Sequence[str]
    types: Sequence[int]

    def value(self, key: str) -> Any:
        """A setting of the tokenizer, or None."""
        return self.header.metadata.get(KEY + key)

    def texts(self, key: str) -> list[str] | None:
        """A list of texts, or None."""
        values = self.header.array(KEY + key)
        if values is None or not all(isinstance(one, str) for one in values):
            return None
        return [str(one) for one in values]

    def token(self, key: str) -> str | None:
        """The token whose number a setting gives."""
        number = self.value(f"{key}_token_id")
        known = isinstance(number, int) and 0 <= number < len(self.tokens)
        return self.tokens[number] if known else None

    def added(self) -> list[tuple[str, bool]]:
        """Tokens that text is searched for as a whole, and whether they are special."""
        return [
            (token, kind != USER_DEFINED)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED) and token
        ]


def tokenizer_files(header: GgufHeader, length_max: int) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json, by name. Raises UnsupportedModelError for a kind of
    vocabulary that is not known, CheckpointError for one that does not hold together."""
    vocabulary = _vocabulary(header)
    kind = vocabulary.value("model")
    if kind == "gpt2":
        tokenizer = _byte_pairs(vocabulary)
    elif kind == "llama":
        tokenizer = _sentencepiece(vocabulary)
    else:
        raise _unknown(header, f"the kind {printable_line(str(kind))[:40]}")
    _add_tokens(tokenizer, vocabulary)
    _begin(tokenizer, vocabulary, default=kind == "llama")
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(_config(vocabulary, length_max), indent=2).encode(),
    }


def end_tokens(header: GgufHeader) -> list[int]:
    """Numbers of the tokens that end an answer: of a text, of a turn, of a message."""
    keys = ("eos", "eot", "eom")
    found = [header.metadata.get(f"{KEY}{key}_token_id") for key in keys]
    return list(dict.fromkeys(one for one in found if isinstance(one, int)))


def _vocabulary(header: GgufHeader) -> Vocabulary:
    tokens = header.array(f"{KEY}tokens")
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(f"{header.path} holds no tokens: {WITH_CONFIG}")
    types = header.array(f"{KEY}token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise CheckpointError(
            f"{header.path} has {len(tokens)} tokens and {len(types)} types of them: fetch it again"
        )
    return Vocabulary(header, [str(one) for one in tokens], [int(one) for one in types])


def _unknown(header: GgufHeader, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{header.path} has a tokenizer of {what}, which MoLink does not know: {WITH_CONFIG}"
    )


# -- pairs of bytes -------------------------------------------------------------------------------


def _byte_pairs(vocabulary: Vocabulary) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    name = vocabulary.value("pre") or "gpt-2"
    words = PATTERNS.get(name)
    if words is None:
        raise _unknown(vocabulary.header, f"the pattern {printable_line(str(name))[:40]}")
    numbers = {token: number for number, token in enumerate(vocabulary.tokens)}
    merges = [_pair(vocabulary, merge) for merge in vocabulary.texts("merges") or ()]
    model = _model(vocabulary, lambda: BPE(numbers, merges, ignore_merges=words.whole_first))
    tokenizer = Tokenizer(model)
    if words.composed:
        tokenizer.normalizer = normalizers.NFC()
    if words.pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(words.pattern), behavior="isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(vocabulary: Vocabulary, merge: str) -> tuple[str, str]:
    first, space, second = merge.partition(" ")
    if not space or " " in second:
        raise CheckpointError(
            f"{vocabulary.header.path} has merges that are no pairs: fetch it again"
        )
    return first, second


def _model(vocabulary: Vocabulary, make: Any) -> Any:
    """A model of the library, which answers what does not fit with an exception of its own."""
    try:
        return make()
    except Exception as error:
        raise CheckpointError(
            f"the tokens and merges of {vocabulary.header.path} do not fit together "
            f"({printable_line(str(error))[:80]}): fetch it again, or {WITH_CONFIG}"
        ) from error


# -- SentencePiece --------------------------------------------------------------------------------


def _sentencepiece(vocabulary: Vocabulary) -> Any:
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    tokens = [_spelled(token) for token in vocabulary.tokens]
    numbers = {token: number for number, token in enumerate(tokens)}
    merges = _merges(vocabulary, tokens, numbers)
    unknown = vocabulary.token("unknown") or next(
        (one for one, kind in zip(tokens, vocabulary.types, strict=True) if kind == UNKNOWN), None
    )
    options = {"unk_token": unknown, "byte_fallback": True, "fuse_unk": True}
    tokenizer = Tokenizer(_model(vocabulary, lambda: BPE(numbers, merges, **options)))
    spaces = normalizers.Replace(" ", SPACE)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.value("add_space_prefix") is False:
        tokenizer.normalizer = spaces
        tokenizer.decoder = decoders.Sequence(steps)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return tokenizer


def _spelled(token: str) -> str:
    """Tokens of several spaces are stored as spaces."""
    return SPACE * len(token) if token and not token.strip(" ") else token


def _merges(
    vocabulary: Vocabulary, tokens: list[str], numbers: dict[str, int]
) -> list[tuple[str, str]]:
    """The two parts of every token that has two, the likeliest token first."""
    stored = vocabulary.texts("merges")
    if stored:
        return [_pair(vocabulary, merge) for merge in stored]
    scores = vocabulary.header.array(f"{KEY}scores") or []
    if len(scores) != len(tokens):
        raise CheckpointError(
            f"{vocabulary.header.path} has {len(tokens)} tokens and {len(scores)} scores of them: "
            "fetch it again"
        )
    found = []
    for token, number in numbers.items():
        for cut in range(1, len(token)):
            first, second = numbers.get(token[:cut]), numbers.get(token[cut:])
            if first is not None and second is not None:
                found.append((-float(scores[number]), number, first, second))
    found.sort()
    return [(tokens[first], tokens[second]) for _, _, first, second in found]


# -- what both have -------------------------------------------------------------------------------


def _add_tokens(tokenizer: Any, vocabulary: Vocabulary) -> None:
    from tokenizers import AddedToken

    added = vocabulary.added()
    for token, special in added:
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=special)])
    if tokenizer.get_vocab_size() != len(vocabulary.tokens):
        raise CheckpointError(
            f"{vocabulary.header.path} has tokens that are there twice: {WITH_CONFIG}"
        )


def _begin(tokenizer: Any, vocabulary: Vocabulary, *, default: bool) -> None:
    """Let every text begin with the token that begins one, where the file wants it."""
    from tokenizers import processors

    wanted = vocabulary.value("add_bos_token")
    first = vocabulary.token("bos")
    if first is None or not (default if wanted is None else wanted):
        return
    number = vocabulary.value("bos_token_id")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[first, "$A"], pair=[first, "$A", first, "$B"], special_tokens=[(first, number)]
    )


def _config(vocabulary: Vocabulary, length_max: int) -> dict[str, Any]:
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    tokens = {f"{name}_token": vocabulary.token(key) for name, key in keys.items()}
    template = vocabulary.header.metadata.get("tokenizer.chat_template")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length_max,
        "clean_up_tokenization_spaces": False,
        **{name: token for name, token in tokens.items() if token is not None},
    }
    return config | ({"chat_template": template} if isinstance(template, str) else {})
