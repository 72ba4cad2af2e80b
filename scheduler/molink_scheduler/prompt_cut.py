"""Cut of a prompt's KV: once it is computed, most layers go on with the tokens that count (PPIO's
sparse KV; SnapKV, arXiv 2404.14469).

The first layers attend evenly and keep all tokens. In the others a request with a budget keeps that
share of its prompt, chosen by the weights that the prompt's last rows give (`engine.memory`), and
all that comes behind. Keys are kept as they were turned, so a token's *position* stays, while its
*place* moves up: behind the cut all places are `moved_tokens` before the positions.

What is kept is a copy of the request's own. It lies behind the blocks for which the cut leaves
room, so these first blocks stay as they were computed: they alone may be shared with others, in
both directions. Where the cut is follows from the request alone, so it is the same in each stage,
and again after a preemption or a loss.

Pure.
"""

from dataclasses import dataclass

from molink_scheduler.kv.blocks import BLOCK_TOKENS

WHOLE_LAYERS = 3
"""First layers of a model that are never cut: they attend to all tokens evenly (PPIO)."""

SINK_TOKENS, NEWEST_TOKENS = 4, 16
"""First and last tokens of a prompt that are always kept: what rows attend to without looking for
anything, and what the question is about."""

SCORED_ROWS = 32
"""Last rows of a prompt whose weights choose: of 128 rows of 256 the choice was worse."""

POOLED_TOKENS = 5
"""Neighbours whose scores are averaged: a token is of little use without those beside it."""

KEPT_TOKENS_MIN = 32
"""Tokens that are kept of any prompt; one that is no longer is not cut."""


@dataclass(frozen=True, slots=True)
class PromptCut:
    """Cut of one request's KV, in the layers that are cut."""

    prompt_tokens: int
    kept_tokens: int
    """Tokens of the prompt that are kept; as many as it has: it is not cut."""

    @classmethod
    def of(cls, prompt_tokens: int, budget: float) -> "PromptCut":
        """The cut of a prompt of which this share is to be kept."""
        kept_tokens = max(round(budget * prompt_tokens), KEPT_TOKENS_MIN)
        return cls(prompt_tokens, min(prompt_tokens, kept_tokens))

    @property
    def is_cut(self) -> bool:
        """Whether anything is left out."""
        return self.kept_tokens < self.prompt_tokens

    @property
    def whole_blocks(self) -> int:
        """First blocks of the request in which nothing is moved."""
        return (self.prompt_tokens - self.kept_tokens) // BLOCK_TOKENS

    def may_share(self, blocks: int) -> bool:
        """Whether so many first blocks of the request may be others', too."""
        return not self.is_cut or blocks <= self.whole_blocks

    @property
    def whole_tokens(self) -> int:
        """Tokens in these blocks."""
        return self.whole_blocks * BLOCK_TOKENS

    @property
    def moved_tokens(self) -> int:
        """How far a token behind the cut stands before its position, among the kept ones."""
        return self.prompt_tokens - self.kept_tokens
