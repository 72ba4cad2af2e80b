"""Whether a program fills the screen, as desktops answer it."""

import pytest

from molink_agent.probe.full_screen import FullScreenProbe


def answering(*answers):
    """A desktop that gives these answers, one after the other, and what it was asked."""
    left, asked = list(answers), []

    async def ask(*command):
        asked.append(command)
        return left.pop(0)

    return ask, asked


@pytest.mark.parametrize(
    ("answers", "fills"),
    [
        (("window id # 0x1a", "_NET_WM_STATE(ATOM) = _NET_WM_STATE_FULLSCREEN"), True),
        (("window id # 0x1a", "_NET_WM_STATE(ATOM) = _NET_WM_STATE_MAXIMIZED_VERT"), False),
        (("window id # 0x1a", "_NET_WM_STATE:  not found."), False),
        (("window id # 0x1a", None), None),
        (("window id # 0x0",), False),
        (("_NET_ACTIVE_WINDOW:  no such atom on any window.",), None),
        ((None,), None),
    ],
)
async def test_x11(answers, fills):
    ask, _ = answering(*answers)
    assert await FullScreenProbe({"DISPLAY": ":0"}, ask=ask).fills() is fills


@pytest.mark.parametrize(
    ("answers", "fills"),
    [
        (("3\r\n",), True),
        (("2",), True),
        (("5",), False),
        ((None, "4"), True),
        (("0", None), None),
        ((None, "Access is denied."), None),
    ],
)
async def test_windows_is_asked_under_wsl(answers, fills):
    ask, asked = answering(*answers)
    assert await FullScreenProbe({"DISPLAY": ":0"}, wsl=True, ask=ask).fills() is fills
    assert "powershell" in asked[0][0]


async def test_without_a_display_nobody_is_asked():
    ask, asked = answering()
    assert await FullScreenProbe({"WAYLAND_DISPLAY": "wayland-0"}, ask=ask).fills() is None
    assert not asked
