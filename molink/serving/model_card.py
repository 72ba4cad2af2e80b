"""Card of a served model, as API users see it, and what serving needs of its tokenizer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from molink.errors import InvalidRequestError


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
        conversation: Sequence[Mapping[str, object]],
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
    """Name of the model by which nodes know it."""
    created_unix_s: int
    vocabulary_size: int
    model_len_max: int
    """Most tokens of prompt and answer together: the model's length or the ring's KV capacity,
    whichever is less."""
    eos_token_ids: tuple[int, ...]
    tokenizer: ChatTokenizer | None
    """None for a checkpoint without one: it is served for token ids."""
    served_names: tuple[str, ...] = ()
    """Names by which users call the model, where the operator gives any; none: its own name."""
    sampling: SamplingDefaults = SamplingDefaults()
    """Sampling settings that the model's makers publish."""
    bound: str = ""
    """Sentence on why it is shorter than the model; empty: there is nothing to say."""
    has_latents: bool = False
    """Whether it keeps latent rows in place of keys and values, which are not cut."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which users may ask for it; the first stands in answers."""
        return self.served_names or (self.name,)

    @property
    def shown_name(self) -> str:
        """The name that stands in answers."""
        return self.names[0]

    def check_token_ids(self, token_ids: Iterable[int]) -> None:
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

    def fitting(self, kv_tokens_capacity: int, *, borrows: bool = False) -> "ModelCard":
        """The card of a ring that holds at most so many tokens; `borrows`: with what lenders hold
        of them."""
        if kv_tokens_capacity >= self.model_len_max:
            return self
        room = f"{kv_tokens_capacity:,} tokens, with all that is lent to them"
        bound = f"Its stages have room for {room}." if borrows else ""
        return replace(self, model_len_max=kv_tokens_capacity, bound=bound)
