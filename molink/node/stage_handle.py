"""One stage as its node sees it: started, loaded, joined, watched.

A child process that speaks lines of JSON, as its parent sees it.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from molink.errors import (
    DeviceMemoryError,
    FrameError,
    LinkLostError,
    NoRoomError,
    StageError,
    UserError,
)
from molink.stage_protocol.health import StageHealth
from molink.stage_protocol.messages import (
    Borrow,
    Command,
    EnterRing,
    Fact,
    HoldLinks,
    LoadProgressed,
    LoadStage,
    MovePath,
    PathMoved,
    SetAllowed,
    SetCacheRam,
    SetPair,
    SetRoom,
    SetShadow,
    SetUploadCap,
    StageFailed,
    StageLoaded,
    StageReady,
    decode_line,
    encode_line,
)

TERMINATE_AFTER_S = 1.0
"""A child ends when its input closes; one that has not by then is terminated, later killed."""

KILL_AFTER_S = 1.0
"""Patience after SIGTERM. Together below the 5 s that a stop may take."""

LINE_BYTES_MAX = 2**20
"""Longest line that a child may print."""


@dataclass(slots=True)
class ChildProcess:
    """Python module that runs as a process of its own."""

    process: asyncio.subprocess.Process

    @classmethod
    async def start(
        cls,
        module: str,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> "ChildProcess":
        """Run `python -m module`, away from the terminal's signals, with pipes to it."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
            limit=LINE_BYTES_MAX,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self.process.pid

    async def read_line(self) -> bytes:
        """The next line that the child prints; empty when it has ended. Raises StageError for one
        that is too long."""
        assert self.process.stdout is not None
        try:
            return await self.process.stdout.readline()
        except ValueError:
            raise StageError(
                f"The process {self.pid} printed a line of over {LINE_BYTES_MAX} bytes."
            ) from None

    def write_line(self, line: bytes) -> None:
        """Send the child a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line)

    async def stop(self) -> None:
        """Close its input and wait; terminate, then kill, one that does not end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self._end()
        with contextlib.suppress(OSError):  # What could not be written to it any more.
            async with asyncio.timeout(KILL_AFTER_S):
                await self.process.stdin.wait_closed()

    async def _end(self) -> None:
        if await self._ended_within(TERMINATE_AFTER_S):
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        if not await self._ended_within(KILL_AFTER_S):
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    async def _ended_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self.process.wait()
        except TimeoutError:
            return False
        return True


STAGE_MODULE = "molink.stage.stage_process"


