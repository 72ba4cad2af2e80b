"""History of one sequence at the tail: how to sample it, and which tokens it has had."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from molink.engine.sampling.grammar import Constraint
from molink.engine_protocol.drawn import GrammarState
from molink_scheduler.batch import Admission
from molink_scheduler.request import SamplingParams

COUNTS_FIRST = 64
"""Places that a sequence's counts begin with; they double when full."""


class TokenCounts:
    """Token ids of a sequence and how often its output has each, as arrays that grow by a token.

    A step would else build them anew from all tokens so far.
    """

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        self._token_ids = np.zeros(COUNTS_FIRST, np.int64)
        self._counts = np.zeros(COUNTS_FIRST, np.float32)
        self._places: dict[int, int] = {}
        for token_id in prompt:
            self._place(token_id)
        for token_id in output:
            self.add(token_id)

    @property
    def token_ids(self) -> np.ndarray:
        """Each token id of prompt and output once."""
        return self._token_ids[: len(self._places)]

    @property
    def counts(self) -> np.ndarray:
        """How often the output has each of `token_ids`: 0 where only the prompt has it."""
        return self._counts[: len(self._places)]

    def add(self, token_id: int) -> None:
        """Count one more token of the output."""
        place = self._place(token_id)  # The arrays may be others after this.
        self._counts[place] += 1

    def behind(self, token_id: int) -> "TokenCounts":
        """Counts of the same tokens and of one more."""
        other = copy.copy(self)
        other._token_ids, other._counts = self._token_ids.copy(), self._counts.copy()
        other._places = self._places.copy()
        other.add(token_id)
        return other

    def _place(self, token_id: int) -> int:
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._token_ids):
            self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._token_ids[place] = token_id
        return place


@dataclass(slots=True)
class SequenceHistory:
    """Memory of one sequence at the tail: how to sample it, and what penalties count."""

    request_id: int
    prompt_tokens: int
    params: SamplingParams
    output_tokens: int = 0
    """Generated so far, in an earlier life too."""
    counts: TokenCounts | None = None
    """Counts of the sequence's tokens; None where no penalty counts tokens."""
    constraint: Constraint | None = None
    """Constraint by a grammar; None where there is none, or none can be followed here."""
    scored_prompt: tuple[int, ...] = field(default=())
    """The prompt, where its tokens are to be scored."""
    wants: int = 0
    """Most drafts that the sequence's span of this step wants."""

    @classmethod
    def from_admission(
        cls, admission: Admission, constraint: Constraint | None = None
    ) -> "SequenceHistory":
        """The history at admission, tokens of an earlier life included."""
        params = admission.sampling
        is_scored = params.prompt_logprobs is not None and not admission.output
        return cls(
            admission.request_id,
            admission.prompt_tokens,
            params,
            len(admission.output),
            TokenCounts(admission.prompt, admission.output) if _counts_tokens(params) else None,
            constraint,
            admission.prompt if is_scored else (),
        )

    @property
    def is_too_short(self) -> bool:
        """Whether the sequence must not end with the next token."""
        return self.output_tokens < self.params.min_tokens

    @property
    def changes_logits(self) -> bool:
        """Whether a bias, a stop token that comes too soon or earlier tokens change the logits."""
        return bool(self.params.logit_bias or self.is_too_short or self.counts is not None)

    def along(self, drafts: Sequence[int]) -> list["SequenceHistory"]:
        """This history, and what it would be behind each draft in turn."""
        return list(accumulate(drafts, SequenceHistory._behind, initial=self))

    def _behind(self, draft: int) -> "SequenceHistory":
        return replace(
            self,
            output_tokens=self.output_tokens + 1,
            counts=None if self.counts is None else self.counts.behind(draft),
            constraint=None if self.constraint is None else self.constraint.behind(draft),
        )

    def go_on_as(self, other: "SequenceHistory") -> None:
        """Have had the tokens of a history behind drafts that came true."""
        self.output_tokens, self.counts = other.output_tokens, other.counts
        self.constraint = other.constraint

    def add(self, token_id: int) -> GrammarState:
        """Go on with the token that was drawn; what its grammar says then."""
        self.output_tokens += 1
        if self.counts is not None:
            self.counts.add(token_id)
        if self.constraint is None:
            return GrammarState.OPEN
        return self.constraint.take(token_id, self.wants)


def _counts_tokens(params: SamplingParams) -> bool:
    return bool(
        params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty
    )
