"""Output of one step of a stage."""

from dataclasses import dataclass

import torch

from molink.engine.sampling.late_draws import LateDraw
from molink.engine_protocol.drawn import DrawnToken
from molink.engine_protocol.values import Drafts
from molink.wire.frames import PromptScore


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Result of one step: hidden states for the next stage, or the tail's tokens."""

    hidden_TD: torch.Tensor | None
    """Hidden states for the next stage; None on the tail."""
    drawn: tuple[DrawnToken, ...] = ()
    """Tokens on the tail of each span that samples, in batch order: one, and those of its drafts
    that came true; none where it is late."""
    scores: tuple[PromptScore, ...] = ()
    """Scores on the tail of the prompts' tokens that the batch's rows predict, where they are
    wanted."""
    late: tuple[LateDraw, ...] = ()
    """Draws on the tail whose token waits for the mask of its grammar."""
    token_ids: tuple[int, ...] | None = None
    """Token ids of the rows, for the next stage; None where its layers do not read them."""
    computed_s: float | None = None
    """Seconds that a card took for the step; None on a CPU, where the clock tells."""
    drafts: Drafts = ()
    """Drafts on the tail, of requests that want some (`Span.wants`)."""
    forced: Drafts = ()
    """Tokens on the tail that grammars allow alone, of requests that want drafts."""
