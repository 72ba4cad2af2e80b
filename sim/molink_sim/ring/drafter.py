"""A drafter in virtual time: each draft is right with a set chance, drawn from the world's seed.

It answers the head as a live one does, one step of its own for each depth and all users together.
Tokens have no content here, so a draft that is right is the one id that there is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from molink_scheduler.drafting.asks import Draft, DraftAsk, Drafted
from molink_sim.ring.tail import TOKEN_ID
from molink_sim.scenario import DrafterSpec


@dataclass(frozen=True, slots=True)
class Drafter:
    """The drafter of one head."""

    spec: DrafterSpec
    random: Random

    def answer(self, asks: Iterable[DraftAsk]) -> tuple[float, Drafted]:
        """Seconds until the answer to some questions is there, and the answer."""
        asks = tuple(asks)
        after_s = self.spec.step_s * max(ask.width for ask in asks)
        return after_s, Drafted(tuple(self._draft(ask) for ask in asks), self.spec.step_s)

    def _draft(self, ask: DraftAsk) -> Draft:
        right = 0
        while right < ask.width and self.random.random() < self.spec.acceptance:
            right += 1
        wrong = (TOKEN_ID + 1,) * (ask.width - right)
        return Draft(ask.request_id, ask.position, (TOKEN_ID,) * right + wrong)
