"""tokenizer.json and its config from the metadata of a GGUF file.

Four kinds of vocabulary are known: pairs of bytes ("gpt2"), where the file has tokens and merges
and names the patterns that cut text into words, SentencePiece's ("llama"), where merges follow from
the scores of the tokens, pairs of characters ("gemma4"), and SentencePiece's other model, which
takes the likeliest pieces of a text ("t5"). The library's own conversion was rejected, because it
guesses where it does not know a pattern, and adds a token of its own beyond the vocabulary.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE, Unigram

from molink.checkpoint.end_tokens import with_named_ends
from molink.checkpoint.gguf.header import GgufHeader
from molink.errors import CheckpointError, UnsupportedModelError
from molink.importing.gguf.metadata import WITH_CONFIG
from molink.importing.gguf.patterns import LINES, WORDS
from molink.json_object import JsonObject
from molink.printable import printable_line

KEY = "tokenizer.ggml."
SPACE = "\u2581"
"""How SentencePiece writes a space."""

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Types of tokens that are no pieces of text."""

TOKEN_CHARACTERS_MAX = 4096
"""Characters of a token; published ones have hundreds. Finding its parts takes their square."""

RIGHT_STRIPPED = ("phi-3", "phi3")
"""Names of models whose control tokens take the spaces behind them; files do not say it."""

NOT_STRIPPED = ("<unk>", "<s>", "<|endoftext|>")

DEFAULT_NUMBERS = {"llama": {"bos": 1, "eos": 2, "unknown": 0}}
"""Ids of tokens with a meaning, by kind of vocabulary, where a file leaves them out."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Vocabulary of a file: its tokens and what it says of them."""

    header: GgufHeader
    tokens: Sequence[str]
    """Tokens, each by a name of its own."""
    types: Sequence[float]

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each token."""
        return {token: number for number, token in enumerate(self.tokens)}

    def value(self, key: str) -> Any:
        """A setting of the tokenizer, or None."""
        return self.header.metadata.get(KEY + key)

    def scores(self) -> list[float]:
        """Score of each token. Raises CheckpointError when there are more or fewer."""
        return _as_many(self.header, self.tokens, "scores", _figures(self.header, "scores"))

    def number(self, key: str) -> int | None:
        """The number of a token with a meaning, or None."""
        defaults = DEFAULT_NUMBERS.get(str(self.value("model")), {})
        number = self.value(f"{key}_token_id")
        number = defaults.get(key) if number is None else number
        known = isinstance(number, int) and 0 <= number < len(self.tokens)
        return number if known else None

    def token(self, key: str) -> str | None:
        """The token whose number a setting gives."""
        number = self.number(key)
        return None if number is None else self.tokens[number]

    def unknown(self) -> int | None:
        """The number of the token for what no other one spells."""
        first = (at for at, kind in enumerate(self.types) if kind == UNKNOWN)
        return next(first, None) if (given := self.number("unknown")) is None else given

    def added(self) -> list[tuple[str, bool]]:
        """Tokens that text is searched for as a whole, and whether they are special."""
        return [
            (token, kind != USER_DEFINED)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ]


def tokenizer_files(header: GgufHeader, length_max: int) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json, by name. Raises UnsupportedModelError for a kind of
    vocabulary that is not known, CheckpointError for a vocabulary that does not hold together."""
    vocabulary = _vocabulary(header)
    kind = vocabulary.value("model")
    make = KINDS.get(kind) if isinstance(kind, str) else None
    if make is None:
        raise _unknown(header, f"the kind {printable_line(str(kind))[:40]}")
    tokenizer, begins = make(vocabulary)
    _add_tokens(tokenizer, vocabulary)
    _begin(tokenizer, vocabulary, default=begins)
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(_config(vocabulary, length_max), indent=2).encode(),
    }


