"""When the PC was last used, and that nothing is asked without need."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from molink_agent.limits.limits import Limits
from molink_agent.limits.use_watch import (
    GPU_FREE_BELOW_PERCENT,
    GPU_USED_FROM_PERCENT,
    INPUT_POLL_S,
    UNKNOWN_AFTER_S,
    IdleTime,
    UseWatch,
)
from molink_agent.probe.gpus import GpuProbe
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
    assert await watch.poll(Limits(), 0) is None
    assert desktop.asked == []


async def test_it_is_asked_now_and_then():
    desktop = FakeDesktop()
    watch = watching(desktop, FakeCard())
    for now_s in range(int(2 * INPUT_POLL_S)):
        idle_s = await watch.poll(CARES, now_s)
    assert len(desktop.asked) == 2
    assert idle_s == 600 + INPUT_POLL_S - 1


async def test_another_s_game_counts_and_our_stage_does_not():
    desktop = FakeDesktop()
    card = FakeCard(running={100: 1, 7: 1}, samples=[(100, 95, 1)])
    watch = watching(desktop, card)
    assert await watch.poll(CARES, 0, frozenset({100})) == 600
    card.samples = [(7, 60, 2)]
    assert await watch.poll(CARES, INPUT_POLL_S, frozenset({100})) == 0


ANSWERS = st.lists(
    st.tuples(
        st.floats(0.1, 60),
        st.one_of(st.none(), st.floats(0, 1e6)),
        st.one_of(st.none(), st.floats(0, 100)),
    ),
    max_size=30,
)


def test_before_any_answer_nobody_knows():
    watch = IdleTime()
    watch.observe(5, None, 0)
    assert watch.idle_s(5) is None


def test_idle_time_grows_between_answers():
    watch = IdleTime()
    watch.observe(100, 30)
    assert watch.idle_s(110) == 40


def test_a_film_counts_as_use():
    watch = IdleTime()
    watch.observe(100, 5000, GPU_USED_FROM_PERCENT)
    assert watch.idle_s(160) == 60


def test_a_load_about_the_threshold_does_not_flap():
    watch = IdleTime()
    between = (GPU_FREE_BELOW_PERCENT + GPU_USED_FROM_PERCENT) / 2
    watch.observe(100, 5000, between)
    assert watch.idle_s(100) == 5000
    watch.observe(120, 5000, GPU_USED_FROM_PERCENT)
    watch.observe(140, 5000, between)
    assert watch.idle_s(140) == 0
    watch.observe(160, 5000, 0)
    watch.observe(180, 5000, between)
    assert watch.idle_s(180) == 40


def test_missing_answers_are_borne_for_a_while():
    watch = IdleTime()
    watch.observe(0, 600)
    watch.observe(UNKNOWN_AFTER_S, None)
    assert watch.idle_s(UNKNOWN_AFTER_S) == 600 + UNKNOWN_AFTER_S
    assert watch.idle_s(UNKNOWN_AFTER_S + 1) is None


@given(ANSWERS)
def test_idle_time_is_never_longer_than_the_input_says(answers):
    watch, now_s, told = IdleTime(), 0.0, None
    for step_s, input_idle_s, percent in answers:
        now_s += step_s
        watch.observe(now_s, input_idle_s, percent)
        told = told if input_idle_s is None else (now_s, input_idle_s)
        idle_s = watch.idle_s(now_s)
        if idle_s is not None:
            assert told is not None
            assert 0 <= idle_s <= now_s - told[0] + told[1] + 1e-6
