"""How long has nobody touched this PC? Each desktop tells in its own way, or not at all.

The first that answers counts. Under WSL only Windows is asked: the Linux inside sees no mouse and
would always say idle. On Wayland the X11 way is left out: it sees the input of old programs only.
logind stands last: it knows consoles and SSH, but of a desktop only what that desktop tells it, at
worst "in use" for ever, which keeps to the safe side.
"""

import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from molink_agent.probe.commands import Ask, answer_of

__all__ = ["InputIdle", "InputSource", "ask_input_idle", "input_sources", "read_logind"]

IDLE_S_MAX = 3.2e7
"""A year; more is a counter that wrapped or was never set."""

WINDOWS_POWERSHELL = "/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe"
"""Services under WSL do not have Windows' programs on their path."""

WINDOWS_IDLE = """
Add-Type @'
using System; using System.Runtime.InteropServices;
public static class MolinkIdle {
  struct Last { public uint size; public uint at; }
  [DllImport("user32.dll")] static extern bool GetLastInputInfo(ref Last last);
  public static uint Milliseconds() {
    var last = new Last(); last.size = (uint)Marshal.SizeOf(last);
    if (!GetLastInputInfo(ref last)) throw new Exception("refused");
    uint idle = unchecked((uint)Environment.TickCount - last.at);
    return idle > 0x7fffffff ? 0 : idle;
  }
}
'@
[MolinkIdle]::Milliseconds()
"""
"""Input may be stamped a little later than the tick counter: that difference, which would be weeks,
is no time at all.
"""

MUTTER = "org.gnome.Mutter.IdleMonitor"
MUTTER_OBJECT = "/org/gnome/Mutter/IdleMonitor/Core"
LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")


@dataclass(frozen=True, slots=True)
class InputSource:
    """One way to ask."""

    name: str
    command: tuple[str, ...]
    read: Callable[[str], float | None]
    """Seconds out of what the command printed; None when it says something else."""


@dataclass(frozen=True, slots=True)
class InputIdle:
    """The answer."""

    seconds: float | None
    """Since the last input; None: nobody could tell."""
    source: str = ""


async def ask_input_idle(sources: tuple[InputSource, ...], ask: Ask = answer_of) -> InputIdle:
    """Ask one after the other until one knows."""
    for source in sources:
        said = await ask(*source.command)
        seconds = source.read(said) if said is not None else None
        if seconds is not None and 0 <= seconds <= IDLE_S_MAX:
            return InputIdle(seconds, source.name)
    return InputIdle(None)


def input_sources(environment: Mapping[str, str], *, wsl: bool) -> tuple[InputSource, ...]:
    """Who could know, best first, judged by the session's environment variables."""
    if wsl:
        return tuple(_windows(program) for program in ("powershell.exe", WINDOWS_POWERSHELL))
    sources = (
        [_gnome_gdbus(), _gnome_dbus_send()] if "DBUS_SESSION_BUS_ADDRESS" in environment else []
    )
    wayland = "WAYLAND_DISPLAY" in environment or environment.get("XDG_SESSION_TYPE") == "wayland"
    if environment.get("DISPLAY") and not wayland:
        sources += [_xprintidle(), _x11_library()]
    return (*sources, _logind())


def read_milliseconds(said: str) -> float | None:
    """A bare number."""
    text = said.strip()
    return int(text) / 1000 if text.isascii() and text.isdecimal() else None


def read_dbus_milliseconds(said: str) -> float | None:
    """`(uint64 1234,)` of gdbus, or the last line of dbus-send."""
    found = re.search(r"uint64 (\d+)", said)
    return int(found[1]) / 1000 if found else None


def read_logind(said: str, monotonic_s: float | None = None) -> float | None:
    """`b true` and, in the next line, `t MICROSECONDS` since when; `b false` is in use now."""
    found = re.fullmatch(r"b (true|false)\s+t (\d+)", said.strip())
    if found is None:
        return None
    if found[1] == "false":
        return 0.0
    now_s = time.clock_gettime(time.CLOCK_MONOTONIC) if monotonic_s is None else monotonic_s
    return max(0.0, now_s - int(found[2]) / 1e6)


def _windows(program: str) -> InputSource:
    command = (program, "-NoProfile", "-NonInteractive", "-Command", WINDOWS_IDLE)
    return InputSource("Windows", command, read_milliseconds)


def _gnome_gdbus() -> InputSource:
    method = f"{MUTTER}.GetIdletime"
    where = ("--dest", MUTTER, "--object-path", MUTTER_OBJECT, "--method", method)
    return InputSource("GNOME", ("gdbus", "call", "--session", *where), read_dbus_milliseconds)


def _gnome_dbus_send() -> InputSource:
    where = (f"--dest={MUTTER}", MUTTER_OBJECT, f"{MUTTER}.GetIdletime")
    return InputSource("GNOME", ("dbus-send", "--print-reply", *where), read_dbus_milliseconds)


def _xprintidle() -> InputSource:
    return InputSource("X11", ("xprintidle",), read_milliseconds)


def _x11_library() -> InputSource:
    command = (sys.executable, "-m", "molink_agent.probe.x11_idle")
    return InputSource("X11", command, read_milliseconds)


def _logind() -> InputSource:
    command = ("busctl", "get-property", *LOGIND, "IdleHint", "IdleSinceHintMonotonic")
    return InputSource("logind", command, read_logind)