def end_tokens(header: GgufHeader) -> list[int]:
    """Numbers of the tokens that end an answer: of a text, of a turn, of a message."""
    vocabulary = _vocabulary(header)
    numbers = vocabulary.numbers
    special = {token: numbers[token] for token, _ in vocabulary.added()}
    return with_named_ends(map(vocabulary.number, ("eos", "eot", "eom")), special)


def _vocabulary(header: GgufHeader) -> Vocabulary:
    tokens = header.array(f"{KEY}tokens")
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise CheckpointError(f"{header.path} holds no tokens: {WITH_CONFIG}")
    if any(len(str(token)) > TOKEN_CHARACTERS_MAX for token in tokens):
        raise CheckpointError(
            f"{header.path} has a token of over {TOKEN_CHARACTERS_MAX} characters: fetch it again"
        )
    types = _figures(header, "token_type") or [1.0] * len(tokens)
    return Vocabulary(header, _names(tokens), _as_many(header, tokens, "types", types))


def _as_many(
    header: GgufHeader, tokens: Sequence[object], what: str, figures: list[float]
) -> list[float]:
    """The figures, of which each token must have one."""
    if len(figures) != len(tokens):
        raise CheckpointError(
            f"{header.path} has {len(tokens)} tokens and {len(figures)} {what} of them: "
            "fetch it again"
        )
    return figures


def _figures(header: GgufHeader, key: str) -> list[float]:
    """A list of numbers, empty where there is none."""
    values = header.array(KEY + key) or []
    if any(isinstance(one, str) or not math.isfinite(one) for one in values):
        raise CheckpointError(
            f"{header.path} has what is no number in {KEY}{key}: fetch it again, or {WITH_CONFIG}"
        )
    return [float(one) for one in values]


def _names(tokens: Sequence[object]) -> list[str]:
    """The tokens, where one without text or with that of another has a name of its own: it can be
    in no text, but keeps its number."""
    names: dict[str, None] = {}
    for number, token in enumerate(tokens):
        name = str(token) or f"[EMPTY_{number}]"
        while name in names:
            name = f"[AGAIN_{number}]{name}"
        names[name] = None
    return list(names)


def _unknown(header: GgufHeader, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{header.path} has a tokenizer of {what}, which MoLink does not know: {WITH_CONFIG}"
    )


