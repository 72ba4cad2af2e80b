"""Answer as it is kept on disk, the log that keeps it, and the events that it is made of again.

What a model has said is its tokens; text, log-probabilities and reasons are read from them in the
same way whether they come one by one or lie in a file. So an answer that is looked up, or that
another coordinator goes on with, is the one that its client would have been sent.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from molink.serving.answer_log import Ending, Place
from molink.serving.answers.deadline import DEADLINE
from molink.serving.answers.state_writer import Statement, Tokens, Write
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest
from molink.serving.text_stream import TextStream
from molink.serving.token_events import TokenEvent, TokenLogprob


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """Request and its answer so far, as they are kept."""

    number: int
    answer_id: str
    owner: str
    """Id of the key that asked; empty: none was needed."""
    created_unix_s: float
    asked: str
    """JSON: what the endpoint needs beside the tokens to write the answer."""
    request: GenerationRequest
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    came_unix_s: tuple[float, float] | None = None
    """Times of the first and the last token; None: there is none."""
    place: Place | None = None
    ending: Ending | None = None

    @property
    def held_tokens(self) -> int:
        """The first tokens of which every stage of its ring holds KV; 0: not known of any."""
        if self.place is None or len(self.token_ids) <= self.place.submitted_tokens:
            return 0
        return len(self.request.prompt_token_ids) + len(self.token_ids) - 1

    def events(self, card: ModelCard) -> Iterator[TokenEvent]:
        """The events of its tokens so far, the last with its end if it has one."""
        sampling, text, last = self.request.sampling, None, len(self.token_ids) - 1
        if card.tokenizer is not None:
            text = TextStream.of(card.tokenizer, sampling)
        ended = self.ending if self.ending is not None and self.ending.finish_reason else None
        at_deadline = ended is not None and ended.stop_reason == DEADLINE
        for place, token_id in enumerate(self.token_ids):
            how = ended if place == last and not at_deadline else None
            is_last = how is not None
            yield TokenEvent(
                (token_id,),
                text.of_token(token_id, sampling, is_last=is_last) if text is not None else "",
                self.logprobs[place : place + 1],
                how.finish_reason if how is not None else None,
                how.stop_reason if how is not None else None,
            )
        if at_deadline and ended is not None:
            yield TokenEvent((), "", (), ended.finish_reason, ended.stop_reason)


_PLACE = "UPDATE answers SET ring = ?, request = ?, submitted_tokens = ? WHERE number = ?"
_END = (
    "UPDATE answers SET ended = ?, finish_reason = ?, stop_reason = ?, error = ? "
    "WHERE number = ? AND ended IS NULL"
)


TOKEN_BYTES, LOGPROB_BYTES = 4, 28
"""Bytes that a token, and one of the likeliest at its place, take in the file, nearly."""


@dataclass(slots=True)
class KeptLog:
    """Log of one request under way on disk; all of it is written later, by another thread."""

    number: int
    put: Callable[[Write], None]
    watch: Callable[[int, int], None]
    """Callback with its number and how many bytes it takes by now; with 0 when it has ended."""
    before: KeptAnswer | None = None
    """Answer as an earlier coordinator has kept it; its tokens are not generated again."""
    opening: tuple[Statement, ...] = ()
    """Statements that are written when the log begins."""
    size_bytes: int = 0
    """Bytes of the opening statements and of the tokens that came."""
    _tokens: int = 0

    def __post_init__(self) -> None:
        self._tokens = len(self.before.token_ids) if self.before is not None else 0

    def begin(self) -> None:
        """Keep it from now on."""
        for statement in self.opening:
            self.put(statement)
        if self.opening:
            self.watch(self.number, self.size_bytes)

    def submitted(self, place: Place) -> None:
        """Note which ring computes it."""
        row = (place.ring, place.request_id, place.submitted_tokens, self.number)
        self.put(Statement(_PLACE, row))

    def took(self, event: TokenEvent) -> None:
        """Note tokens that came, and its end with the last one."""
        if event.token_ids:
            self.put(Tokens(self.number, self._tokens, time.time(), event))
            self._tokens += len(event.token_ids)
            likely = sum(1 + len(one.top) for one in event.logprobs)
            self.size_bytes += TOKEN_BYTES * len(event.token_ids) + LOGPROB_BYTES * likely
            self.watch(self.number, self.size_bytes)
        if event.finish_reason is not None:
            self.ended(Ending(time.time(), event.finish_reason, event.stop_reason))

    def ended(self, how: Ending) -> None:
        """Note its end; of several the first counts."""
        stop = None if how.stop_reason is None else json.dumps(how.stop_reason)
        row = (how.at_unix_s, how.finish_reason, stop, how.error, self.number)
        self.put(Statement(_END, row))
        self.watch(self.number, 0)
