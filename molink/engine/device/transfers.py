"""Steps of a stage on its device: their rows on the way there and back, their place among other
steps, and how long the device took for them.

On a CPU rows are where they have to be. On a card they go through pinned buffers, in streams of
their own: what came from a link is laid into a buffer and copied while the card still computes
something else, and only the step that reads it waits, on the card. A step ends when its result is
on the host: until then nobody knows how long it took, nor whether it has worked. The host sleeps
meanwhile.

There are two buffers each way, so that a step inside another finds one free. A buffer is written
again when the card is done with it, and what a link is handed is a copy: links read it much later
than the next step writes.

A step's time is the card's own, between its begin and its end, without that of steps inside it. The
host's clock would give a decode step the layers of a prompt that it waits for, and take them off
the prompt.

Decode steps have a stream of their own, whose work goes first. One that comes while a prompt is
computed is launched between two of its layers and waits for none of those that are queued; so that
few are, the host goes no further than two layers ahead of its card. Nothing orders the streams
against each other: whatever one step leaves to another has ended on the host.

Shapes: T rows of a batch, D hidden size.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from molink.engine.device.streams import CardStreams, HostMemory, host_memory

LAYERS_AHEAD = 2
"""Layers of a prompt that are launched before an earlier one is done: enough that the card never
waits, and little that a decode step finds before it."""

SPARE = 1.5
"""How much larger than what it is first wanted for a buffer is made: the next may be larger."""


@dataclass(slots=True)
class StepTime:
    """Time of a step."""

    seconds: float | None = None
    """Seconds that its card took, once it has ended; None on a CPU, where the clock tells."""


@dataclass(frozen=True, slots=True)
class HostTransfers:
    """Way of rows to a device that is no card: there is none."""

    device: torch.device

    @contextmanager
    def timed(self, is_decode: bool = False) -> Iterator[StepTime]:
        """Have the card time the step that is enclosed."""
        yield StepTime()

    def bounded(self, before_layer: Callable[[], None] | None) -> Callable[[], None] | None:
        """Call to make before each layer of a prompt: `before_layer`."""
        return before_layer

    def rows_in(self, hidden_TD: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The rows in the device's number format."""
        return hidden_TD.to(self.device, dtype)

    def rows_out(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """The rows where a link may read them for as long as it likes."""
        return hidden_TD

    def read(self, table: torch.Tensor) -> torch.Tensor:
        """Numbers of the device on the host."""
        return table.cpu()


@dataclass(slots=True)
class CardTransfers:
    """Way of rows to a graphics card and back."""

    streams: CardStreams
    memory: HostMemory
    _incoming: "_Buffers" = field(init=False)
    _outgoing: "_Buffers" = field(init=False)
    _under_way: list["_UnderWay"] = field(default_factory=list)
    """Steps, each inside the one before."""

    def __post_init__(self) -> None:
        self._incoming, self._outgoing = _Buffers(self.memory), _Buffers(self.memory)

    @contextmanager
    def timed(self, is_decode: bool = False) -> Iterator[StepTime]:
        """Enclose a step; leaving it waits until the card has computed it."""
        streams = self.streams
        if is_decode and not self._under_way:  # Pools may have been made or cleared since the last.
            streams.hold(streams.decoding, streams.record(streams.computing))
        with streams.entered(streams.decoding) if is_decode else nullcontext():
            time, step = StepTime(), _UnderWay(streams.record(streams.computing))
            self._under_way.append(step)
            try:
                yield time
                ended = step.ended or streams.record(streams.computing)
                ended.synchronize()
            finally:
                self._under_way.pop()
        whole_s = step.began.elapsed_time(ended) / 1000
        time.seconds = max(0.0, whole_s - step.inside_s)
        if self._under_way:
            self._under_way[-1].inside_s += whole_s

    def bounded(self, before_layer: Callable[[], None] | None) -> Callable[[], None] | None:
        """Call to make before each layer of a prompt: it waits until the card is near behind, and
        calls `before_layer`."""
        launched = deque[Any]()

        def wait_and_call() -> None:
            launched.append(self.streams.record(self.streams.computing))
            if len(launched) > LAYERS_AHEAD:
                launched.popleft().synchronize()
            if before_layer is not None:
                before_layer()

        return wait_and_call

    def rows_in(self, hidden_TD: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The rows on the card, in its number format."""
        streams, buffer = self.streams, self._incoming.next(hidden_TD.nbytes)
        staged_TD = buffer.like(hidden_TD)
        staged_TD.copy_(hidden_TD)
        on_card_TD = streams.empty(hidden_TD.shape, hidden_TD.dtype, streams.to_card)
        streams.copy(staged_TD, on_card_TD, streams.to_card)
        buffer.done = streams.record(streams.to_card)
        streams.hold(streams.computing, buffer.done)
        streams.keep(on_card_TD, streams.computing)
        return on_card_TD.to(dtype)

    def rows_out(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """A copy of the rows on the host, once the card has computed them."""
        streams, buffer = self.streams, self._outgoing.next(hidden_TD.nbytes)
        staged_TD = buffer.like(hidden_TD)
        streams.hold(streams.to_host, streams.record(streams.computing))
        streams.copy(hidden_TD, staged_TD, streams.to_host)
        streams.keep(hidden_TD, streams.to_host)
        buffer.done = streams.record(streams.to_host)
        if self._under_way:
            self._under_way[-1].ended = buffer.done
        buffer.done.synchronize()
        return staged_TD.clone()

    read = rows_out


@dataclass(slots=True)
class _UnderWay:
    began: Any
    ended: Any = None
    """Event at which its result was on the host; None: it has not been asked for."""
    inside_s: float = 0.0
    """Time of the steps that ran inside it."""


@dataclass(slots=True)
class _Buffer:
    bytes_B: torch.Tensor
    done: Any = None
    """Event at which the card is done with it; None: it has had nothing to do."""

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Beginning of the buffer that a tensor would fill, in its format and shape."""
        return self.bytes_B[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)


@dataclass(slots=True)
class _Buffers:
    """Two buffers that take turns, and grow with what they are wanted for."""

    memory: HostMemory
    _turns: list[_Buffer] = field(default_factory=list)

    def next(self, size: int) -> _Buffer:
        """The one that has waited longest, once the card is done with it."""
        if not self._turns:
            self._turns = [self._made(size), self._made(size)]
        buffer = self._turns.pop(0)
        if buffer.done is not None:
            buffer.done.synchronize()
        if len(buffer.bytes_B) < size:
            buffer = self._made(size)
        self._turns.append(buffer)
        return buffer

    def _made(self, size: int) -> _Buffer:
        return _Buffer(self.memory.empty((int(size * SPARE),), torch.uint8))


Transfers = HostTransfers | CardTransfers


def transfers_on(device: torch.device) -> Transfers:
    """The way to a device."""
    if device.type == "cuda":
        return CardTransfers(CardStreams(device), host_memory("cuda"))
    return HostTransfers(device)
