"""One stage as its node sees it: started, loaded, joined, watched."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from molink.errors import StageError, UserError
from molink.node.child_process import ChildProcess
from molink.stage_protocol.messages import (
    Command,
    Fact,
    JoinRing,
    LoadProgressed,
    LoadStage,
    MovePath,
    OutgoingLink,
    PathMoved,
    SetAllowed,
    SetUploadCap,
    StageFailed,
    StageHealth,
    StageLoaded,
    StageReady,
    decode_line,
    encode_line,
)

__all__ = ["STAGE_MODULE", "StageHandle", "WarmStage", "start_process"]

STAGE_MODULE = "molink.stage.stage_process"


async def start_process(threads: int, command: Sequence[str] = ()) -> ChildProcess:
    """Start a stage's process, which loads torch and waits for commands. Raises OSError when
    `command` is no program."""
    environment = {"OMP_NUM_THREADS": str(threads), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return await ChildProcess.start(STAGE_MODULE, (), environment, command)


@dataclass(slots=True)
class StageHandle:
    """A stage's process and its latest report, as its node sees it."""

    name: str
    load: LoadStage
    child: ChildProcess
    loaded: StageLoaded | None = None
    health: StageHealth | None = None

    @property
    def pid(self) -> int:
        """Id of its process."""
        return self.child.pid

    @classmethod
    async def start(cls, name: str, load: LoadStage, command: Sequence[str] = ()) -> "StageHandle":
        """Start the process, through `command` if any, and send it what to load.

        Raises UserError when `command` is no program.
        """
        try:
            child = await start_process(load.work.threads, command)
        except OSError as error:
            if not command:
                raise
            raise UserError(
                f"{name}: the command {command[0]!r} of --hosts cannot be run: {error.strerror}."
            ) from None
        return cls.of(name, load, child)

    @classmethod
    def of(cls, name: str, load: LoadStage, child: ChildProcess) -> "StageHandle":
        """The handle of a process that waits for its first command; it is sent what to load."""
        handle = cls(name, load, child)
        handle._send(load)
        return handle

    async def wait_loaded(self, progressed: Callable[[float], None]) -> StageLoaded:
        """Wait for the layers. Raises UserError or StageError when they cannot be loaded."""
        while not isinstance(fact := await self._next_fact(), StageLoaded):
            if isinstance(fact, LoadProgressed):
                progressed(fact.fraction)
        self.loaded = fact
        return fact

    async def join(self, command: JoinRing) -> None:
        """Put it into the ring, and wait until all of its links stand."""
        self._send(command)
        while not isinstance(await self._next_fact(), StageReady):
            pass

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

    def move_path(self, link: OutgoingLink, address: str) -> None:
        """Lead a link that leaves it to another address of the same neighbour."""
        self._send(MovePath(link, address))

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
        fact = decode_line(line)
        assert isinstance(fact, Fact), "a stage sends no commands"
        if isinstance(fact, StageFailed):
            kind = UserError if fact.user_fault else StageError
            raise kind(fact.message if fact.user_fault else f"{self.name}: {fact.message}")
        return fact


@dataclass(slots=True)
class WarmStage:
    """Stage process that is started before its weights are there: at most one, which waits.

    Loading torch and transformers takes a home PC three to ten seconds of its processor, a download
    seconds to minutes of its line: done side by side, the shorter of both costs nothing.
    """

    _child: ChildProcess | None = None
    _threads: int = 0

    async def begin(self, threads: int) -> None:
        """Start one that will compute with so many threads; one that waits already ends."""
        await self.drop()
        self._child, self._threads = await start_process(threads), threads

    async def start(self, name: str, load: LoadStage) -> StageHandle:
        """The stage, in the process that waits if it still runs and fits, else in a new one."""
        child, self._child = self._child, None
        if child is None:
            return await StageHandle.start(name, load)
        if child.process.returncode is not None or self._threads != load.work.threads:
            await child.stop()
            return await StageHandle.start(name, load)
        return StageHandle.of(name, load, child)

    async def drop(self) -> None:
        """End the one that waits, if any."""
        child, self._child = self._child, None
        if child is not None:
            await child.stop()
