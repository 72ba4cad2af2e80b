"""Log of what a stage's core was told, so that a failure in the field can be played again.

A core is deterministic: the same calls with the same arguments decide the same. So a log of the
calls, from a known state of the core on, is a test of it (`replay`). Only about a minute is kept,
because a stage may serve for weeks: in two *segments*, each of which begins with the core's whole
state. When the newer one is full it becomes the older one, and what was older is forgotten.

Rows are not logged, the core never sees them. Token ids are: who reads the log of a head reads the
prompts and answers of its users.

Pure: somebody else writes files.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from molink_scheduler.events import (
    BatchArrived,
    Decision,
    KeepRows,
    RequestSubmitted,
    RunBatch,
    SendRows,
    SendTokens,
    StageEvent,
)
from molink_scheduler.recording.writing import encode
from molink_scheduler.stage.core import StageCore

FORMAT = 12
"""Raised whenever older logs cannot be replayed any more."""

KEPT_S = 60.0
"""A ring that stalls or objects shows why within seconds."""

KEPT_CALLS_MAX = 8000
"""Calls that are kept, about a minute of twenty steps a second."""

KEPT_BYTES_MAX = 4 * 1024**2
"""Memory by estimate: little beside the 500 MB of a process that has loaded torch."""

SEGMENTS = 2

CALL_BYTES = 500
TOKEN_BYTES = 40
"""Memory of a call, and of each token of the prompts that it carries."""

FULL, OVERFULL = 1.0, 2.0
"""Multiples of a segment's share of the limits: from the first on it ends when the device is idle,
so that nobody waits while the state is copied; at the second it ends in any case."""

Decided = TypeVar("Decided")


@dataclass(slots=True)
class _Call:
    """Call of the core."""

    verb: str
    arguments: tuple[Any, ...]
    decided: Any = None
    has_ended: bool = False
    """False while it is under way, and for one that raised."""

    def line(self) -> str:
        """Line of the log; a batch that was decided before is named by its class."""
        arguments = [
            int(one.batch.batch_class) if isinstance(one, RunBatch) else encode(one)
            for one in self.arguments
        ]
        return _line([self.verb, arguments, *([encode(self.decided)] if self.has_ended else [])])


@dataclass(slots=True)
class _Segment:
    """Calls of a core from a known state on."""

    began_at: float
    state: str
    """The line that begins it."""
    bytes: int
    calls: list[_Call] = field(default_factory=list)

    def fullness(self, now: float) -> float:
        """How much of its share of the limits it has; above 1 it should end."""
        share = max(
            (now - self.began_at) / KEPT_S,
            len(self.calls) / KEPT_CALLS_MAX,
            self.bytes / KEPT_BYTES_MAX,
        )
        return SEGMENTS * share


@dataclass(slots=True)
class EventLog:
    """Bounded log of one core's calls."""

    is_streamed: bool = False
    """Whether somebody takes every line by `take_lines`, too."""
    _segments: deque[_Segment] = field(init=False, default_factory=lambda: deque(maxlen=SEGMENTS))
    _untaken: list[str | _Call] = field(init=False, default_factory=list)

    def begin_segment(self, core: StageCore, now: float, *, is_new: bool = False) -> None:
        """Keep the core's state; the oldest segment is forgotten. `is_new`: it does not follow from
        the calls before, because it is another core."""
        begun = {"format": FORMAT, "at": now, "core": encode(core)}
        state = _line(begun | {"new": True} if is_new else begun)
        self._segments.append(_Segment(now, state, len(state)))
        if self.is_streamed:
            self._untaken.append(state)

    def fullness(self, now: float) -> float:
        """How much the newest segment has of its share of the limits."""
        return self._segments[-1].fullness(now)

    def add(self, call: _Call, tokens: int) -> None:
        """Note a call that begins and carries so many tokens."""
        newest = self._segments[-1]
        newest.calls.append(call)
        newest.bytes += CALL_BYTES + TOKEN_BYTES * tokens
        if self.is_streamed:
            self._untaken.append(call)

    def lines(self) -> Iterator[str]:
        """All that is kept, from the oldest state on."""
        for segment in self._segments:
            yield segment.state
            yield from (call.line() for call in segment.calls)

    def take_lines(self) -> Iterator[str]:
        """All that was not taken before."""
        untaken, self._untaken = self._untaken, []
        return (one if isinstance(one, str) else one.line() for one in untaken)


@dataclass(slots=True)
class RecordedCore:
    """Stage core whose calls are logged; its verbs are those of `StageCore`."""

    core: StageCore
    log: EventLog

    @classmethod
    def begin(cls, core: StageCore, log: EventLog, now: float) -> "RecordedCore":
        """Log a core from its present state on."""
        log.begin_segment(core, now, is_new=True)
        return cls(core, log)

    @property
    def is_tail(self) -> bool:
        """Whether tokens are drawn on this stage."""
        return self.core.is_tail

    def received(self, event: StageEvent, now: float) -> Sequence[Decision]:
        """A message has arrived, see `StageCore`."""
        return self._logged("received", self.core.received, event, now, tokens=_tokens(event))

    def next_step(self, link_bytes_per_s: float, now: float) -> Sequence[Decision]:
        """The device is free, see `StageCore`."""
        fullness = self.log.fullness(now)
        if fullness >= OVERFULL:
            self.log.begin_segment(self.core, now)
        decided = self._logged("next_step", self.core.next_step, link_bytes_per_s, now)
        if FULL <= fullness < OVERFULL and not decided:
            self.log.begin_segment(self.core, now)
        return decided

    def between_layers(self, now: float) -> Sequence[Decision]:
        """A prefill step has computed one more layer, see `StageCore`."""
        return self._logged("between_layers", self.core.between_layers, now)

    def computed(
        self, run: RunBatch, step_s: float, link_bytes_per_s: float, now: float
    ) -> SendRows | SendTokens | KeepRows:
        """A step has ended, see `StageCore`."""
        return self._logged("computed", self.core.computed, run, step_s, link_bytes_per_s, now)

    def finished(self, run: RunBatch, elapsed_s: float, now: float) -> None:
        """The result of a step has left, see `StageCore`."""
        self._logged("finished", self.core.finished, run, elapsed_s, now)

    def _logged(
        self, verb: str, method: Callable[..., Decided], *arguments: Any, tokens: int = 0
    ) -> Decided:
        call = _Call(verb, arguments)
        self.log.add(call, tokens)
        call.decided = decided = method(*arguments)
        call.has_ended = True
        return decided


def _tokens(event: StageEvent) -> int:
    """Token ids that an event carries and that may be many."""
    if isinstance(event, RequestSubmitted):
        return event.request.prompt_tokens + len(event.request.output)
    if isinstance(event, BatchArrived):
        return sum(len(one.prompt) + len(one.output) for one in event.batch.admissions)
    return 0


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
