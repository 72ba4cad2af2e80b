"""All that the doctor looked at, as plain values: the checks need no PC to be tested."""

from dataclasses import dataclass, field

from molink_agent.data_files import Known
from molink_agent.limits.limits import Limits
from molink_agent.network.nat import NatAnswer
from molink_agent.probe.gpus import GpuReport
from molink_agent.probe.input_idle import InputIdle
from molink_agent.probe.machine import Machine
from molink_agent.probe.wsl import Wsl

__all__ = ["ClockFacts", "DoctorFacts", "PortTrial", "TorchAnswer"]


@dataclass(frozen=True, slots=True)
class TorchAnswer:
    """What torch says in a process of its own."""

    version: str = ""
    cuda: str = ""
    """The CUDA it was built for; empty: built without."""
    gpus: tuple[str, ...] = ()
    """Names of the cards on which it could compute."""
    problem: str = ""
    """Why it could not, in its own words."""


@dataclass(frozen=True, slots=True)
class ClockFacts:
    """How this PC's time is."""

    offset_s: float | None = None
    """The coordinator's minus ours; None: it was not asked, or did not answer."""
    synchronized: bool | None = None
    """By the network, as the system says; None: it does not."""


@dataclass(frozen=True, slots=True)
class PortTrial:
    """Whether neighbours could be listened to."""

    port: int
    problem: str = ""
    """Why not; empty: one can listen there."""
    agent_runs: bool = False
    """Then it is the agent that holds the port."""


@dataclass(frozen=True, slots=True)
class DoctorFacts:
    """Gathered by `gather`."""

    machine: Machine
    gpus: GpuReport
    torch: TorchAnswer
    port: PortTrial
    limits: Limits = field(default_factory=Limits)
    limits_problem: str = ""
    known: Known = field(default_factory=Known)
    wsl: Wsl | None = None
    clock: ClockFacts = field(default_factory=ClockFacts)
    broker_problem: str = ""
    """Why the broker could not be reached; empty: it was, or none is known."""
    nat: NatAnswer | None = None
    """None: there is no coordinator to ask."""
    input_idle: InputIdle = field(default_factory=lambda: InputIdle(None))
    weights_bytes: int = 0
    """On the disk already."""

    @property
    def joined(self) -> bool:
        """Whether there is a cluster to look at."""
        return bool(self.known.broker_host)

    @property
    def wants_gpu(self) -> bool:
        """Whether its owner lends one by name."""
        return self.limits.wants_gpu

    @property
    def lends_gpu(self) -> bool:
        """Whether a stage would compute on one."""
        return not self.limits.lends_cpu_only and bool(self.gpus.gpus)
