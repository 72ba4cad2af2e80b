"""The scores of one prompt's tokens, as they come from the tail."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from molink.serving.token_events import PromptLogprob
from molink.wire.frames import PromptScore, TokenSample
from molink_scheduler.request import LOGPROBS_MAX, Request

Said = TokenSample | PromptScore
"""What a tail says of one token."""


def untrue(said: Said, next_request_id: int, vocabulary_size: int) -> str | None:
    """Why what a tail says of a token cannot be true of any request; None: it can."""
    if not 0 < said.request_id < next_request_id:
        return "a token of a request that nobody has made"
    token_ids = [token_id for token_id, _ in said.top]
    if isinstance(said, TokenSample):
        token_ids.append(said.token_id)
    if not all(0 <= token_id < vocabulary_size for token_id in token_ids):
        return "a token that is not in the vocabulary"
    if len(said.top) > LOGPROBS_MAX:
        return f"more than {LOGPROBS_MAX} log-probabilities of a token"
    return None


@dataclass(slots=True)
class PromptScores:
    """Collector of the scores of a prompt, which come in pieces before its first token.

    A prompt that is computed anew is scored anew: what comes last counts.
    """

    prompt: Sequence[int]
    count: int
    """Number of likeliest tokens that are wanted for each token of the prompt."""
    _found: dict[int, PromptLogprob] = field(default_factory=dict)
    """By position."""

    @classmethod
    def of(cls, request: Request) -> "PromptScores | None":
        """A collector where scores are wanted and have not been given by a ring before."""
        count = request.sampling.prompt_logprobs
        return None if count is None or request.output else cls(request.prompt_ids, count)

    @property
    def is_complete(self) -> bool:
        """Whether all have come."""
        return len(self._found) == len(self.prompt) - 1

    def take(self, score: PromptScore) -> str | None:
        """Keep one. Why it cannot be the tail's honest one, else None."""
        if not 0 < score.position < len(self.prompt):
            return "a log-probability beyond a prompt"
        if len(score.top) > self.count:
            return "more log-probabilities of a prompt than were asked for"
        token_id = self.prompt[score.position]
        self._found[score.position] = PromptLogprob(
            token_id, score.logprob, score.top, rank=score.rank
        )
        return None

    def all(self) -> tuple[PromptLogprob, ...]:
        """Scores of the prompt's second token and of those behind it."""
        return tuple(self._found[position] for position in range(1, len(self.prompt)))
