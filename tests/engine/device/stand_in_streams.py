"""Streams of a card that is not there: what is launched is done as late as it may be, or at random.

A copy reads its source when it is done, not when it is launched, so a buffer that is written again
too soon, or read too early, shows in the numbers. Time passes by what is done: a second a piece.
"""

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import torch


@dataclass(eq=False)
class Stream:
    name: str
    waiting: deque = field(default_factory=deque)

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False)
class Event:
    streams: "StandInStreams"
    stream: Stream
    reached_at_s: float | None = None

    def synchronize(self) -> None:
        self.streams.log.append(f"host waits for {self.stream}")
        self.streams.run_until(self)

    def elapsed_time(self, later: "Event") -> float:
        """Only between events that were reached, as with torch."""
        return (later.reached_at_s - self.reached_at_s) * 1000


@dataclass
class StandInStreams:
    """Stand-in for `CardStreams`."""

    random: Random | None = None
    """Does some of what waits whenever something is launched; None: nothing before it has to."""
    computing: Stream = field(default_factory=lambda: Stream("computing"))
    decoding: Stream = field(default_factory=lambda: Stream("decoding"))
    to_card: Stream = field(default_factory=lambda: Stream("to card"))
    to_host: Stream = field(default_factory=lambda: Stream("to host"))
    now_s: float = 0.0
    log: list[str] = field(default_factory=list)
    kept: list[tuple[torch.Tensor, Stream]] = field(default_factory=list)

    @contextmanager
    def entered(self, stream):
        before, self.computing = self.computing, stream
        try:
            yield
        finally:
            self.computing = before

    def empty(self, shape, dtype, stream):
        return torch.full(shape, float("nan"), dtype=dtype)

    def launch(self, stream, work, took_s=1.0) -> None:
        """Have the card do something, after what the stream has been given before."""

        def done():
            self.now_s += took_s
            work()

        stream.waiting.append(done)
        self._some()

    def copy(self, source, target, stream):
        self.log.append(f"copy in {stream}")
        self.launch(stream, lambda: target.copy_(source))

    def record(self, stream):
        event = Event(self, stream)
        stream.waiting.append(event)
        self._some()
        return event

    def hold(self, stream, event):
        self.log.append(f"{stream} waits for {event.stream}")
        stream.waiting.append((event,))

    def keep(self, tensor, stream):
        self.kept.append((tensor, stream))

    # -- the card ----------------------------------------------------------------------------------

    def run_until(self, event) -> None:
        while event.reached_at_s is None:
            self._next(event.stream)

    def _next(self, stream) -> None:
        one = stream.waiting.popleft()
        match one:
            case (event,):
                self.run_until(event)
            case Event():
                one.reached_at_s = self.now_s
            case _:
                one()

    def _some(self) -> None:
        streams = (self.computing, self.decoding, self.to_card, self.to_host)
        while self.random is not None and self.random.random() < 0.4:
            stream = self.random.choice(streams)
            if stream.waiting:
                self._next(stream)
