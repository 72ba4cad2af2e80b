"""Probe for a program that fills the screen, as games and films do; it asks the desktop's own.

Windows tells whether it would disturb somebody with a notice now; under WSL only Windows is asked.
X11 tells the state of the active window; games under Wayland mostly are X11 programs still, which
its X server knows. A program of Wayland's own nobody tells of: it shows on the card only
(`molink_agent.limits.game_watch`).
"""

import re
from collections.abc import Mapping

from molink_agent.probe.commands import Ask, answer_of
from molink_agent.probe.input_idle import WINDOWS_POWERSHELL

WINDOWS_STATE = """
Add-Type @'
using System.Runtime.InteropServices;
public static class MolinkScreen {
  [DllImport("shell32.dll")] static extern int SHQueryUserNotificationState(out int state);
  public static int State() {
    int state;
    return SHQueryUserNotificationState(out state) == 0 ? state : 0;
  }
}
'@
[MolinkScreen]::State()
"""

WINDOWS_FULL_SCREEN = {"2", "3", "4"}
"""QUNS_BUSY (a program fills the screen), QUNS_RUNNING_D3D_FULL_SCREEN, QUNS_PRESENTATION_MODE."""

WINDOWS_ANSWERS = {"1", "2", "3", "4", "5", "6", "7"}


class FullScreenProbe:
    """Asks the desktop of one session."""

    def __init__(
        self, environment: Mapping[str, str], *, wsl: bool = False, ask: Ask = answer_of
    ) -> None:
        self._ask = ask
        self._asks_windows = wsl
        self._asks_x11 = bool(environment.get("DISPLAY"))

    async def fills(self) -> bool | None:
        """Whether a program fills the screen now; None: nobody tells."""
        if self._asks_windows:
            return await self._windows()
        return await self._x11() if self._asks_x11 else None

    async def _windows(self) -> bool | None:
        for program in ("powershell.exe", WINDOWS_POWERSHELL):
            command = (program, "-NoProfile", "-NonInteractive", "-Command", WINDOWS_STATE)
            answer = (await self._ask(*command) or "").strip()
            if answer in WINDOWS_ANSWERS:
                return answer in WINDOWS_FULL_SCREEN
        return None

    async def _x11(self) -> bool | None:
        active = await self._ask("xprop", "-root", "_NET_ACTIVE_WINDOW")
        window = re.search(r"window id # (0x[0-9a-f]+)", active or "")
        if window is None:
            return None
        if int(window[1], 16) == 0:
            return False
        state = await self._ask("xprop", "-id", window[1], "_NET_WM_STATE")
        return None if state is None else "_NET_WM_STATE_FULLSCREEN" in state
