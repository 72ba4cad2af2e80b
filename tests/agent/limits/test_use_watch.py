"""Whoever need not know asks nobody."""

from dataclasses import dataclass, field

from molink_agent.limits.limits import Limits
from molink_agent.limits.use_watch import UseWatch
from molink_agent.probe.gpus import GpuProbe
from molink_agent.probe.idle import INPUT_POLL_S
from molink_agent.probe.input_idle import input_sources
from tests.agent.probe.fake_nvml import FakeCard, FakeNvml

CARES = Limits(only_when_idle_minutes=5)


@dataclass
class FakeDesktop:
    idle_ms: int = 600_000
    asked: list[float] = field(default_factory=list)

    async def ask(self, *command: str, timeout_s: float = 0) -> str | None:
        self.asked.append(timeout_s)
        return f"{self.idle_ms}\n"


def watching(desktop: FakeDesktop, card: FakeCard) -> UseWatch:
    sources = input_sources({"DISPLAY": ":0"}, wsl=False)
    return UseWatch(sources, GpuProbe(FakeNvml([card])), ask=desktop.ask)


async def test_without_the_limit_nobody_is_asked():
    desktop = FakeDesktop()
    watch = watching(desktop, FakeCard())
    await watch.look(Limits(), 0)
    assert desktop.asked == []
    assert watch.idle_s(0) is None


async def test_it_is_asked_now_and_then():
    desktop = FakeDesktop()
    watch = watching(desktop, FakeCard())
    for now_s in range(int(2 * INPUT_POLL_S)):
        await watch.look(CARES, now_s)
    assert len(desktop.asked) == 2
    assert watch.idle_s(INPUT_POLL_S) == 600


async def test_another_s_game_counts_and_our_stage_does_not():
    desktop = FakeDesktop()
    card = FakeCard(running={100: 1, 7: 1}, samples=[(100, 95, 1)])
    watch = watching(desktop, card)
    await watch.look(CARES, 0, frozenset({100}))
    assert watch.idle_s(0) == 600
    card.samples = [(7, 60, 2)]
    await watch.look(CARES, INPUT_POLL_S, frozenset({100}))
    assert watch.idle_s(INPUT_POLL_S) == 0
