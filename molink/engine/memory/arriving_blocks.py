"""Cached KV on its way into a device's blocks, layer by layer, while others compute.

A thread copies one layer after the other; a step that reads such blocks waits before each layer
until that layer's rows are there, and no longer. On a card the wait is the card's own: the copy
stands in another stream, and an event says when it is over (`device.streams`). Steps of requests
that do not read these blocks wait for nothing.

The blocks were promised when the copy began. So where it fails the stage fails, as for any error of
its device: a step that went on would compute with what happened to be there.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from molink.errors import StageError

POLL_S = 0.001
"""How long a step stands still before it lets decode of other requests pass."""


@dataclass(slots=True, eq=False)
class ArrivingBlocks:
    """Cached blocks of one KV pool that another thread fills."""

    numbers: tuple[int, ...]
    """Numbers of the blocks in the cache."""
    places: list[int]
    """Block of the pool that is filled for each number."""
    is_there: bool = field(init=False, default=False)
    """Whether the thread is done, and all that it brings can be read."""
    _is_sure: bool = field(init=False, default=False)
    """Whether the thread has said which of the blocks will come."""
    _layers: dict[int, Any] = field(init=False, default_factory=dict)
    """Layers that are there, each with the event of its copy; None: it is over."""
    _failure: Exception | None = field(init=False, default=None)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)

    def has_any(self, numbers: Iterable[int]) -> bool:
        """Whether some of the blocks are on their way."""
        return not self.is_there and not set(self.numbers).isdisjoint(numbers)

    # -- in the thread that fills them ----------------------------------------------------------

    def only(self, count: int) -> bool:
        """The first of the blocks will come, so many, and no others; False: they were given up, and
        nothing may be filled."""
        with self._changed:
            self._is_sure = not self.is_there
            if self._is_sure:
                self.numbers, self.places = self.numbers[:count], self.places[:count]
            return self._is_sure

    def layer_is_there(self, layer: int, event: Any = None) -> None:
        """A layer can be read, on a card once the event is over."""
        with self._changed:
            self._layers[layer] = event
            self._changed.notify_all()

    def end(self, failure: Exception | None = None) -> None:
        """All layers can be read, or none ever will."""
        with self._changed:
            self.is_there, self._failure = failure is None, failure
            self._changed.notify_all()

    # -- in the thread that computes ------------------------------------------------------------

    def give_up(self, numbers: Iterable[int]) -> bool:
        """Have nothing filled where these are all of the blocks, and none is sure yet; False: there
        is something to wait for."""
        with self._changed:
            if self._is_sure or not set(self.numbers).issubset(numbers):
                return False
            self.is_there = True
            return True

    def check(self) -> None:
        """Raises StageError where the blocks will never be there."""
        if self._failure is not None:
            raise StageError(f"cached KV could not be copied in: {self._failure}")

    def wait(self) -> None:
        """Return when all layers can be read. Raises StageError where they never will."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_there or self._failure is not None)
        self.check()

    def await_layer(self, layer: int, meanwhile: Callable[[], None] | None) -> None:
        """Return when the next step can read a layer; `meanwhile` lets others pass. Raises
        StageError where it never can."""
        while not self._has(layer) and meanwhile is not None:
            meanwhile()
        with self._changed:
            self._changed.wait_for(lambda: self._is_settled(layer))
        self.check()
        if (event := self._layers.get(layer)) is not None and not self.is_there:
            torch.cuda.current_stream(event.device).wait_event(event)

    def _has(self, layer: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_settled(layer), POLL_S)

    def _is_settled(self, layer: int) -> bool:
        return self.is_there or self._failure is not None or layer in self._layers
