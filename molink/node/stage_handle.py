"""One stage as its supervisor sees it: started, loaded, joined, watched."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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

__all__ = ["STAGE_MODULE", "StageHandle", "start_process"]

STAGE_MODULE = "molink.stage.stage_process"


async def start_process(threads: int, command: Sequence[str] = ()) -> ChildProcess:
    """A stage's process, which loads torch and waits to be told. Raises OSError when `command` is
    no program."""
    environment = {"OMP_NUM_THREADS": str(threads), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return await ChildProcess.start(STAGE_MODULE, (), environment, command)


@dataclass(slots=True)
class StageHandle:
    """A stage process and the latest that it has said."""

    name: str
    load: LoadStage
    child: ChildProcess
    loaded: StageLoaded | None = None
    health: StageHealth | None = None
    path_moved: Callable[[PathMoved], None] = field(default=lambda moved: None)
    """Hears how each `move_path` ended."""
    reported: Callable[[], None] = field(default=lambda: None)
    """Hears that `health` is new."""

    @property
    def pid(self) -> int:
        """Of its process."""
        return self.child.pid

    @classmethod
    async def start(cls, name: str, load: LoadStage, command: Sequence[str] = ()) -> "StageHandle":
        """Start the process, through `command` if any, and tell it what to load.

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
        """Of a process that has been told nothing yet; it is told what to load."""
        handle = cls(name, load, child)
        handle._tell(load)
        return handle

    async def wait_loaded(self, progressed: Callable[[float], None]) -> StageLoaded:
        """Until the layers are there. Raises UserError or StageError when they cannot be."""
        while True:
            match await self._next_fact():
                case LoadProgressed(fraction):
                    progressed(fraction)
                case StageLoaded() as loaded:
                    self.loaded = loaded
                    return loaded

    async def join(self, command: JoinRing) -> None:
        """Put it into the ring, until all of its links stand."""
        self._tell(command)
        while not isinstance(await self._next_fact(), StageReady):
            pass

    async def watch(self) -> None:
        """Take in health reports; raises StageError when the stage is gone."""
        while True:
            match await self._next_fact():
                case StageHealth() as health:
                    self.health = health
                    self.reported()
                case PathMoved() as moved:
                    self.path_moved(moved)

    def set_allowed(self, keys: Sequence[str]) -> None:
        """Whom its links accept from now on, as public keys in Z85."""
        self._tell(SetAllowed(tuple(keys)))

    def set_upload_cap(self, bytes_per_s: float | None) -> None:
        """What it uploads at most from now on."""
        self._tell(SetUploadCap(bytes_per_s))

    def move_path(self, link: OutgoingLink, address: str) -> None:
        """Lead a link that leaves it to another address of the same neighbour."""
        self._tell(MovePath(link, address))

    def _tell(self, command: Command) -> None:
        self.child.write_line(encode_line(command))

    async def _next_fact(self) -> Command | Fact:
        line = await self.child.read_line()
        if not line:
            code = await self.child.process.wait()
            raise StageError(
                f"{self.name} (pid {self.child.pid}) ended unexpectedly with code {code}; "
                "-9 mostly means that memory ran out: use more nodes or fewer --kv-tokens."
            )
        fact = decode_line(line)
        if isinstance(fact, StageFailed):
            kind = UserError if fact.user_fault else StageError
            raise kind(fact.message if fact.user_fault else f"{self.name}: {fact.message}")
        return fact
