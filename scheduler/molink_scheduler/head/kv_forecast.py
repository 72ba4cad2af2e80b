"""Forecast of the KV blocks that requests come to hold at once, by which newcomers are admitted.

A request is admitted with its prompt and grows with its answer. If all come in whose prompts fit,
more do than can stay: the newest are pushed out and computed again, and in a flood a ring loses a
third of its time to that. To keep all free that each may generate would leave most of the KV empty,
because answers mostly end long before.

So each is taken to generate as much as answers have of late. All grow by about a token a round, and
who ends gives its blocks back; so they hold the most when one of them ends, and it is enough to
look at these moments. A forecast that was too low is mended by preemption, as before. Rejected: to
draw each length from those seen (LightLLM's past-future scheduler), which needs them all kept.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from molink_scheduler.head.sequence import Sequence
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for

__all__ = ["KvForecast"]

ANSWER_WEIGHT = 0.1
"""Of the newest answer's length: of those ten before it something is left."""

OVERCOMMIT = 1.15
"""Of the blocks that there are, so many may be forecast. In a model of a ring (a round takes 0.1 s,
answers have 16 to 112 tokens, twice as many users as have room) 1.15 gave 237 tokens/s, 1.0 211,
one free block for each that runs 213; 1.3 no more, and twice the prompts to compute."""

LEFT_TOKENS_MIN = BLOCK_TOKENS
"""That each still generates at least, so that nobody is preempted in the next round."""


@dataclass(slots=True)
class KvForecast:
    """Lengths of answers, and what follows for those that run."""

    answer_tokens: float = field(init=False, default=0.0)
    """Smoothed, of those that have ended; 0: none has."""

    def ended(self, sequence: Sequence) -> None:
        """Take the length of an answer into account; what was never begun says nothing."""
        if tokens := _answer_tokens(sequence):
            weight = ANSWER_WEIGHT if self.answer_tokens else 1.0
            self.answer_tokens += weight * (tokens - self.answer_tokens)

    def fits(self, sequences: Iterable[Sequence], blocks_total: int) -> bool:
        """Whether these may run beside each other."""
        return self.blocks(sequences) <= OVERCOMMIT * blocks_total

    def blocks(self, sequences: Iterable[Sequence]) -> int:
        """The most that these come to hold at once."""
        growing = sorted(((self._left(one), len(one.known)) for one in sequences), reverse=True)
        most = held = 0
        for count, (left, known) in enumerate(growing, 1):
            held += blocks_for(known)
            most = max(most, held + blocks_for(count * left))
        return most

    def _left(self, sequence: Sequence) -> int:
        """Tokens that it is taken to generate from now on."""
        left = round(self.answer_tokens) - _answer_tokens(sequence)
        return min(sequence.request.tokens_max - len(sequence.known), max(LEFT_TOKENS_MIN, left))


def _answer_tokens(sequence: Sequence) -> int:
    return len(sequence.known) - len(sequence.request.prompt)
