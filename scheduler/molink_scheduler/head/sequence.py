"""One request on the head: which of its tokens are known, and how far the ring has been asked to
compute them."""

from dataclasses import dataclass, field

from molink_scheduler.batch import Admission, Span
from molink_scheduler.request import Request

__all__ = ["Sequence"]


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens computed catch up with tokens known; everything else about a running request follows
    from the two."""

    request: Request
    request_id: int = field(init=False)
    """The request's; ids rise with arrival, so the largest is the newest."""
    known: list[int] = field(init=False)
    """Prompt and output so far."""
    planned_tokens: int = 0
    """Tokens that have been sent into the ring, in order."""
    returned_tokens: int = 0
    """Of those, the tokens that have come out of the tail."""
    admitted: bool = False
    """Whether the stages hold (or are about to hold) KV of it."""
    decoding: bool = False
    """Whether it circles with the micro-batches: its prompt is computed, its first token drawn."""
    cancelled: bool = False
    preempting: bool = False
    """Chosen to give its blocks back as soon as nothing of it is in flight."""

    def __post_init__(self) -> None:
        self.request_id = self.request.request_id
        self.known = [*self.request.prompt, *self.request.output]

    @property
    def tokens_pending(self) -> int:
        """Tokens known that the ring has not been asked to compute."""
        return len(self.known) - self.planned_tokens

    @property
    def in_flight(self) -> bool:
        """Whether any of it is under way on the ring."""
        return self.returned_tokens < self.planned_tokens

    @property
    def stopping(self) -> bool:
        """Whether nothing more of it may be planned."""
        return self.cancelled or self.preempting

    def take_span(self, tokens_max: int) -> Span:
        """Plan the next at most `tokens_max` pending tokens."""
        start, known = self.planned_tokens, len(self.known)
        end = known if known - start <= tokens_max else start + tokens_max
        self.planned_tokens = end
        return Span(self.request_id, start, end, end == known)

    def awaits(self, span: Span) -> bool:
        """Whether a span is the next one out."""
        return span.start == self.returned_tokens and span.end <= self.planned_tokens

    def admission(self) -> Admission:
        """What the stages must know before its first span."""
        request = self.request
        return Admission(
            request_id=request.request_id,
            prompt_tokens=len(request.prompt),
            tokens_expected=request.tokens_max,
            sampling=request.sampling,
            prompt=request.prompt if request.sampling.needs_prompt else (),
            output=tuple(self.known[len(request.prompt) :]),
        )

    def forget_computed(self) -> None:
        """Start over: its KV is gone, its tokens are not."""
        self.planned_tokens = 0
        self.returned_tokens = 0
        self.admitted = False
        self.decoding = False
        self.preempting = False
