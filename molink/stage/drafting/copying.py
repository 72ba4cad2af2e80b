"""Drafter that copies what a request's text or prediction holds (`drafting.copy_index`)."""

from dataclasses import dataclass, field

from molink_scheduler.drafting.asks import DraftAsk
from molink_scheduler.drafting.copy_index import CopyIndex, predicted

LEARNED_AT_ONCE = 2048
"""Tokens of a text that are taken in before the loop goes on: a millisecond. A longer prompt, or
prediction, is copied from some rounds later."""


@dataclass(slots=True)
class _Text:
    index: CopyIndex = field(default_factory=CopyIndex)
    waiting: list[int] = field(default_factory=list)
    """Tokens that the index was not told yet."""
    tokens: int = 0
    """How many of the request's own were told, those that wait included."""

    def take(self, tokens: tuple[int, ...]) -> None:
        self.tokens += len(tokens)
        self.waiting += tokens
        self.index.learn(self.waiting[:LEARNED_AT_ONCE])
        del self.waiting[:LEARNED_AT_ONCE]


@dataclass(slots=True)
class Copying:
    """Drafter that copies; it answers in the step in which it is asked, and is mostly silent."""

    name: str = "copy"
    is_busy: bool = False
    step_s: float = 0.0
    share_min: float = 0.0
    _texts: dict[int, _Text] = field(init=False, default_factory=dict)
    _drafts: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict)

    def learn(self, ask: DraftAsk) -> None:
        """Take in the tokens of a question; of a request that began unseen nothing is copied."""
        if ask.start == 0:
            waiting = predicted(ask.prediction) if ask.prediction else []
            self._texts[ask.request_id] = _Text(waiting=waiting)
        text = self._texts.get(ask.request_id)
        if text is not None and text.tokens == ask.start:
            text.take(ask.tokens)

    def begin(self, ask: DraftAsk) -> bool:
        """Whether there is something to copy."""
        text = self._texts.get(ask.request_id)
        if text is None or text.waiting or text.tokens != ask.position:
            return False
        if drafts := text.index.propose(ask.copies):
            self._drafts[ask.request_id] = drafts
        return bool(drafts)

    def step(self) -> dict[int, tuple[int, ...]]:
        """The copies of all who asked."""
        drafts, self._drafts = self._drafts, {}
        return drafts

    def forget(self, request_id: int) -> None:
        """Forget a request; one that is unknown is fine."""
        self._texts.pop(request_id, None)
        self._drafts.pop(request_id, None)

    def clear(self) -> None:
        """Forget the texts of all requests, as a new epoch begins."""
        self._texts.clear()
        self._drafts.clear()
