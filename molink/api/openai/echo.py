"""What an answer shows of its prompt: `echo`, and the log-probabilities of the prompt's tokens.

With `max_tokens` 0, which only makes sense together with `echo`, one token is computed all the same
and left out: that is how texts are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from molink.api.errors import ApiError
from molink.api.openai.logprobs import TokenTexts, check_scores, prompt_entries
from molink.api.schemas import CompletionBody
from molink.serving.service import ModelCard, PromptLogprob

__all__ = ["ShownPrompt", "wanted_scores"]


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """One prompt, and what its answers show of it."""

    token_ids: tuple[int, ...]
    text: str
    """Empty unless it is echoed."""
    is_echoed: bool
    scores: int | None
    """Alternatives that `prompt_logprobs` asks for; None: it is not asked for."""

    @classmethod
    def of(
        cls,
        prompt: str | Sequence[int],
        token_ids: tuple[int, ...],
        body: CompletionBody,
        card: ModelCard,
    ) -> "ShownPrompt":
        """A prompt as it was sent and as token ids. Raises ApiError for fields that do not go
        together, or ask for too much."""
        _check(body, len(token_ids))
        is_echoed = bool(body.echo)
        text = prompt if isinstance(prompt, str) else ""
        if is_echoed and not text and card.tokenizer is not None:
            text = card.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return cls(token_ids, text if is_echoed else "", is_echoed, body.prompt_logprobs)

    def entries(
        self, scores: Sequence[PromptLogprob], texts: TokenTexts
    ) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`: by token id, the prompt's own token and the likeliest."""
        assert self.scores is not None, "they are asked for"
        return prompt_entries(scores, self.scores, texts)


def wanted_scores(body: CompletionBody) -> int | None:
    """Alternatives for each of the prompt's tokens that the ring is asked for; None: no scores."""
    counts = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((count for count in counts if count is not None), default=None)


def _check(body: CompletionBody, prompt_tokens: int) -> None:
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(
            "'max_tokens' must be 1 or more without 'echo': send a larger number.",
            param="max_tokens",
        )
    choices = max(body.n or 1, body.best_of or 1)
    check_scores(wanted_scores(body), prompt_tokens, shown=choices)
    check_scores(body.prompt_logprobs, prompt_tokens, stream=body.stream)
