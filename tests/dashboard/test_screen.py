"""The application on a terminal that is not there: keys in, lines out."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC

import pytest

from molink.dashboard.model.history import History
from molink.dashboard.pages.lines import ASCII, UNICODE
from molink.dashboard.recording import DashboardRecorder, DashboardRecording, DashboardReplay
from molink.dashboard.screen.app import DashboardApp
from molink.dashboard.sources import ReplaySource
from molink.errors import UserError
from molink.report.orders import InviteMade
from tests.dashboard.scenes import cluster, event, history_of, look, node, slowed, steady


@dataclass
class Stand:
    """Source that stands still until it is given another look."""

    history: History
    url: str = "http://127.0.0.1:8000"
    note: str = ""
    looks: asyncio.Queue = field(default_factory=asyncio.Queue)

    async def run(self, changed):
        while True:
            self.history.take(await self.looks.get())
            changed()


@dataclass
class Orders:
    """Actions that note what was ordered."""

    given: list = field(default_factory=list)
    refusal: str = ""

    async def _note(self, *order):
        if self.refusal:
            raise UserError(self.refusal)
        self.given.append(order)
        return f"{order[0]}: done."

    async def drain(self, node_id):
        return await self._note("drain", node_id)

    async def resume(self, node_id):
        return await self._note("resume", node_id)

    async def remove(self, node_id):
        return await self._note("remove", node_id)

    async def pause_intake(self, paused):
        return await self._note("intake", paused)

    async def invite(self):
        await self._note("invite")
        return InviteMade("i7", "molink agent join molink1-" + "x" * 100, 5, 0.0)


class Screen:
    """What is on the screen."""

    def __init__(self, pilot):
        self.pilot, self.app = pilot, pilot.app

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.pilot.pause()
        await self.pilot.pause()

    @property
    def lines(self):
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]

    @property
    def text(self):
        return "\n".join(self.lines)


@asynccontextmanager
async def shown(source, actions=None, size=(80, 24), glyphs=UNICODE):
    app = DashboardApp(source, glyphs, actions, UTC)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        await pilot.pause()
        yield Screen(pilot)


def stand(*looks):
    return Stand(history_of(*(looks or steady())))


async def test_the_first_screen_has_everything_at_80_by_24():
    async with shown(stand(*steady(), *slowed())) as screen:
        lines = screen.lines
    assert len(lines) == 24
    assert lines[0].startswith("molink · demo · 4 of 4 nodes") and "serving" in lines[0]
    assert lines[1].startswith(" ▲ ben is 3.0 times as slow as it was")
    assert sum("▼" in line or "▲" in line for line in lines) >= 5
    assert [line.split()[0] for line in lines[-5:]] == [
        "tokens/s",
        "TTFT",
        "TPOT",
        "requests",
        ">1",
    ]


async def test_a_number_or_a_tab_shows_another_view():
    async with shown(stand()) as screen:
        await screen.press("2")
        assert "why, progress" in screen.text and "dora" in screen.text
        await screen.press("tab")
        assert "TTFT" in screen.text and ">3 requests" in screen.text
        await screen.press("shift+tab", "shift+tab", "shift+tab")
        assert ">9 given" in screen.text


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("links", "RTT"),
        ("fo", "forecast   measured"),
        ("ben", "lends 4.3 GB of 8.6 GB"),
        ("mars", "There is no view and no node 'mars'"),
    ],
)
async def test_a_colon_goes_anywhere(typed, says):
    async with shown(stand()) as screen:
        await screen.press("colon", *typed, "enter")
        assert says in screen.text


async def test_a_slash_filters_in_place_and_a_kept_filter_is_visible():
    async with shown(stand()) as screen:
        await screen.press("2", "slash", "d", "o")
        assert "dora" in screen.text and "anna" not in screen.text
        assert any(line.startswith(" / do") for line in screen.lines)
        await screen.press("enter")
        assert " /do  1 of 4 nodes; Esc shows all" in screen.lines
        await screen.press("escape")
        assert "anna" in screen.text and "Esc shows all" not in screen.text


async def test_a_filter_is_a_regular_expression():
    async with shown(stand()) as screen:
        await screen.press("2", "slash", *"^(anna|carl) ", "enter")
        assert "2 of 4 nodes" in screen.text
        await screen.press("slash", *"(", "enter")
        assert "0 of 4 nodes" in screen.text


async def test_what_is_typed_after_a_colon_is_shown_and_completed():
    async with shown(stand()) as screen:
        await screen.press("colon", "d", "o")
        assert any(line.startswith(" : do") for line in screen.lines)
        await screen.pilot.pause(0.2)
        await screen.press("tab", "enter")
        assert "dora" in screen.text and "has given" in screen.text


async def test_rows_are_sorted_by_the_next_column_and_turned():
    async with shown(stand()) as screen:
        await screen.press("2", "s")
        assert "Sorted by node" in screen.text
        first = [line.split()[0] for line in screen.lines[3:7]]
        await screen.press("S")
        assert [line.split()[0] for line in screen.lines[3:7]] == first[::-1]


async def test_a_screen_that_shrinks_is_wiped():
    async with shown(stand(), size=(100, 30)) as screen:
        await screen.pilot.resize_terminal(70, 20)
        await screen.press()
        assert [line for line in screen.lines if line] == [
            "70 x 20 is too small: enlarge it to 80 x 24."
        ]


async def test_a_question_mark_shows_the_keys_of_this_view():
    async with shown(stand(), Orders()) as screen:
        await screen.press("2", "question_mark")
        assert "Keys in the view nodes" in screen.text and "drain the node" in screen.text
        await screen.press("escape", "3", "question_mark")
        assert "drain the node" not in screen.text


async def test_enter_shows_details_that_stay_up_to_date():
    source = stand()
    async with shown(source) as screen:
        await screen.press("2", "down", "enter")
        assert screen.lines[2].startswith("ben") and "40 %" in screen.text
        source.looks.put_nowait(slowed()[0])
        await screen.press()
        assert "99 %" in screen.text
        await screen.press("escape")
        assert "why, progress" in screen.text


async def test_the_cursor_stays_on_its_node_when_rows_move():
    source = stand()
    async with shown(source, Orders()) as screen:
        await screen.press("2", "down")
        nodes = [node("aaron", 0), node("anna", 0), node("ben", 8), node("carl", 16)]
        source.looks.put_nowait(look(20, cluster(nodes=nodes)))
        await screen.press("d")
        assert "Drain ben?" in screen.text


async def test_drain_is_confirmed_and_given():
    orders = Orders()
    async with shown(stand(), orders) as screen:
        await screen.press("2", "d")
        assert "Drain anna? It hands its layers over" in screen.text
        await screen.press("n")
        assert "Nothing was changed." in screen.text and not orders.given
        await screen.press("d", "y")
        await screen.press()
        assert orders.given == [("drain", "a" * 16)] and "drain: done." in screen.text


async def test_remove_wants_the_name():
    orders = Orders()
    async with shown(stand(), orders) as screen:
        await screen.press("2", "x", "y", "enter")
        assert not orders.given
        await screen.press("x", *"anna", "enter")
        await screen.press()
        assert orders.given == [("remove", "a" * 16)]


async def test_escape_gives_no_order():
    orders = Orders()
    async with shown(stand(), orders) as screen:
        await screen.press("2", "d", "escape", "y")
        assert not orders.given


async def test_an_order_that_makes_no_sense_is_not_asked_for():
    async with shown(stand(), Orders()) as screen:
        await screen.press("2", "u")
        assert "anna is not drained by the operator" in screen.text


async def test_the_intake_is_paused_and_opened():
    orders, source = Orders(), stand()
    async with shown(source, orders) as screen:
        await screen.press("p", "y")
        source.looks.put_nowait(look(20, cluster(intake_paused=True)))
        await screen.press("p", "y")
        await screen.press()
        assert orders.given == [("intake", True), ("intake", False)]
        assert "intake paused" in screen.lines[0]


async def test_an_invite_is_shown_whole_and_can_be_copied():
    async with shown(stand(), Orders()) as screen:
        await screen.press("i", "y")
        await screen.press()
        assert "x" * 54 in screen.text and "Type this line" in screen.text
        await screen.press("c")
        assert screen.app.clipboard.startswith("molink agent join molink1-")


async def test_a_refused_order_says_why():
    async with shown(stand(), Orders(refusal="No\x1b[2J key.")) as screen:
        await screen.press("p", "y")
        await screen.press()
        assert "No\ufffd[2J key." in screen.text


async def test_read_only_offers_and_does_nothing():
    async with shown(stand()) as screen:
        await screen.press("2", "d")
        assert "Nothing can be changed here: this is started with --read-only." in screen.text
        await screen.press("question_mark")
        assert "drain the" not in screen.text and "read-only" in screen.lines[0]


async def test_a_coordinator_that_goes_and_comes_back():
    source = stand()
    async with shown(source) as screen:
        source.looks.put_nowait(
            look(30, trouble="No answer from the coordinator: cannot reach http://127.0.0.1:8000")
        )
        await screen.press()
        assert "no answer for 5s" in screen.lines[0] and "anna" in screen.text
        assert "No answer from the coordinator: cannot reach" in screen.lines[1]
        source.looks.put_nowait(look(40))
        await screen.press()
        assert "serving" in screen.lines[0] and "Nothing stands out." in screen.lines[1]


@pytest.mark.parametrize("size", [(79, 24), (80, 23), (40, 10), (20, 5)])
async def test_a_terminal_that_is_too_small_gets_a_sentence(size):
    async with shown(stand(), size=size) as screen:
        said = " ".join(line for line in screen.lines if line)
        assert said == f"{size[0]} x {size[1]} is too small: enlarge it to 80 x 24."
        await screen.pilot.resize_terminal(100, 30)
        await screen.press()
        assert "anna" in screen.text


async def test_without_utf8_the_screen_is_ascii():
    source = stand(look(0, events=[event(1)]))
    async with shown(source, Orders(), glyphs=ASCII) as screen:
        for key in ("1", "2", "3", "4", "5", "6", "7", "question_mark"):
            await screen.press(key)
            assert screen.text.isascii()


async def test_a_hundred_nodes_scroll():
    nodes = [node(f"pc{at:03}", id=f"{at:016}") for at in range(100)]
    async with shown(stand(look(0, cluster(nodes=nodes)))) as screen:
        await screen.press("2", "end")
        assert "pc099" in screen.text and screen.lines[-1].endswith("/100")
        await screen.press("home")
        assert "pc000" in screen.text


async def test_styles_are_the_terminals_own_colours():
    async with shown(stand(*steady(), *slowed())) as screen:
        styles = [
            segment.style
            for strip in screen.app.screen._compositor.render_strips()
            for segment in strip
            if segment.style is not None
        ]
    colours = [style.color for style in styles if style.color is not None]
    assert colours and all(colour.number is None or colour.number < 16 for colour in colours)
    assert all(colour.triplet is None for colour in colours)


async def test_no_color_takes_colours_and_leaves_words(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with shown(stand(*steady(), *slowed())) as screen:
        assert screen.app.no_color and "3.0x slower" in screen.text


@pytest.fixture
def replay(tmp_path):
    with DashboardRecorder(tmp_path / "a", "http://x") as recorder:
        for one in [*steady(), *slowed()]:
            recorder.take(one)
    return ReplaySource(
        DashboardReplay(DashboardRecording.open(tmp_path / "a")), UTC, playing=False
    )


async def test_a_recording_is_stepped_through_to_and_fro_and_to_a_time(replay):
    async with shown(replay) as screen:
        assert "replay, paused 1/31" in screen.lines[0]
        await screen.press("right_square_bracket", "right_square_bracket")
        assert "3/31" in screen.lines[0] and "08:00:01" in screen.lines[0]
        await screen.press("left_square_bracket")
        assert "2/31" in screen.lines[0]
        await screen.press("t", *"08:00:15", "enter")
        assert "31/31" in screen.lines[0] and "3.0x slower" in screen.text
        await screen.press("t", *"-5", "enter")
        assert "21/31" in screen.lines[0]
        await screen.press("t", *"noon", "enter")
        assert "a time is like 08:00:10" in screen.text
        await screen.press("right_curly_bracket")
        assert "31/31" in screen.lines[0]


async def test_a_recording_changes_nothing(replay):
    async with shown(replay) as screen:
        await screen.press("2", "d")
        assert "Nothing can be changed here: this is a recording." in screen.text


async def test_q_ends_it():
    async with shown(stand()) as screen:
        await screen.press("q")
    assert screen.app.return_code == 0
