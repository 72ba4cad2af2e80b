"""A drafter in virtual time: each draft is right with a set chance, drawn from the world's seed.

At a head it answers as a live one does, one step of its own for each depth and all users together;
at a tail it takes as long within the tail's step, and its drafts go home with the tokens.
Tokens have no content here, so a draft that is right is the one id that there is.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from molink_scheduler.batch import Batch
from molink_scheduler.drafting.asks import Draft, DraftAsk, Drafted
from molink_scheduler.events import BatchReturned
from molink_sim.ring.tail import TOKEN_ID
from molink_sim.scenario import DrafterSpec


@dataclass(frozen=True, slots=True)
class Drafter:
    """The drafter of one ring."""

    spec: DrafterSpec
    random: Random

    def answer(self, asks: Iterable[DraftAsk]) -> tuple[float, Drafted]:
        """Seconds until the answer to some questions is there, and the answer."""
        asks = tuple(asks)
        after_s = self.spec.step_s * max(ask.width for ask in asks)
        return after_s, Drafted(tuple(self._draft(ask) for ask in asks), self.spec.step_s)

    def passes_s(self, batch: Batch) -> float:
        """Seconds by which the drafts that a batch wants make the tail's step longer."""
        if not self.spec.at_tail:
            return 0.0
        return self.spec.step_s * max([span.wants for span in batch.spans], default=0)

    def with_drafts(self, returned: BatchReturned) -> BatchReturned:
        """What the tail sends home, with drafts for all who want some and go on."""
        if not self.spec.at_tail:
            return returned
        go_on = {one.request_id for one in returned.sampled}
        go_on -= {one.request_id for one in returned.sampled if one.finished}
        drafts = tuple(
            (span.request_id, self._guessed(span.wants))
            for span in returned.spans
            if span.wants and span.request_id in go_on
        )
        return replace(returned, drafts=drafts)

    def _draft(self, ask: DraftAsk) -> Draft:
        return Draft(ask.request_id, ask.position, self._guessed(ask.width))

    def _guessed(self, width: int) -> tuple[int, ...]:
        right = 0
        while right < width and self.random.random() < self.spec.acceptance:
            right += 1
        wrong = (TOKEN_ID + 1,) * (width - right)
        return (TOKEN_ID,) * right + wrong
