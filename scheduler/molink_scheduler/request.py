"""Request of a user: the prompt, and how the answer is to be sampled.

Values only, valid once built. The API checks the outside world's JSON and speaks to people; the
checks here are the last line that keeps a bad number from reaching a stage.
"""

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from molink_scheduler.token_ids import TOKEN_BYTES, tokens_of

__all__ = [
    "CACHE_SALT_CHARS_MAX",
    "CONTEXT_TOKENS_MAX",
    "GRAMMAR_CHARS_MAX",
    "GREEDY_BELOW",
    "KEEP_S_MAX",
    "KV_BUDGET_MIN",
    "LOGIT_BIAS_BYTES",
    "LOGIT_BIAS_COUNT_MAX",
    "LOGIT_BIAS_MAX",
    "LOGPROBS_MAX",
    "PREDICTION_TOKENS_MAX",
    "PRIORITY_MAX",
    "STOP_COUNT_MAX",
    "WISHES_MAX",
    "ModelLimits",
    "Request",
    "SamplingParams",
    "WishedTokens",
]

LOGPROBS_MAX = 20
"""OpenAI's limit for `top_logprobs`; each costs a token id and a float on the wire per generated
token."""

STOP_COUNT_MAX = 64
"""The tail compares every stop string with every new piece of text; OpenAI allows 4, local servers
usually more."""

QUIET_COUNT_MAX = 8
"""Kinds of parts of an answer: one for thoughts, and a few ways in which calls begin."""

PRIORITY_MAX = 2**31 - 1
"""Farthest priority to either side of 0, which is the usual: people number their classes as they
like, clients as 32 bits."""

CACHE_SALT_CHARS_MAX = 64
"""Characters of a salt; one that users give is hashed first."""

LOGIT_BIAS_COUNT_MAX, LOGIT_BIAS_MAX = 300, 100.0
"""OpenAI's limits. A bias of 100 decides against any honest logit, so more would mean nothing."""

GREEDY_BELOW = 1e-5
"""Temperatures below are greedy: a logit that is less by a thousandth, as far as 16 bits tell them
apart, is less likely by e^-100. Clients that fear 0 send 1e-6 and numbers down to 5e-324."""

CONTEXT_TOKENS_MAX = 6
"""Tokens of a prompt's end that go along: the text of a token depends on few before it."""

GRAMMAR_CHARS_MAX = 2**16
"""A JSON schema of a large public API takes half of it. Every stage reads it on its way to the
tail."""

GRAMMAR_CHAR_BYTES, LOGIT_BIAS_BYTES = 4, 64
"""Bytes of a character in UTF-8 at most; of a pair in memory, where an array takes more than its
bytes on the wire."""


KV_BUDGET_MIN = 0.1
"""Least share of a prompt's tokens that layers may be asked to keep."""

PREDICTION_TOKENS_MAX = 2**16
"""Most tokens of an answer's expected text: a source file of some 7,000 lines, a third of a
megabyte on the way to the head."""

WISHES_MAX = 4
"""Wishes of one request: Anthropic's limit for blocks with `cache_control`."""

KEEP_S_MAX = 3600
"""Longest wish: Anthropic's longer one, an hour."""

