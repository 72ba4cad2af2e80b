"""The tray icon: what it shows of an agent, and what its menu orders."""

import asyncio
import shlex
import sys
import threading

import pytest
from click.testing import CliRunner

from molink.errors import UserError
from molink_agent.cli import main
from molink_agent.data_files import MEMBERSHIP_FILE
from molink_agent.limits.owner_policy import PAUSED_FILE
from molink_agent.tray.at_login import FILE
from molink_agent.tray.icon import SIZE_PX, Tray, desktop
from molink_agent.tray.view import AMBER, GREEN, GREY, NOT_RUNNING, RED, tray_view
from tests.agent.page.test_server import page_of

SERVES = {
    "now": "serving: layers 0 to 7 of demo",
    "problems": [],
    "tonight": "120 words of answers",
    "paused": False,
    "connected": True,
}


@pytest.mark.parametrize(
    ("change", "color"),
    [
        ({}, GREEN),
        ({"now": "loading: 40 %"}, AMBER),
        ({"paused": True, "problems": ["Nothing is lent now: paused"]}, GREY),
        ({"problems": ["limits.toml has a mistake"]}, RED),
        ({"connected": False}, RED),
    ],
)
def test_its_color_says_what_the_pc_does(change, color):
    view = tray_view(SERVES | change)
    assert view.color == color
    assert view.sentences[0] == (SERVES | change)["now"]
    assert view.sentences[-1] == "Since noon: 120 words of answers"


def test_no_agent_can_be_neither_paused_nor_opened(tmp_path):
    pystray = pytest.importorskip("pystray._base", reason="pystray is not installed")
    tray = Tray(tmp_path)
    tray.look()
    assert tray.view.sentences == (NOT_RUNNING,)
    assert [str(one.text) for one in tray.items(pystray) if one is not pystray.Menu.SEPARATOR] == [
        NOT_RUNNING,
        "Remove this icon",
    ]


class Shown:
    """An icon as pystray has it."""

    def __init__(self):
        self.updates = 0
        self.icon = self.title = None

    def update_menu(self):
        self.updates += 1


async def test_the_menu_pauses_and_lends_again(tmp_path):
    pystray = pytest.importorskip("pystray._base", reason="pystray is not installed")
    pytest.importorskip("PIL", reason="pillow is not installed")
    tray, icon = Tray(tmp_path), Shown()

    def presses(text):
        (item,) = [one for one in tray.items(pystray) if one.text == text]
        item(icon)

    async with page_of(tmp_path):
        await asyncio.to_thread(tray.look)
        for text, paused in (("Pause", True), ("Lend again", False)):
            await asyncio.to_thread(presses, text)
            assert (tmp_path / PAUSED_FILE).exists() is paused
            assert tray.view.paused is paused and icon.icon.size == (SIZE_PX, SIZE_PX)
    assert icon.updates == 2 and icon.title.startswith("MoLink: ")


def test_without_a_desktop_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pystray", None)
    with pytest.raises(UserError, match=r"pip install 'molink\[tray\]'"):
        desktop()


def test_it_is_shown_at_login_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("molink_agent.tray.icon.desktop", lambda: None)
    home = tmp_path / 'my "PC" 100%'
    home.mkdir()
    (home / MEMBERSHIP_FILE).touch()
    place = ["tray", "--data-dir", str(home)]
    shown = CliRunner().invoke(main, [*place, "--at-login"])
    assert shown.exit_code == 0, shown.output
    lines = (tmp_path / "autostart" / FILE).read_text().splitlines()
    (words,) = [one.removeprefix("Exec=") for one in lines if one.startswith("Exec=")]
    exec_ = words.replace("\\\\", "\\").replace("%%", "%")
    assert shlex.split(exec_)[-2:] == ["--data-dir", str(home)]
    for said in ("no more", "was not shown"):
        assert said in CliRunner().invoke(main, [*place, "--not-at-login"]).output


def test_it_follows_the_agent_until_its_menu_ends_it(tmp_path, monkeypatch):
    base = pytest.importorskip("pystray._base", reason="pystray is not installed")
    monkeypatch.setattr("molink_agent.tray.icon.ASKED_S", 0.01)
    looked = threading.Event()

    class Icon(Shown):
        def __init__(self, name, picture, title, menu):
            super().__init__()
            self.menu = menu

        def run(self, setup):
            thread = threading.Thread(target=setup, args=(self,), daemon=True)
            thread.start()
            assert looked.wait(10)

        def update_menu(self):
            looked.set()

    backend = type("Backend", (), {"Icon": Icon, "Menu": base.Menu, "MenuItem": base.MenuItem})
    monkeypatch.setattr("molink_agent.tray.icon.desktop", lambda: backend)
    Tray(tmp_path).run()
