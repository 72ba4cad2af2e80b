"""The tail's part: draw a token for each sequence that is at its end, one more behind each draft
that was right, and say when it was the last.

Tokens have no content here; a request ends when it has as many as it was to get.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from molink_scheduler.batch import Admission, Batch, Span
from molink_scheduler.events import BatchReturned, SampledToken

TOKEN_ID = 0
"""Id of every token."""


@dataclass(slots=True)
class Tail:
    """The endings of all sequences on the ring."""

    _left: dict[int, int] = field(default_factory=dict)
    """Tokens that each is still to get."""
    _tokens: dict[int, SampledToken] = field(default_factory=dict)
    """A request's tokens are all alike, but for the last."""

    @property
    def watched_count(self) -> int:
        """Sequences that have not been forgotten."""
        return len(self._left)

    def admit(self, admissions: Iterable[Admission]) -> None:
        """Start to watch sequences, from what they have generated before."""
        for admission in admissions:
            request_id = admission.request_id
            self._left[request_id] = admission.sampling.max_tokens - len(admission.output)
            self._tokens[request_id] = SampledToken(request_id, TOKEN_ID, finished=False)

    def forget(self, request_id: int) -> None:
        """Stop watching; an unknown id is fine."""
        self._left.pop(request_id, None)
        self._tokens.pop(request_id, None)

    def keep_only(self, request_ids: Collection[int]) -> None:
        """Stop watching all others."""
        for request_id in self._left.keys() - request_ids:
            self.forget(request_id)

    def returned(self, batch: Batch) -> BatchReturned:
        """Event that tells the head of a batch that the tail has computed."""
        self.admit(batch.admissions)
        sampled = self.draw(batch.spans)
        return BatchReturned(
            batch.batch_class, batch.micro_batch, batch.spans, sampled, batch.stamps
        )

    def draw(self, spans: Iterable[Span]) -> tuple[SampledToken, ...]:
        """Tokens, one for each span that samples, and one for each of its drafts that is right."""
        tokens: list[SampledToken] = []
        for span in spans:
            if not span.samples:
                continue
            if span.drafts:
                tokens += self._verified(span)
            else:
                tokens.append(self._draw(span.request_id))
        return tuple(tokens)

    def _verified(self, span: Span) -> Iterator[SampledToken]:
        for draft in (*span.drafts, None):
            token = self._draw(span.request_id)
            yield token
            if token.finished or token.token_id != draft:
                return

    def _draw(self, request_id: int) -> SampledToken:
        self._left[request_id] = left = self._left[request_id] - 1
        return self._tokens[request_id] if left > 0 else SampledToken(request_id, TOKEN_ID, True)