def _pairs(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The merges of a file."""
    pairs = []
    for merge in map(str, vocabulary.header.array(f"{KEY}merges") or ()):
        first, space, second = merge[1:].partition(" ")  # A part may begin with a space.
        if not space or not second:
            raise CheckpointError(
                f"{vocabulary.header.path} has merges that are no pairs: fetch it again"
            )
        pairs.append((merge[:1] + first, second))
    return pairs


def _model(vocabulary: Vocabulary, make: Any) -> Any:
    """A model of the library, which answers what does not fit with an exception of its own."""
    try:
        return make()
    except Exception as error:
        raise CheckpointError(
            f"the tokens and merges of {vocabulary.header.path} do not fit together "
            f"({printable_line(str(error))[:80]}): fetch it again, or {WITH_CONFIG}"
        ) from error


# -- kinds: each gives a tokenizer, and whether texts begin with a token unless a key says it -----


def _byte_pairs(vocabulary: Vocabulary) -> tuple[Any, bool]:
    name = vocabulary.value("pre") or "default"
    if name == "sarvam-moe":
        return _sentencepiece(vocabulary)
    words = WORDS.get(name) if isinstance(name, str) else None
    if words is None:
        raise _unknown(vocabulary.header, f"the pattern {printable_line(str(name))[:40]}")
    numbers, merges = vocabulary.numbers, _pairs(vocabulary)
    model = _model(vocabulary, lambda: BPE(numbers, merges, ignore_merges=words.whole_first))
    tokenizer = Tokenizer(model)
    if words.composed:
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(one), "isolated") for one in words.patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, words.begins


def _sentencepiece(vocabulary: Vocabulary) -> tuple[Any, bool]:
    """Merges of characters, with bytes for those that are no tokens; in pairs of characters, of
    single lines and with no space in front."""
    numbers = vocabulary.numbers
    merges = _pairs(vocabulary) or _merges(vocabulary, numbers)
    unknown = vocabulary.unknown()
    options: dict[str, Any] = {"byte_fallback": True, "fuse_unk": True}
    options |= {} if unknown is None else {"unk_token": vocabulary.tokens[unknown]}
    tokenizer = Tokenizer(_model(vocabulary, lambda: BPE(numbers, merges, **options)))
    kind = vocabulary.value("model")
    in_front = kind == "llama" and vocabulary.value("add_space_prefix") is not False
    spaces = normalizers.Replace(" ", SPACE)
    before = [normalizers.Prepend(SPACE)] if in_front else []
    tokenizer.normalizer = normalizers.Sequence([*before, spaces])
    if kind != "llama":
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(LINES), "isolated")
    tokenizer.decoder = _spaces_and_bytes(in_front=in_front)
    return tokenizer, kind != "gpt2"


def _merges(vocabulary: Vocabulary, numbers: dict[str, int]) -> list[tuple[str, str]]:
    """The two parts of every token that has two, the likeliest token first."""
    scores = vocabulary.scores()
    found = []
    for token, number in numbers.items():
        for cut in range(1, len(token)):
            first, second = numbers.get(token[:cut]), numbers.get(token[cut:])
            if first is not None and second is not None:
                found.append((-scores[number], number, first, second))
    found.sort()
    tokens = vocabulary.tokens
    return [(tokens[first], tokens[second]) for _, _, first, second in found]


def _likeliest_pieces(vocabulary: Vocabulary) -> tuple[Any, bool]:
    pieces = list(zip(vocabulary.tokens, vocabulary.scores(), strict=True))
    by_bytes = "<0x00>" in vocabulary.tokens
    unknown = vocabulary.unknown()
    tokenizer = Tokenizer(_model(vocabulary, lambda: Unigram(pieces, unknown, by_bytes)))
    steps: list[Any] = []
    if characters := _figures(vocabulary.header, "precompiled_charsmap"):
        table = bytes(int(one) & 0xFF for one in characters)
        steps.append(_model(vocabulary, lambda: normalizers.Precompiled(table)))
    if vocabulary.value("remove_extra_whitespaces"):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    in_front = vocabulary.value("add_space_prefix") is True
    scheme = "always" if in_front else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    tokenizer.decoder = _spaces_and_bytes(in_front=in_front)
    return tokenizer, False


KINDS = {
    "gpt2": _byte_pairs,
    "gemma4": _sentencepiece,
    "llama": _sentencepiece,
    "t5": _likeliest_pieces,
}
"""Makers of tokenizers by `tokenizer.ggml.model`; encoders and RWKV are left out."""


def _spaces_and_bytes(*, in_front: bool) -> Any:
    """Decoder of SentencePiece's spelling; a space in front of all is taken away where one was put
    there."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if in_front else steps)


# -- what all have --------------------------------------------------------------------------------


def _add_tokens(tokenizer: Any, vocabulary: Vocabulary) -> None:
    name = str(vocabulary.header.metadata.get("general.name", "")).lower()
    strips = any(one in name for one in RIGHT_STRIPPED)
    tokenizer.add_tokens(
        [
            AddedToken(
                token,
                normalized=False,
                special=special,
                rstrip=strips and token not in NOT_STRIPPED,
            )
            for token, special in vocabulary.added()
        ]
    )
    assert tokenizer.get_vocab_size() == len(vocabulary.tokens)


def _begin(tokenizer: Any, vocabulary: Vocabulary, *, default: bool) -> None:
    """Let every text begin with the token that begins one, where the file wants it."""
    wanted = vocabulary.value("add_bos_token")
    first, number = vocabulary.token("bos"), vocabulary.number("bos")
    if first is None or not (default if wanted is None else wanted):
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[first, "$A"], pair=[first, "$A", first, "$B"], special_tokens=[(first, number)]
    )


def _config(vocabulary: Vocabulary, length_max: int) -> JsonObject:
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