WishedTokens = tuple[tuple[int, int], ...]
"""Wishes of a request: first tokens of its prompt, and seconds to keep them after each use."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Rules by which one sequence is sampled and ends. They travel to the tail once, with the
    request's first span."""

    max_tokens: int
    """Tokens to generate at most, at least 1."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    min_p: float = 0.0
    seed: int = 0
    """Key of the counter-based random numbers: position i of a sequence draws the same number in
    any batch."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """End-of-sequence tokens included, unless the request ignores them."""
    logprobs: int | None = None
    """Number k: log-probabilities of the chosen token and of the k most likely; None: none."""
    skip_special_tokens: bool = True
    """Whether text, in which stop strings are looked for, leaves out the tokenizer's special
    tokens."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs (token id, what to add to its logit before penalties), each token id once."""
    grammar: str = ""
    """Grammar that the answer must match, as JSON in llguidance's form; empty: anything."""

    prompt_logprobs: int | None = None
    """Number k: the log-probability of each of the prompt's own tokens but the first, and of the k
    most likely ones at its place; None: no scores."""
    min_tokens: int = 0
    """Tokens to generate at least: before that neither a stop token nor a stop string ends it."""
    quiet: tuple[tuple[str, str, bool], ...] = ()
    """Marks (begin, end) between which stop strings end nothing: around thoughts and calls. An
    empty begin: the answer begins there; an empty end: all that follows. True: the part begins only
    where the answer or its text does, as elsewhere the mark is text."""
    context: tuple[int, ...] = ()
    """The prompt's last tokens, behind which the answer's text is read: some tokenizers leave out
    the space in front of a text. Empty: it is a text of its own, as in a chat."""
    kv_budget: float = 1.0
    """Share of the prompt's tokens that most layers go on with once it is computed (`prompt_cut`);
    1: all. It changes the answer, so it goes wherever the other rules do, to each stage."""

    def __post_init__(self) -> None:
        _check_range("max_tokens", self.max_tokens, 1, 2**31)
        _check_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _check_range("top_k", self.top_k, 0, 2**31)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("seed", self.seed, 0, 2**64 - 1)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above_low=True)
        _check_range("kv_budget", self.kv_budget, KV_BUDGET_MIN, 1.0)
        if self.logprobs is not None:
            _check_range("logprobs", self.logprobs, 0, LOGPROBS_MAX)
        if self.prompt_logprobs is not None:
            _check_range("prompt_logprobs", self.prompt_logprobs, 0, LOGPROBS_MAX)
        if len(self.stop) > STOP_COUNT_MAX or "" in self.stop:
            raise ValueError(f"stop takes at most {STOP_COUNT_MAX} strings, none of them empty")
        if len(self.quiet) > QUIET_COUNT_MAX:
            raise ValueError(f"quiet takes at most {QUIET_COUNT_MAX} pairs of marks")
        if len(self.logit_bias) > LOGIT_BIAS_COUNT_MAX:
            raise ValueError(f"logit_bias takes at most {LOGIT_BIAS_COUNT_MAX} tokens")
        for _, bias in self.logit_bias:
            _check_range("logit_bias", bias, -LOGIT_BIAS_MAX, LOGIT_BIAS_MAX)
        if len(self.context) > CONTEXT_TOKENS_MAX:
            raise ValueError(f"a context takes at most {CONTEXT_TOKENS_MAX} tokens")
        if len(self.grammar) > GRAMMAR_CHARS_MAX:
            raise ValueError(f"a grammar takes at most {GRAMMAR_CHARS_MAX} characters")

    @property
    def needs_prompt(self) -> bool:
        """Whether the tail must know the prompt's tokens: the repetition penalty counts them, and
        they may be scored."""
        return self.repetition_penalty != 1.0 or self.prompt_logprobs is not None

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the likeliest: also at temperatures that leave no other a chance,
        by which logits cannot be divided."""
        return self.temperature < GREEDY_BELOW

    @property
    def named(self) -> tuple[int, ...]:
        """The token ids that it names: with a logit bias, as ends, as context."""
        biased = (token_id for token_id, _ in self.logit_bias)
        return (*biased, *self.stop_token_ids, *self.context)

    @property
    def bulk_bytes(self) -> int:
        """Most bytes that the grammar and the biases take in a message."""
        return len(self.grammar) * GRAMMAR_CHAR_BYTES + len(self.logit_bias) * LOGIT_BIAS_BYTES


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits that every stage of a model knows."""

    sequence_tokens_max: int
    """Most positions for which the model means anything."""
    vocabulary_size: int

    def has_token_ids(self, token_ids: Iterable[int]) -> bool:
        """Whether all of these are in the vocabulary."""
        return all(0 <= token_id < self.vocabulary_size for token_id in token_ids)


@dataclass(frozen=True, slots=True)
class Request:
    """Sequence to generate, as the head receives it."""

    request_id: int
    """Unique in this ring; given by the coordinator, rising with arrival."""
    prompt: bytes
    """Token ids, at least one, packed (`token_ids`)."""
    sampling: SamplingParams
    output: tuple[int, ...] = field(default=())
    """Tokens generated before (a request that is replayed after a failure); usually empty."""
    priority: int = 0
    """Lower goes first where requests wait for room, and gives its room up last."""
    cache_salt: str = ""
    """Group in which requests share cached KV, and whose share of the cache they take
    (`kv.owners`)."""
    wishes: WishedTokens = ()
    """First tokens of the prompt that its sender wishes to stay cached, and how long
    (`kv.wishes`)."""
    prediction: tuple[int, ...] = ()
    """Tokens of a text that the answer is expected to repeat, as an edited file does: one more text
    to copy drafts from. It changes no answer."""

    def __post_init__(self) -> None:
        if not self.prompt or len(self.prompt) % TOKEN_BYTES:
            raise ValueError(f"a prompt holds at least one token, of {TOKEN_BYTES} bytes each")
        _check_range("priority", self.priority, -PRIORITY_MAX, PRIORITY_MAX)
        if len(self.cache_salt) > CACHE_SALT_CHARS_MAX:
            raise ValueError(f"a cache's salt takes at most {CACHE_SALT_CHARS_MAX} characters")
        if len(self.wishes) > WISHES_MAX:
            raise ValueError(f"a request has at most {WISHES_MAX} wishes")
        if len(self.prediction) > PREDICTION_TOKENS_MAX:
            raise ValueError(f"a prediction takes at most {PREDICTION_TOKENS_MAX} tokens")
        for tokens, keep_s in self.wishes:
            _check_range("a wish's tokens", tokens, 1, self.prompt_tokens)
            _check_range("a wish's seconds", keep_s, 1, KEEP_S_MAX)

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return len(self.prompt) // TOKEN_BYTES

    @property
    def prompt_ids(self) -> "array[int]":
        """Token ids of the prompt."""
        return tokens_of(self.prompt)

    @property
    def order(self) -> tuple[int, int]:
        """Rank among requests, the least first: the smaller priority, then the earlier arrival."""
        return self.priority, self.request_id

    @property
    def tokens_max(self) -> int:
        """Most KV tokens that this request can come to hold: the last generated token is never
        computed."""
        return self.prompt_tokens + self.sampling.max_tokens - 1


def _check_range(
    name: str, value: float, low: float, high: float, *, above_low: bool = False
) -> None:
    """Raise ValueError unless `value` is a finite number in [low, high] ((low, high] when
    `above_low`)."""
    if not math.isfinite(value) or value < low or value > high or (above_low and value == low):
        opening = "(" if above_low else "["
        raise ValueError(f"{name} must be a number in {opening}{low:g}, {high:g}], got {value}")
