"""Whether the PC's owner plays: by the screen, by the card, and by what is left of its memory."""

import pytest

from molink_agent.limits.game_watch import GAME_KEEP_S, GameWatch, sign_of_game
from molink_agent.limits.limits import OwnerLimits
from molink_agent.probe.full_screen import FullScreenProbe
from molink_agent.probe.gpus import DriverGpu, GpuProbe
from molink_scheduler.units import GB
from tests.agent.probe.fake_nvml import FakeCard, FakeNvml

OURS, GAME, DESKTOP = 71, 72, 73


class Desktop:
    """X11 with one window; counts its questions."""

    def __init__(self, full_screen: bool = False) -> None:
        self.full_screen, self.questions = full_screen, 0

    async def ask(self, *command: str) -> str:
        self.questions += 1
        if "_NET_ACTIVE_WINDOW" in command:
            return "_NET_ACTIVE_WINDOW(WINDOW): window id # 0x3a00007"
        state = "_NET_WM_STATE_FULLSCREEN" if self.full_screen else ""
        return f"_NET_WM_STATE(ATOM) = {state}"


def watch(card: FakeCard, desktop: Desktop, *, wsl: bool = False) -> GameWatch:
    screen = FullScreenProbe({"DISPLAY": ":0"}, ask=desktop.ask)
    return GameWatch.on(GpuProbe(FakeNvml([card]), wsl=wsl), screen, wsl=wsl)


async def test_nobody_plays_on_a_quiet_pc():
    games = watch(FakeCard(drawing={DESKTOP: GB}, samples=[(DESKTOP, 9, 1)]), Desktop())
    assert await games.poll(OwnerLimits(), 0.0, frozenset({OURS})) == ""


async def test_a_program_that_fills_the_screen_counts_for_a_while():
    desktop = Desktop(full_screen=True)
    games = watch(FakeCard(), desktop)
    sentence = await games.poll(OwnerLimits(), 0.0, frozenset())
    assert sentence == "A program fills the screen (pause_on_game)."
    desktop.full_screen = False
    assert await games.poll(OwnerLimits(), GAME_KEEP_S - 1, frozenset()) == sentence
    assert await games.poll(OwnerLimits(), GAME_KEEP_S + 21, frozenset()) == ""


async def test_a_program_that_draws_a_lot_counts_and_our_own_work_does_not():
    card = FakeCard(drawing={GAME: GB}, running={OURS: GB}, samples=[(OURS, 95, 1)])
    games = watch(card, Desktop())
    assert await games.poll(OwnerLimits(), 0.0, frozenset({OURS})) == ""
    card.samples = [(OURS, 40, 2), (GAME, 55, 2)]
    assert "draws on cuda:0" in await games.poll(OwnerLimits(), 10.0, frozenset({OURS}))


@pytest.mark.parametrize("wsl", [False, True])
async def test_a_card_that_others_fill_is_given_back(wsl):
    card = FakeCard(free=GB // 2)
    games = watch(card, Desktop(), wsl=wsl)
    assert await games.poll(OwnerLimits(), 0.0, frozenset({OURS})) == ""
    card.free = GB // 5
    assert await games.poll(OwnerLimits(), 2.0, frozenset({OURS})) == ""  # Not asked again so soon.
    sentence = await games.poll(OwnerLimits(), 5.0, frozenset({OURS}))
    assert sentence == "Other programs need the memory of cuda:0 (pause_on_game)."
    card.free = 8 * GB  # Our stage has ended.
    assert await games.poll(OwnerLimits(), 20.0, frozenset()) == sentence
    assert await games.poll(OwnerLimits(), 20.0 + GAME_KEEP_S, frozenset()) == ""


@pytest.mark.parametrize(
    ("percent", "free_gb", "holds", "says"),
    [
        (None, 5, True, ""),
        (29, 5, True, ""),
        (30, 5, False, "draws on cuda:3"),
        (None, 0.2, True, "memory of cuda:3"),
        (None, 0.2, False, ""),
    ],
)
def test_what_a_card_tells(percent, free_gb, holds, says):
    card = DriverGpu(3, "RTX", 12 * GB, int(free_gb * GB), drawing_percent=percent)
    assert says in sign_of_game(card, holds=holds)
    assert bool(says) == bool(sign_of_game(card, holds=holds))


@pytest.mark.parametrize(
    "limits",
    [OwnerLimits(pause_on_game=False), OwnerLimits(device="cpu"), OwnerLimits(device="cuda:1")],
)
async def test_nothing_is_asked_of_who_lends_no_card_of_these_or_does_not_mind(limits):
    desktop = Desktop(full_screen=True)
    games = watch(FakeCard(free=0), desktop)
    assert await games.poll(limits, 0.0, frozenset({OURS})) == ""
    assert desktop.questions == 0


async def test_a_pc_without_cards_asks_no_desktop():
    desktop = Desktop(full_screen=True)
    games = GameWatch(GpuProbe(FakeNvml(missing=True)), FullScreenProbe({}, ask=desktop.ask))
    assert await games.poll(OwnerLimits(), 0.0, frozenset()) == ""
    assert desktop.questions == 0


@pytest.mark.parametrize("device", ["auto", "cuda:0", "cpu"])
async def test_a_game_on_the_card_that_lends_counts_as_on_one_that_serves(device):
    game = FakeCard(drawing={GAME: GB}, samples=[(GAME, 55, 1)])
    cards = [game] if device == "cpu" else [FakeCard(), game]
    limits, name = OwnerLimits(device=device, lend_gpu_bytes=GB), f"cuda:{len(cards) - 1}"
    screen = FullScreenProbe({"DISPLAY": ":0"}, ask=Desktop().ask)
    games = GameWatch.on(GpuProbe(FakeNvml(cards)), screen, wsl=False)
    assert f"draws on {name}" in await games.poll(limits, 0.0, frozenset())
    unset = GameWatch.on(GpuProbe(FakeNvml(cards)), screen, wsl=False)
    is_lent = "draws" in await unset.poll(OwnerLimits(device=device), 0.0, frozenset())
    assert is_lent == (device == "auto")