async def start_process(threads: int, arguments: Sequence[str] = ()) -> ChildProcess:
    """Start a stage's process, which loads torch and waits for commands."""
    environment = {"OMP_NUM_THREADS": str(threads), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return await ChildProcess.start(STAGE_MODULE, arguments, environment)


@dataclass(slots=True)
class StageHandle:
    """A stage's process and its latest report, as its node sees it."""

    name: str
    load: LoadStage
    child: ChildProcess
    loaded: StageLoaded | None = None
    health: StageHealth | None = None
    cache_ram_bytes: int | None = None
    """What it was told last of host memory for cached KV; None: to hold all that it has taken."""

    @property
    def pid(self) -> int:
        """Id of its process."""
        return self.child.pid

    @classmethod
    async def start(
        cls, name: str, load: LoadStage, arguments: Sequence[str] = ()
    ) -> "StageHandle":
        """Start the process, and send it what to load."""
        return cls.of(name, load, await start_process(load.work.threads, arguments))

    @classmethod
    def of(cls, name: str, load: LoadStage, child: ChildProcess) -> "StageHandle":
        """The handle of a process that waits for its first command; it is sent what to load."""
        handle = cls(name, load, child)
        handle._send(load)
        return handle

    def extend(self, load: LoadStage) -> None:
        """Have it load layers beside those that it holds; `wait_loaded` tells when it has."""
        self.loaded = None
        self._send(load)

    async def wait_loaded(self, progressed: Callable[[float], None]) -> StageLoaded:
        """Wait for the layers. Raises UserError or StageError when they cannot be loaded."""
        while not isinstance(fact := await self._next_fact(), StageLoaded):
            if isinstance(fact, LoadProgressed):
                progressed(fact.fraction)
        self.loaded = fact
        return fact

    async def join(self, command: EnterRing) -> StageReady:
        """Put it into the ring, or into the ring's next epoch, and wait until all of its links
        stand; what it keeps, and what not."""
        self._send(command)
        while True:
            fact = await self._next_fact()
            if isinstance(fact, StageReady) and fact.epoch == command.epoch:
                return fact

    async def watch(
        self, path_moved: Callable[[PathMoved], None], health_changed: asyncio.Event
    ) -> None:
        """Take in reports: `path_moved` is called with the outcome of each `move_path`. Raises
        StageError when the stage is gone."""
        while True:
            match await self._next_fact():
                case StageHealth() as health:
                    self.health = health
                    health_changed.set()
                case PathMoved() as moved:
                    path_moved(moved)
                case LoadProgressed() | StageLoaded() | StageReady() | StageFailed():
                    pass  # It is loaded and has joined; _next_fact raises a failure.
                case other:
                    assert_never(other)

    def set_allowed(self, keys: Sequence[str]) -> None:
        """Accept links of these public keys (Z85) only from now on."""
        self._send(SetAllowed(tuple(keys)))

    def set_upload_cap(self, bytes_per_s: float | None) -> None:
        """Upload no more than this from now on; None: no cap."""
        self._send(SetUploadCap(bytes_per_s))

    def set_room(self, kv_tokens: int) -> None:
        """Offer its ring room for so many tokens of KV from now on."""
        self._send(SetRoom(kv_tokens))

    def borrow(self, command: Borrow) -> None:
        """Have KV lie at a lender as well."""
        self._send(command)

    def set_pair(self, command: SetPair) -> None:
        """Be this end of a hand-over of KV between two rings from now on, or of none."""
        self._send(command)

    def set_cache_ram(self, lent_bytes: int | None) -> None:
        """Hold no more cached KV in host memory than this from now on; None: all that was taken."""
        if lent_bytes != self.cache_ram_bytes:
            self.cache_ram_bytes = lent_bytes
            self._send(SetCacheRam(lent_bytes))

    def hold_links(self) -> None:
        """Give no link up until it is told how its ring goes on."""
        self._send(HoldLinks())

    def set_shadow(self, command: SetShadow) -> None:
        """Send the next stage's shadow what the ring leaves time for, or nobody any more."""
        self._send(command)

    def move_path(self, command: MovePath) -> None:
        """Lead a link that leaves it to another address of the same neighbour."""
        self._send(command)

    def _send(self, command: Command) -> None:
        self.child.write_line(encode_line(command))

    async def _next_fact(self) -> Fact:
        line = await self.child.read_line()
        if not line:
            code = await self.child.process.wait()
            raise StageError(
                f"{self.name} (pid {self.child.pid}) ended unexpectedly with code {code}; "
                "-9 mostly means that memory ran out: use more nodes or fewer --kv-tokens."
            )
        fact = self._fact(line)
        if isinstance(fact, StageFailed):
            raise self._error(fact)
        return fact

    def _fact(self, line: bytes) -> Fact:
        try:
            fact = decode_line(line)
        except FrameError as error:
            raise StageError(f"{self.name} reported what cannot be read: {error}.") from None
        if not isinstance(fact, Fact):
            raise StageError(f"{self.name} sent a command, {type(fact).__name__}: update MoLink.")
        return fact

    def _error(self, fact: StageFailed) -> UserError | StageError:
        if fact.user_fault:
            return (NoRoomError if fact.device_full else UserError)(fact.message)
        message = f"{self.name}: {fact.message}"
        if fact.device_full:
            return DeviceMemoryError(message)
        return StageError(message) if fact.link is None else LinkLostError(message, fact.link)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Process that waits for its first command, and what it was started with."""

    child: ChildProcess
    settings: tuple[object, ...]

    @property
    def is_alive(self) -> bool:
        return self.child.process.returncode is None


@dataclass(slots=True)
class WarmStage:
    """Stage process that is started before it is needed: at most one, which waits.

    Loading torch and transformers takes a home PC three to ten seconds of its processor. A download
    takes seconds to minutes of its line: done side by side, the shorter of both costs nothing. And
    users whose ring has lost a stage need not wait for it, where a process waits ready.
    """

    _waiting: _Waiting | None = None
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while one is started or ended: nodes of one process may share this."""

    async def begin(self, threads: int, arguments: Sequence[str] = ()) -> None:
        """Have one wait that will compute with so many threads; one that does not fit ends."""
        settings = (threads, *arguments)
        async with self._changing:
            if self._waiting is None or not self._fits(self._waiting, settings):
                await self._stop()
                self._waiting = _Waiting(await start_process(threads, arguments), settings)

    async def start(self, name: str, load: LoadStage, arguments: Sequence[str] = ()) -> StageHandle:
        """The stage, in the process that waits if it still runs and fits, else in a new one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            if self._fits(waiting, (load.work.threads, *arguments)):
                return StageHandle.of(name, load, waiting.child)
            await waiting.child.stop()
        return await StageHandle.start(name, load, arguments)

    async def drop(self) -> None:
        """End the one that waits, if any."""
        async with self._changing:
            await self._stop()

    def _fits(self, waiting: _Waiting, settings: tuple[object, ...]) -> bool:
        return waiting.is_alive and waiting.settings == settings

    async def _stop(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            await waiting.child.stop()
