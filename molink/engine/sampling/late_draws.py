"""Draws that wait for the mask of a grammar, while the other rows of their step go on.

Masks are made ahead, beside the steps, and most take less than a millisecond; but a grammar may be
such that each takes forty, and there are as many as its user has sequences. So a step waits for
masks a moment only. A row whose mask is not there by then sits out: its logits are kept here, its
token is drawn once the mask is, and its sequence joins the next micro-batch. It is the same token:
a row is drawn by its own logits, settings and random number.

Shapes: W vocabulary size.
"""

from dataclasses import dataclass

import torch

from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.sampler import sample
from molink.engine_protocol.drawn import DrawnToken, GrammarState

LATE_MAX_S = 8.0
"""Seconds that a row waits; then its sequence ends. The coordinator gives up a ring that brings no
token for ten seconds."""


@dataclass(frozen=True, slots=True)
class LateDraw:
    """Row that waits to be drawn."""

    history: SequenceHistory
    logits_W: torch.Tensor
    known_tokens: int
    """Tokens of prompt and output so far."""
    since: float

    @property
    def request_id(self) -> int:
        """Request whose next token it is."""
        return self.history.request_id

    def drawn(self, now: float) -> DrawnToken | None:
        """Token of the row, added to its history; None: the mask is not there yet."""
        constraint = self.history.constraint
        if constraint is None or constraint.is_ready():
            return sample(self.logits_W[None], [self.history], [self.known_tokens])[0]
        if now - self.since < LATE_MAX_S:
            return None
        return DrawnToken(self.history.request_id, 0, grammar=GrammarState.FAILED)
