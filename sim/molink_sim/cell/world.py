"""A cell in virtual time: devices, the ledger, and messages that are late, lost or doubled."""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

from molink_scheduler.cell.actions import Action, Refuse
from molink_scheduler.cell.events import DeviceGone, Event, Tick
from molink_scheduler.cell.leases import debts_of
from molink_scheduler.cell.ledger import CellLedger
from molink_sim.cell.devices import CellDevice, Devices, recipients

BEAT_S = 0.5


@dataclass(frozen=True, slots=True)
class CellNetwork:
    """Lateness and losses of messages between ledger and devices."""

    delay_s: float = 0.0
    """Most that a message is late, uniformly drawn: so one may overtake another."""
    loss: float = 0.0
    doubled: float = 0.0


@dataclass(slots=True)
class CellWorld:
    """A cell, and what has happened in it."""

    ledger: CellLedger
    devices: Devices
    random: Random
    network: CellNetwork = CellNetwork()
    now: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)
    last_refusal: dict[str, str] = field(default_factory=dict)
    _messages: list[tuple[float, int, str | None, Event | Action]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)

    def beat(self, name: str) -> None:
        """Have a device report its memory and leases, as with each heartbeat."""
        device = self.devices.by_name[name]
        for event in device.beat(self.devices, self.now):
            self._post(None, event)

    def lose(self, name: str) -> CellDevice:
        """A device leaves, and all that was there is lost."""
        self._post(None, DeviceGone(name))
        device = self.devices.by_name.pop(name)
        device.start_again()
        return device

    def run(self, seconds: float) -> None:
        """Let messages come until then, with a tick at the end."""
        until = self.now + seconds
        while self._messages and self._messages[0][0] <= until:
            self.now, _, device, message = heapq.heappop(self._messages)
            self._deliver(device, message)
        self.now = until
        self._to_ledger(Tick())
        while self._messages and self._messages[0][0] <= until:
            _, _, device, message = heapq.heappop(self._messages)
            self._deliver(device, message)

    def beats(self, times: int) -> None:
        """Let all devices tell of themselves so many times."""
        for _ in range(times):
            for name in list(self.devices.by_name):
                self.beat(name)
            self.run(BEAT_S)

    def debts(self) -> Counter[tuple[str, str]]:
        """Bytes that are owed in truth."""
        return debts_of(one for it in self.devices.by_name.values() for one in it.owed.values())

    def _deliver(self, device: str | None, message: Event | Action) -> None:
        if device is None:
            self._to_ledger(message)  # type: ignore[arg-type]
        elif device in self.devices.by_name:
            it = self.devices.by_name[device]
            for event in it.take(message, self.devices, self.now):  # type: ignore[arg-type]
                self._post(None, event)

    def _to_ledger(self, event: Event) -> None:
        for action in self.ledger.handle(event, self.now):
            self.actions[type(action).__name__] += 1
            if isinstance(action, Refuse):
                self.refused[action.reason.name] += 1
                self.last_refusal[action.device] = action.sentence
            for device, message in recipients(action):
                self._post(device, message)

    def _post(self, device: str | None, message: Event | Action) -> None:
        copies = 1 + (self.random.random() < self.network.doubled)
        for _ in range(copies):
            if isinstance(message, DeviceGone) or self.random.random() >= self.network.loss:
                at = self.now + self.random.random() * self.network.delay_s
                heapq.heappush(self._messages, (at, next(self._order), device, message))
