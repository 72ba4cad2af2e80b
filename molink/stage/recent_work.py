"""What a stage has computed lately, for its health reports: prompts on the head, steps if wanted.

A report may be lost on its way, so each tells of the last seconds, and what it says is numbered.
Steps are told only where a trace is written (`RingTerms.traced`): of fifty a second the numbers
take a kilobyte more each second. Times are on the stage's own clock.
"""

from collections import deque
from dataclasses import dataclass, field, replace

from molink.stage_protocol.messages import PROMPTS_MAX, STEPS_MAX
from molink_scheduler.batch import DECODE, Batch, Span
from molink_scheduler.events import RequestCancelled, RequestSubmitted, StageEvent

__all__ = ["RecentWork"]

TOLD_S = 2.5
"""For how long work is told after it has ended: reports come once a second, and one may be lost."""

WAITING_MAX = 8192
"""Requests whose arrival is known while they wait: twice what a coordinator has on a ring."""

DIGITS = 6
"""Microseconds."""


@dataclass(slots=True)
class _Prompt:
    """Prompt that the head has begun to compute."""

    waited_s: float
    moved_at: float
    tokens: int = 0
    """Sent into the ring so far."""


@dataclass(slots=True)
class RecentWork:
    """Bounded record of a stage's latest prompts and steps."""

    is_head: bool
    traced: bool
    _arrived_at: dict[int, float] = field(default_factory=dict)
    """Of each request that waits on the head."""
    _prompts: dict[int, _Prompt] = field(default_factory=dict)
    """By request, in the order in which they began."""
    _steps: deque[tuple[int, int, bool, float, float]] = field(
        default_factory=lambda: deque(maxlen=STEPS_MAX)
    )
    _count: int = 0

    def received(self, event: StageEvent, now: float) -> None:
        """A message has arrived."""
        match event:
            case RequestSubmitted(request):
                if len(self._arrived_at) >= WAITING_MAX:
                    del self._arrived_at[next(iter(self._arrived_at))]
                self._arrived_at[request.request_id] = now
            case RequestCancelled(request_id):
                self._arrived_at.pop(request_id, None)
            case _:
                pass

    def begins(self, batch: Batch, now: float) -> None:
        """The stage begins to compute a batch."""
        if self.is_head and batch.batch_class is not DECODE:
            for span in batch.spans:
                self._take_span(span, now)

    def _take_span(self, span: Span, now: float) -> None:
        prompt = self._prompts.get(span.request_id)
        if prompt is None:
            self._make_room(now)
            waited_s = now - self._arrived_at.pop(span.request_id, now)
            prompt = self._prompts[span.request_id] = _Prompt(waited_s, now)
        prompt.tokens, prompt.moved_at = span.end, now

    def _make_room(self, now: float) -> None:
        """For one more prompt."""
        old = [one for one, prompt in self._prompts.items() if now - prompt.moved_at > TOLD_S]
        for request_id in old:
            del self._prompts[request_id]
        while len(self._prompts) >= PROMPTS_MAX:
            del self._prompts[next(iter(self._prompts))]

    def told(self, batch: Batch) -> Batch:
        """The batch as it leaves the head: those who are new in it bear how long they waited."""
        if not (self.is_head and batch.admissions):
            return batch
        waits = {one: prompt.waited_s for one, prompt in self._prompts.items()}
        admissions = tuple(
            replace(one, waited_s=waits.get(one.request_id, 0.0)) for one in batch.admissions
        )
        return replace(batch, admissions=admissions)

    def ended(self, batch: Batch, began: float, now: float) -> None:
        """A step has ended; decode that came between its layers lies within it."""
        if self.traced:
            self._count += 1
            is_decode, took_s = batch.batch_class is DECODE, round(now - began, DIGITS)
            self._steps.append((self._count, batch.tokens, is_decode, round(now, DIGITS), took_s))

    def prompts(self, now: float) -> tuple[tuple[int, int, float], ...]:
        """As in `StageHealth`."""
        return tuple(
            (request_id, prompt.tokens, round(prompt.waited_s, DIGITS))
            for request_id, prompt in self._prompts.items()
            if now - prompt.moved_at <= TOLD_S
        )

    def steps(self, now: float) -> tuple[tuple[int, int, bool, float, float], ...]:
        """As in `StageHealth`."""
        return tuple(step for step in self._steps if now - step[3] <= TOLD_S)
