"""What the API needs from whatever serves a model: a small protocol, so that its tests need no
ring.

The coordinator implements it over the ring. Text is cut here, not in the API: a `TokenEvent`
carries text that is final (complete characters, nothing that may still turn out to begin a stop
string).
"""

import hashlib
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from molink.errors import InvalidRequestError
from molink.serving.events import EventLedger
from molink.serving.request_log import RequestLog
from molink.serving.timeline import RequestTimeline
from molink_scheduler.kv.owners import owned_salt
from molink_scheduler.request import SamplingParams
from molink_scheduler.routing.admission import NO_TARGETS, Targets
from molink_scheduler.token_ids import token_bytes

if TYPE_CHECKING:
    from molink.serving.kept_answer import AnswerLog

__all__ = [
    "ChatTokenizer",
    "GenerationRequest",
    "GenerationService",
    "Generator",
    "ModelCard",
    "PromptLogprob",
    "SamplingDefaults",
    "TokenEvent",
    "TokenLogprob",
    "cache_salt",
]


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that serving uses."""

    chat_template: str | None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""

    def get_vocab(self) -> dict[str, int]:
        """Ids of all tokens, added ones too."""

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """The vocabulary's entries of token ids."""

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        **kwargs: Any,
    ) -> Any:
        """The prompt text of a conversation (tokenize=False); `continue_final_message`: it ends
        within the last message."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """How tokens are drawn where a request does not say; `SamplingParams` explains the fields."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Card of a served model, as API users see it."""

    name: str
    """Its own, by which nodes know it."""
    created_unix_s: int
    vocabulary_size: int
    model_len_max: int
    """Most tokens of prompt and answer together: the model's length or the ring's KV capacity,
    whichever is less."""
    eos_token_ids: tuple[int, ...]
    tokenizer: ChatTokenizer | None
    """None for a checkpoint without one: it is served for token ids."""
    served_names: tuple[str, ...] = ()
    """What users call the model, where the operator says so; none: its own name."""
    sampling: SamplingDefaults = SamplingDefaults()
    """Sampling settings that the model's makers publish."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which users may ask for it; the first stands in answers."""
        return self.served_names or (self.name,)

    @property
    def shown_name(self) -> str:
        """The name that stands in answers."""
        return self.names[0]

    def check_words(self, token_ids: Iterable[int]) -> None:
        """Raise InvalidRequestError for the largest of these where the model has no row for it: a
        tokenizer may have more tokens."""
        if (largest := max(token_ids, default=0)) < self.vocabulary_size:
            return
        raise InvalidRequestError(
            f"The model has {self.vocabulary_size} rows of words and none for the token "
            f"{self._shown_word(largest)}, which its tokenizer knows: leave it out."
        )

    def _shown_word(self, token_id: int) -> str:
        """A token as it is written in a text, and its id."""
        words = self.tokenizer.convert_ids_to_tokens([token_id]) if self.tokenizer else [None]
        return f"{token_id}" if words[0] is None else f"{words[0]!r:.80} ({token_id})"

    def fitting(self, kv_tokens_capacity: int) -> "ModelCard":
        """As served by a ring that holds so many tokens."""
        return replace(self, model_len_max=min(self.model_len_max, kv_tokens_capacity))


HASH_CHARS = 31
"""Of a group and of an owner: heads take CACHE_SALT_CHARS_MAX of both, with a mark between."""


def _hashed(named: str) -> str:
    return hashlib.sha256(named.encode()).hexdigest()[:HASH_CHARS]


def cache_salt(key_id: str | None, chosen: str | None = None, *, is_shared: bool = False) -> str:
    """Salt of the cached KV that a request may share: as its sender has `chosen`, else that of the
    API key; nobody learns it from another's. Without a key, or where all share, empty."""
    if chosen:
        return _hashed(f"salt:{chosen}")
    if key_id is None or is_shared:
        return ""
    return _hashed(f"key:{key_id}")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. `sampling.stop_token_ids` already holds the end-of-sequence
    tokens, if wanted."""

    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    key_id: str | None = None
    """Of the API key that asks: what users share may depend on it. None: without a key."""
    priority: int = 0
    """Lower goes first where requests wait for room."""
    deadline_at: float | None = None
    """When its answer ends at the latest, by the event loop's clock; None: it has none."""
    cache_salt: str = ""
    """Only requests of one salt share cached KV."""
    timeline: RequestTimeline | None = field(default=None, compare=False)
    """Where the service notes what becomes of it; None: in one that it makes itself."""
    log: "AnswerLog | None" = field(default=None, compare=False)
    """Where its tokens are kept on disk; None: they are not."""
    targets: Targets = NO_TARGETS
    """What it is to get, or is refused; where it says nothing, the operator's."""
    packed: bytes = field(default=b"", compare=False, repr=False)
    """Its prompt, as rings take it and directories of cached prefixes compare it; packed once, when
    this is made."""

    def __post_init__(self) -> None:
        if not self.packed:
            object.__setattr__(self, "packed", token_bytes(self.prompt_token_ids))

    @property
    def owned_salt(self) -> str:
        """Salt as heads have it, which also says whose share of the cache it takes."""
        owner = _hashed(f"owner:{self.key_id}") if self.key_id is not None else ""
        return owned_salt(self.cache_salt, owner)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one generated token and of the most likely ones at its position."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token id, logprob), most likely first."""


@dataclass(frozen=True, slots=True)
class PromptLogprob(TokenLogprob):
    """Log-probability of one of the prompt's own tokens."""

    rank: int
    """1: no token was likelier there."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """News of one sequence: tokens that were sampled, and the text that became final with them."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per token id when asked for, else empty."""
    finish_reason: str | None = None
    """"stop" or "length" on the last event of a sequence, else None."""
    stop_reason: str | int | None = None
    """With "stop": the stop string or stop token that was asked for and came, None: the model's own
    end. With "length": "deadline" where the request's own has ended it (`deadline`)."""
    prompt_logprobs: tuple[PromptLogprob, ...] = ()
    """With the first token, when asked for: one per token of the prompt behind its first."""


class Generator(Protocol):
    """Source of answers of one model."""

    @property
    def card(self) -> ModelCard:
        """Card of the model that is served."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        """Stream one sequence; closing the generator cancels it.

        Raises RingError from the iteration when the ring cannot go on, InvalidRequestError when the
        request does not fit (prompt plus max_tokens over `card.model_len_max`), DeadlineError when
        its deadline comes before its first token.
        """


class GenerationService(Generator, Protocol):
    """Service that generates text with one model, and knows what becomes of requests."""

    @property
    def request_log(self) -> RequestLog:
        """Timelines of the requests that are live, and of the last that have ended."""

    @property
    def events(self) -> EventLedger:
        """What has happened to the cluster."""

    def cluster(self) -> dict[str, Any]:
        """The body of GET /cluster."""

    @property
    def unready_reason(self) -> str | None:
        """Why requests are not accepted now, None when they are (GET /health)."""

    async def until_taken(self) -> None:
        """Until a request that comes now may be asked; a service that is away for a moment may let
        it wait. Raises RingError when nothing can be served, OverloadedError when too many wait."""
