"""A stage's process that tests imagine: it loads at once, and ends when it is told to."""

import asyncio
from dataclasses import dataclass, field

from molink.errors import StageError
from molink.stage_protocol.messages import LoadStage, StageLoaded, StageReady

PORT, REQUESTS_PORT = 5000, 5001


@dataclass
class FakeChild:
    """As much of a child process as a host asks for."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def process(self):
        return self

    @property
    def returncode(self):
        return 0 if self.ended.is_set() else None

    async def wait(self):
        await self.ended.wait()
        return -9

    async def stop(self):
        self.ended.set()


@dataclass
class FakeHandle:
    """Instead of a StageHandle. `trouble` is what loading fails with."""

    name: str
    load: LoadStage
    trouble: Exception | None = None
    may_end_loading: asyncio.Event | None = None
    """None: it loads at once."""
    pid: int = 4711
    child: FakeChild = field(default_factory=FakeChild)
    health: object = None
    loaded: StageLoaded | None = None
    joined: object = None
    allowed: list = field(default_factory=list)
    moves: list = field(default_factory=list)
    health_changed: asyncio.Event | None = None
    lost: Exception | None = None
    """What joining fails with."""
    held: int = 0
    """How often it was told to give no link up."""
    shadow: object = None
    """Where it was told that the next stage's shadow is."""
    borrowed: list = field(default_factory=list)
    paired: list = field(default_factory=list)
    extended: list = field(default_factory=list)
    """Layers that it was told to load beside its own."""
    missing: tuple = ()
    """Requests that it cannot go on with."""

    def extend(self, load):
        self.loaded, self.extended = None, [*self.extended, load.work.layers]

    async def wait_loaded(self, progressed):
        progressed(0.5)
        if self.trouble is not None:
            raise self.trouble
        if self.may_end_loading is not None:
            await self.may_end_loading.wait()
        progressed(1.0)
        await asyncio.sleep(0)
        head = REQUESTS_PORT if self.load.work.layers[0] == 0 else None
        self.loaded = StageLoaded(PORT, head, "cpu", "float32", 64, 10)
        return self.loaded

    async def join(self, command):
        if self.lost is not None:
            raise self.lost
        self.joined = command
        return StageReady(command.epoch, self.missing)

    async def watch(self, path_moved, health_changed):
        self.health_changed = health_changed
        code = await self.child.wait()
        raise StageError(f"{self.name} (pid {self.pid}) ended unexpectedly with code {code}.")

    def set_allowed(self, keys):
        self.allowed.append(tuple(keys))

    def set_shadow(self, command):
        self.shadow = command

    def set_pair(self, command):
        self.paired.append(command)

    def borrow(self, command):
        self.borrowed.append(command)

    def hold_links(self):
        self.held += 1

    def move_path(self, command):
        self.moves.append(command)

    def tell_health(self, health):
        self.health = health
        if self.health_changed is not None:
            self.health_changed.set()
