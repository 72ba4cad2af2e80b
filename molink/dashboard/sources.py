"""Sources of the application's history: a live coordinator, or a recording."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Protocol

from molink.dashboard.model.history import History
from molink.dashboard.model.observation import Observation
from molink.dashboard.poller import PERIOD_S, Poller
from molink.dashboard.recording import DashboardRecorder, DashboardReplay
from molink.errors import UserError
from molink.report.figures import clock

STEP_S_MAX = 5.0
"""Longest wait between two looks of a replay: nobody watches an hour in which nothing was seen."""


class Source(Protocol):
    """Source of what is shown."""

    @property
    def url(self) -> str:
        """Server that is shown."""

    @property
    def history(self) -> History:
        """History that is known now."""

    @property
    def note(self) -> str:
        """Note on the source's mode, for the header; empty: nothing to say."""

    async def run(self, changed: Callable[[], object]) -> None:
        """Go on, and call `changed` after each look, until cancelled."""


@dataclass(slots=True)
class LiveSource:
    """Coordinator that is polled, and perhaps recorded."""

    poller: Poller
    url: str
    first: Observation
    recorder: DashboardRecorder | None = None
    period_s: float = PERIOD_S
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self._take(self.first)

    @property
    def note(self) -> str:
        """Whether it is recorded."""
        if self.recorder is None:
            return ""
        return self.recorder.trouble or "recording"

    async def run(self, changed: Callable[[], object]) -> None:
        """Poll, and record what was seen, until cancelled."""
        async for seen in self.poller.looks(self.period_s):
            self._take(seen)
            changed()

    def _take(self, seen: Observation) -> None:
        self.history.take(seen)
        if self.recorder is not None:
            self.recorder.take(seen)


@dataclass(slots=True)
class ReplaySource:
    """Recording that is played, to and fro."""

    replay: DashboardReplay
    zone: tzinfo | None = None
    playing: bool = True
    trouble: str = ""
    """Why it cannot be read on; empty: it can."""
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        """Server that was recorded."""
        return self.replay.recording.url

    @property
    def history(self) -> History:
        """History that was known at this place."""
        return self.replay.history

    @property
    def note(self) -> str:
        """Whether it plays, and at which look of how many it stands."""
        if self.trouble:
            return self.trouble
        whole = len(self.replay.recording.times_s)
        state = "replay" if self.playing and not self.replay.is_at_end else "replay, paused"
        return f"{state} {self.replay.index + 1}/{whole}"

    async def run(self, changed: Callable[[], object]) -> None:
        """Go on as fast as it was recorded, until cancelled."""
        while True:
            self._moved.clear()
            may_go_on = self.playing and not self.replay.is_at_end
            pause_s = min(STEP_S_MAX, self.replay.pause_s) if may_go_on else None
            try:
                async with asyncio.timeout(pause_s):
                    await self._moved.wait()
            except TimeoutError:
                self._step(1)
            changed()

    def toggle(self) -> None:
        """Play, or stand still."""
        self.playing = not self.playing
        self._moved.set()

    def step(self, looks: int) -> None:
        """Stand still so many looks later, or earlier."""
        self.playing = False
        self._step(looks)
        self._moved.set()

    def go_to(self, text: str) -> None:
        """Stand still at a time: 14:05:30, or +30 and -30 for seconds from here. Raises UserError
        for a text that is no time."""
        at_s = self._time_of(text)
        self.playing = False
        self.replay.go_to(at_s)
        self._moved.set()

    def _step(self, looks: int) -> None:
        try:
            self.replay.step(looks)
        except UserError as error:
            self.playing, self.trouble = False, str(error)

    def _time_of(self, text: str) -> float:
        now_s = self.history.at_s
        try:
            if text[:1] in "+-":
                return now_s + float(text)
            whole = text if text.count(":") == 2 else f"{text}:00"
            then = datetime.strptime(whole, "%H:%M:%S").time()
        except ValueError:
            shown = clock(now_s, self.zone)
            raise UserError(f"a time is like {shown}, or +30 for seconds from here") from None
        day = datetime.fromtimestamp(self.replay.recording.times_s[0], self.zone)
        found = day.replace(hour=then.hour, minute=then.minute, second=then.second, microsecond=0)
        if found.timestamp() < int(day.timestamp()):
            found += timedelta(days=1)
        return found.timestamp() + 0.999
