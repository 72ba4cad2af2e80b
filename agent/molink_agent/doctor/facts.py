"""Facts that the doctor found out about a PC, and its findings, as plain values: the checks need no
PC to be tested."""

from dataclasses import dataclass, field
from enum import StrEnum

from molink_agent.data_files import Known
from molink_agent.limits.limits import OwnerLimits
from molink_agent.network.nat import NatAnswer
from molink_agent.probe.gpus import GpuReport
from molink_agent.probe.input_idle import InputIdle
from molink_agent.probe.machine import Machine, Wsl
from molink_agent.probe.windows import AroundWsl


@dataclass(frozen=True, slots=True)
class TorchAnswer:
    """Answer of torch, asked in a process of its own."""

    version: str = ""
    cuda: str = ""
    """The CUDA it was built for; empty: built without."""
    gpus: tuple[str, ...] = ()
    """Names of the cards on which it could compute."""
    problem: str = ""
    """Why it could not, in its own words."""
    architectures: tuple[str, ...] = ()
    """Architectures that it has code for: `sm_86` and so on; empty: it did not say."""
    kernel_problem: str = ""
    """Why Triton could not make kernels for the cards; empty: it could."""
    pinning_problem: str = ""
    """Why memory could not be pinned, which cards copy from on their own; empty: it could."""
    graph_problem: str = ""
    """Why a card would not record and replay; empty: it did."""


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """State of this PC's clock."""

    offset_s: float | None = None
    """The coordinator's minus ours; None: it was not asked, or did not answer."""
    synchronized: bool | None = None
    """Whether the network sets it, as the system reports; None: it does not."""


@dataclass(frozen=True, slots=True)
class PortTrial:
    """Attempt to listen at the port for neighbours."""

    port: int
    problem: str = ""
    """Why it failed; empty: one can listen there."""
    agent_runs: bool = False
    """Whether the agent runs; then it is the agent that holds the port."""


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """Facts about a PC on which all checks are based; made by `gather`."""

    machine: Machine
    gpus: GpuReport
    torch: TorchAnswer
    port: PortTrial
    version: str = ""
    """Version of MoLink."""
    limits: OwnerLimits = field(default_factory=OwnerLimits)
    limits_problem: str = ""
    known: Known = field(default_factory=Known)
    wsl: Wsl | None = None
    windows: AroundWsl | None = None
    """None: this is no WSL, or Windows does not answer."""
    compiles: bool = True
    """Whether a C compiler with Python's headers is there."""
    clock: ClockFacts = field(default_factory=ClockFacts)
    broker_problem: str = ""
    """Why the broker could not be reached; empty: it was, or none is known."""
    large_packets_pass: bool | None = None
    """Whether packets of full size pass to the coordinator and back; None: it does not answer small
    ones either, or is too old."""
    nat: NatAnswer | None = None
    """None: there is no coordinator to ask."""
    input_idle: InputIdle = field(default_factory=lambda: InputIdle(None))
    weights_bytes: int = 0
    """Bytes of weights that are on the disk already."""
    swaps: tuple[str, ...] = ()
    """Parts that the stages running here compute the library's way, as faster modules were off."""

    @property
    def joined(self) -> bool:
        """Whether the PC belongs to a cluster."""
        return bool(self.known.broker_host)

    @property
    def lends_gpu(self) -> bool:
        """Whether a stage would compute on a GPU."""
        return not self.limits.lends_cpu_only and bool(self.gpus.gpus)


class Result(StrEnum):
    """Result of one check."""

    OK = "ok"
    WARN = "warn"
    """Works, but less well than it could."""
    FAIL = "fail"
    """This PC cannot help until it is mended."""
    SKIP = "skip"
    """Cannot be checked yet."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one check, for people and for `--json`."""

    check: str
    result: Result
    found: str
    remedy: str = ""
    """Remedy; empty where there is nothing to do."""


def ok(check: str, found: str) -> Finding:
    """Finding where nothing has to be done."""
    return Finding(check, Result.OK, found)


def skip(check: str, found: str) -> Finding:
    """Finding where nothing is known yet."""
    return Finding(check, Result.SKIP, found)


def warn(check: str, found: str, remedy: str) -> Finding:
    """Finding of what could be better."""
    return Finding(check, Result.WARN, found, remedy)


def fail(check: str, found: str, remedy: str) -> Finding:
    """Finding of what must be mended."""
    return Finding(check, Result.FAIL, found, remedy)
