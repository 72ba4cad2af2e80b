"""Service that computes sequences in idle room only, and puts them aside when there is none.

Who asks sees one stream of events. A sequence that was put aside has left its ring, with all that
it held there; it goes on later behind the tokens that have come, so none is computed twice but as
part of its prompt, of which the ring may have cached KV.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from molink.api.openai.batches.idle_room import IdleRoom, Seen
from molink.errors import ErrorGuard, RingError, RowsRefusedError, StageError
from molink.findings.watch import ClusterWatch
from molink.report.cluster import ClusterReport
from molink.serving.answer_log import Ending, Place
from molink.serving.events import EventLedger
from molink.serving.model_card import ModelCard
from molink.serving.request_log import RequestLog
from molink.serving.service import GenerationRequest, GenerationService
from molink.serving.timeline import RequestTimeline
from molink.serving.token_events import TokenEvent
from molink.tasks import cancel, spawn

LOOK_S = 0.02
"""Seconds between two looks: a user who comes shares the ring for so long."""

RINGS_S = 2.0
"""Seconds between two looks at which rings there are and how much KV they have: a report of all
nodes is made for it."""

TRIES_MAX, RETRY_S = 8, 5.0
"""How often a sequence is tried whose rings fail, and how long after each failure."""


@dataclass(slots=True, eq=False)
class Stay:
    """One sequence: its stays on a ring, and the events that nobody has read. It is the log from
    which the service learns of the tokens that have come."""

    request: GenerationRequest
    events: asyncio.Queue[TokenEvent | Exception] = field(default_factory=asyncio.Queue)
    token_ids: tuple[int, ...] = ()
    place: Place | None = None
    """None: it always begins anew on its ring."""
    held_tokens: int = 0
    timeline: RequestTimeline | None = None
    task: asyncio.Task[None] | None = None
    """Task that computes it; None: it was put aside, or has not begun."""
    is_over: bool = False
    failures: int = 0
    retry_at: float = 0.0

    @property
    def before(self) -> "Stay":
        """The answer as it was put aside."""
        return self

    def begin(self) -> None:
        """Nothing is kept on disk."""

    def submitted(self, place: Place) -> None:
        """Where it is computed need not be known again."""

    def took(self, event: TokenEvent) -> None:
        """Tokens are taken as they are handed on."""

    def ended(self, how: Ending) -> None:
        """Its reader learns of it by the events."""

    @property
    def is_running(self) -> bool:
        """Whether a ring computes it, or is asked to."""
        return self.task is not None and not self.task.done()

    def waits(self, now: float) -> bool:
        """Whether it could begin."""
        return not (self.is_over or self.is_running) and now >= self.retry_at

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV that it needs to go on."""
        return len(self.request.prompt_token_ids) + len(self.token_ids)

    def go_on(self, service: GenerationService, avoids: frozenset[int]) -> None:
        """Have it computed, from where it is, on other rings than these."""
        known = self.request.timeline
        assert known is not None, "the API makes one"
        timeline = known
        if self.timeline is not None:  # The first one has ended when it was put aside.
            sizes = known.prompt_tokens, known.answer_tokens_max
            timeline = RequestTimeline(
                known.model, *sizes, known.key_id, known.choice, known.arrival
            )
        self.timeline = timeline
        self.task = spawn(
            self._compute(
                service, replace(self.request, timeline=timeline, log=self, avoids=avoids)
            )
        )

    async def _compute(self, service: GenerationService, asked: GenerationRequest) -> None:
        try:
            async with aclosing(service.generate(asked)) as events:
                async for event in events:
                    self.token_ids += event.token_ids
                    self.is_over = event.finish_reason is not None
                    self.events.put_nowait(event)
        except Exception as error:  # Whatever it is: its reader raises it.
            is_passing = isinstance(error, RingError | StageError)
            self.failures += 1
            self.retry_at = time.monotonic() + RETRY_S
            if isinstance(error, RowsRefusedError) or not is_passing or self.failures >= TRIES_MAX:
                self.is_over = True
                self.events.put_nowait(error)


