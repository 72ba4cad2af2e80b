"""Many small worlds, each from its seed, with faults; what does not hold is replayed by a command.

    report = run_swarm(seeds=200, first_seed=0, kinds=("node-loss", "link-cut"))

As TigerBeetle's simulator does: safety is checked while faults go on, and that everything finishes
when they have stopped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from molink.errors import UserError
from molink_sim.checkers import CHECKERS, Checker, Watchers
from molink_sim.clock import Clock
from molink_sim.faults import FAULTS
from molink_sim.scenario import Scenario
from molink_sim.simulate import World
from molink_sim.swarm_world import swarm_scenario

__all__ = [
    "NO_EXCEPTION",
    "Failure",
    "SwarmReport",
    "check_world",
    "fault_kinds",
    "replay_command",
    "run_swarm",
]

EVENTS_MAX = 500_000
"""Of one world; the largest drawn so far needs a tenth. More: it runs in circles."""

NO_EXCEPTION = "nothing raises"
"""The invariant that has no checker of its own."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An invariant that did not hold."""

    seed: int
    invariant: str
    mistake: str
    """One sentence: the first thing that was wrong."""
    command: str
    """Replays it."""


@dataclass(slots=True)
class SwarmReport:
    """What came of a swarm."""

    first_seed: int
    seeds: int = 0
    """Run."""
    faults: tuple[str, ...] = ()
    invariants: tuple[str, ...] = (*(checker.name for checker in CHECKERS), NO_EXCEPTION)
    failures: list[Failure] = field(default_factory=list)
    requests: int = 0
    failed_requests: int = 0
    """That ended with an error, because a node was gone."""
    faults_met: int = 0
    events: int = 0


def fault_kinds(names: str) -> tuple[str, ...]:
    """Kinds from `all`, `none` or names with commas between them. Raises UserError."""
    if names == "all":
        return tuple(FAULTS)
    chosen = [name.strip() for name in names.split(",")] if names != "none" else []
    for name in chosen:
        if name not in FAULTS:
            raise UserError(
                f"There is no fault {name!r}: take all, none, or some of {', '.join(FAULTS)} with "
                "commas between them."
            )
    return tuple(kind for kind in FAULTS if kind in chosen)


def replay_command(seed: int, kinds: Sequence[str]) -> str:
    """What to type to see one seed again."""
    names = "all" if set(kinds) == set(FAULTS) else ",".join(kinds) or "none"
    return f"molink sim swarm --seeds 1 --first-seed {seed} --faults {names}"


def run_swarm(seeds: int, first_seed: int, kinds: Sequence[str]) -> SwarmReport:
    """Run so many seeds from `first_seed` on, with faults of these kinds."""
    report = SwarmReport(first_seed, faults=tuple(kinds))
    for seed in range(first_seed, first_seed + seeds):
        _run_seed(seed, kinds, report)
    return report


def check_world(
    scenario: Scenario, checkers: Sequence[type[Checker]] = CHECKERS
) -> tuple[World, list[tuple[str, str]]]:
    """Run a scenario; the world at its end, and (invariant, mistake) for each that does not
    hold."""
    watching = [checker(scenario) for checker in checkers]
    world = World(scenario, Watchers(scenario, watching), _BoundedClock())
    found: list[tuple[str, str]] = []
    try:
        world.run()
    except Exception as error:  # Whatever the core raises is what the swarm is to find.
        found.append((NO_EXCEPTION, f"{type(error).__name__}: {error}"))
    else:
        for checker in watching:
            checker.ended(world)
    return world, [*found, *((one.name, one.mistakes[0]) for one in watching if one.mistakes)]


def _run_seed(seed: int, kinds: Sequence[str], report: SwarmReport) -> None:
    scenario = swarm_scenario(seed, kinds)
    world, found = check_world(scenario)
    report.seeds += 1
    report.requests += len(world.coordinator.requests)
    report.failed_requests += sum(request.failed for request in world.coordinator.requests)
    report.faults_met += len(scenario.faults)
    report.events += world.clock.events
    command = replay_command(seed, kinds)
    report.failures += [Failure(seed, name, mistake, command) for name, mistake in found]


class _BoundedClock(Clock):
    """Time that stops when a world does not come to rest."""

    def at(self, when: float, action: Callable[[Any], None], argument: Any = None) -> None:
        """As `Clock.at`."""
        if self._planned >= EVENTS_MAX:
            raise RuntimeError(f"the world has planned {EVENTS_MAX} events and goes on")
        super().at(when, action, argument)
