"""A ring loses stages: it goes on with others in their places, or ends, and the next one begins.

The rules are those of `molink.coordinator.upkeep.recovery`: who has lost a stage waits until its
layers are loaded again; then all stages enter the ring's next epoch, and it goes on. Another loss
meanwhile begins the same again. A ring that has lost all stages, or one of them twice within a
minute (no other node has room for it here), or that has waited for too long, ends: the next one
begins with empty KV when all of its stages are there.

A host that sleeps is a loss as soon as it was silent for too long, whether it wakes up or not.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Protocol

from molink_sim.clock import Clock
from molink_sim.scenario import FaultSpec, HostSuspended, NodeLoss

RECOVER_WITHIN_S, LOST_AGAIN_S = 60.0, 60.0
"""Constants of `molink.coordinator.upkeep.recovery` (a test compares them)."""


class RingHost(Protocol):
    """The ring that recovers, with its coordinator."""

    def lose(self, place: int) -> None:
        """The process of a stage is gone, or nobody listens to it any more."""

    def suspend(self, place: int, until: float) -> None:
        """The host of a stage sleeps."""

    def pause(self) -> None:
        """The coordinator takes nothing more of the ring until it goes on."""

    def join(self, fresh: frozenset[int], joined: Callable[[Callable[[], None]], None]) -> None:
        """Have all stages enter the next epoch; `joined` is called with what lets the ring go on
        when all have."""

    def end(self) -> None:
        """End the ring: nothing more comes of it."""

    def restart(self) -> None:
        """The next ring begins, with empty KV."""


@dataclass(slots=True)
class Recovery:
    """The losses of one ring, and its way into the next epoch or the next ring."""

    clock: Clock
    host: RingHost
    stage_count: int
    survivors_stay: bool
    detect_s: float
    _missing: Counter[int] = field(init=False, default_factory=Counter)
    """Losses of each place after which its layers are not loaded again yet."""
    _fresh: set[int] = field(init=False, default_factory=set)
    """Places of stages that hold nothing of the ring's requests."""
    _began_at: float | None = field(init=False, default=None)
    """Time at which the first loss was noticed; None: the ring serves, or is down."""
    _lost_at: dict[int, float] = field(init=False, default_factory=dict)
    """Time at which each place was last noticed to be lost."""
    _is_down: bool = field(init=False, default=False)
    _life: int = field(init=False, default=0)
    """Number of the ring: what is planned for one that has ended is void."""
    _attempt: int = field(init=False, default=0)
    """Number of the way into the next epoch: another loss begins another."""

    def plan(self, fault: FaultSpec) -> None:
        """Plan a loss, or a host's sleep, on the clock."""
        match fault:
            case NodeLoss():
                self.clock.at(fault.at_s, self._lost, fault)
                self.clock.at(fault.until_s, self._loaded, fault.place)
            case HostSuspended():
                self.clock.at(fault.at_s, self._asleep, fault)

    # -- what happens ----------------------------------------------------------------------------

    def _lost(self, loss: NodeLoss) -> None:
        self._missing[loss.place] += 1
        if self._is_down:
            return
        self.host.lose(loss.place)
        if not self.survivors_stay:
            self._end()
        else:
            noticed_at = self.clock.now + self.detect_s
            self.clock.at(noticed_at, self._noticed, (loss.place, self._life))

    def _asleep(self, sleep: HostSuspended) -> None:
        if self._is_down or self._missing[sleep.place]:
            return
        self.host.suspend(sleep.place, sleep.until_s)
        if self.survivors_stay and sleep.at_s + sleep.silent_s < sleep.until_s:
            self.clock.at(sleep.at_s + sleep.silent_s, self._silent, (sleep, self._life))

    def _silent(self, what: tuple[HostSuspended, int]) -> None:
        """Take a sleeping place for lost, unless its ring has lost it meanwhile."""
        sleep, life = what
        if life != self._life or sleep.place in self._fresh | self._missing.keys():
            return
        self._missing[sleep.place] += 1
        self.host.lose(sleep.place)
        self.clock.at(self.clock.now + sleep.load_s, self._loaded, sleep.place)
        self._noticed((sleep.place, life))

    def _loaded(self, place: int) -> None:
        self._missing[place] -= 1
        self._missing += Counter()  # Only what is missing stays.
        if self._is_down:
            self._restart_if_loaded()
        elif self._began_at is not None:
            self._join_if_loaded()

    def _noticed(self, what: tuple[int, int]) -> None:
        place, life = what
        if life != self._life:
            return
        now = self.clock.now
        began_at = now if self._began_at is None else self._began_at
        if not self._is_possible(place, began_at):
            self._end()
            return
        if self._began_at is None:
            self._began_at = now
            self.clock.at(now + RECOVER_WITHIN_S, self._late, (now, life))
        self._lost_at[place] = now
        self._fresh.add(place)
        self._attempt += 1
        self.host.pause()
        self._join_if_loaded()

    def _is_possible(self, place: int, began_at: float) -> bool:
        now = self.clock.now
        return (
            len(self._fresh | {place}) < self.stage_count
            and now - self._lost_at.get(place, -inf) >= LOST_AGAIN_S
            and now - began_at < RECOVER_WITHIN_S
        )

    def _late(self, what: tuple[float, int]) -> None:
        began_at, life = what
        if life == self._life and began_at == self._began_at:
            self._end()

    # -- what follows ----------------------------------------------------------------------------

    def _join_if_loaded(self) -> None:
        if not self._missing.keys() & self._fresh:
            self._attempt += 1
            self.host.join(frozenset(self._fresh), partial(self._joined, self._attempt))

    def _joined(self, attempt: int, go_on: Callable[[], None]) -> None:
        if attempt == self._attempt and self._began_at is not None:
            self._began_at = None
            self._fresh.clear()
            go_on()

    def _end(self) -> None:
        self._is_down, self._began_at = True, None
        self._life += 1
        self._fresh.clear()
        self._lost_at.clear()
        self.host.end()
        self._restart_if_loaded()

    def _restart_if_loaded(self) -> None:
        if not self._missing:
            self._is_down = False
            self.host.restart()