@dataclass(slots=True)
class IdleService:
    """A service in front of which sequences wait for idle room."""

    service: GenerationService
    room: IdleRoom = field(default_factory=IdleRoom)
    _stays: list[Stay] = field(default_factory=list)
    """Sequences in the order in which they were asked for."""
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _rings_at: float = -RINGS_S
    """When the rings were looked at."""
    _guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Looking for idle room"))

    @property
    def card(self) -> ModelCard:
        """Card of the model that is served."""
        return self.service.card

    @property
    def request_log(self) -> RequestLog:
        """Log of the requests that the service has had."""
        return self.service.request_log

    @property
    def events(self) -> EventLedger:
        """Ledger of what has happened in the cluster."""
        return self.service.events

    @property
    def watch(self) -> ClusterWatch:
        """Watch over what stands out in the cluster."""
        return self.service.watch

    def cluster(self) -> ClusterReport:
        """Report on rings and nodes, as they are now."""
        return self.service.cluster()

    @property
    def unready_reason(self) -> str | None:
        """Why nothing is computed now."""
        return self.service.unready_reason

    @property
    def wants_more(self) -> bool:
        """Whether nobody waits for room here."""
        return all(one.is_running or one.is_over for one in self._stays)

    async def until_taken(self) -> None:
        """At once: who asks waits in `generate`, however long."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        """Stream one sequence, whenever there is room; closing the generator cancels it. Raises
        what the service raises, RingError after TRIES_MAX failures."""
        stay = Stay(request)
        self._stays.append(stay)
        self._asked.set()
        try:
            while True:
                event = await stay.events.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            self._stays.remove(stay)
            await cancel(stay.task)

    async def run(self) -> None:
        """Let sequences begin and put them aside, until cancelled."""
        while True:
            self._asked.clear()
            if not self._stays:
                await self._asked.wait()
            with self._guard:
                await self.look(time.monotonic())
            await asyncio.sleep(LOOK_S)

    async def look(self, now: float) -> None:
        """Look once at who is served, and act on it."""
        if now - self._rings_at >= RINGS_S:
            self._rings_at = now
            self.room.know(_kv_of_rings(self.cluster()))
        own = self._take_in(now)
        if aside := self.room.aside(now, own):
            leaving = (
                one.task for one in self._stays if one.is_running and id(one.timeline) in aside
            )
            await cancel(*leaving)
        elif self.unready_reason is None:
            while self._begin(now):
                self._take_in(now)

    def _take_in(self, now: float) -> list[Seen]:
        """Let the room see who is served now; those of ours."""
        ours = [one for one in self._stays if one.is_running]
        own = [_seen(one.timeline)._replace(kv_tokens=one.kv_tokens) for one in ours]
        keys = {one.key for one in own}
        others = [_seen(one) for one in self.request_log.live if id(one) not in keys]
        self.room.look(now, others, own)
        return own

    def _begin(self, now: float) -> bool:
        """Have the first that waits begin, where there is room for it; whether it did."""
        stay = next((one for one in self._stays if one.waits(now)), None)
        avoids = self.room.avoided(now, stay.kv_tokens) if stay is not None else None
        if stay is None or avoids is None:
            return False
        stay.go_on(self.service, avoids)
        return True


def _kv_of_rings(report: ClusterReport) -> dict[int, int]:
    """Tokens of KV of each ring by its number: what its least stage has."""
    return {
        ring.number: min((stage.kv_tokens_capacity for stage in ring.stages), default=0)
        for ring in report.rings
    }


def _seen(timeline: RequestTimeline | None) -> Seen:
    assert timeline is not None, "it is computed"
    last = timeline.attempts[-1] if timeline.attempts else None
    return Seen(
        id(timeline),
        timeline.tokens,
        timeline.last_token_at,
        timeline.state == "queued",
        last.ring if last is not None and last.ended_at is None else None,
        timeline.prompt_tokens + timeline.tokens,
    )
