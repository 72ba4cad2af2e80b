"""Probe of how long nobody has touched this PC; each desktop is asked by its own program, if any.

The first that answers counts. Under WSL only Windows is asked: the Linux inside sees no mouse and
would always answer idle. On Wayland X11 is left out: it sees the input of old programs only. logind
comes last: it knows consoles and SSH, but of a desktop only what that desktop reports, at worst "in
use" for ever, which is the safe side.
"""

import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from molink_agent.probe.commands import Ask, answer_of

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
MUTTER_METHOD = f"{MUTTER}.GetIdletime"


@dataclass(frozen=True, slots=True)
class InputSource:
    """Program that knows the time of the last input."""

    name: str
    command: tuple[str, ...]
    read: Callable[[str], float | None]
    """Seconds out of what the command printed; None when it printed something else."""


@dataclass(frozen=True, slots=True)
class InputIdle:
    """Time since the last input, and who told it."""

    seconds: float | None
    """None: unknown."""
    source: str = ""


async def ask_input_idle(sources: tuple[InputSource, ...], ask: Ask = answer_of) -> InputIdle:
    """Ask one source after the other until one knows."""
    for source in sources:
        output = await ask(*source.command)
        seconds = source.read(output) if output is not None else None
        if seconds is not None and 0 <= seconds <= IDLE_S_MAX:
            return InputIdle(seconds, source.name)
    return InputIdle(None)


def read_milliseconds(output: str) -> float | None:
    """Seconds by a bare number of milliseconds."""
    text = output.strip()
    return int(text) / 1000 if text.isascii() and text.isdecimal() else None


def read_dbus_milliseconds(output: str) -> float | None:
    """Seconds by `(uint64 1234,)` of gdbus, or by the last line of dbus-send."""
    found = re.search(r"uint64 (\d+)", output)
    return int(found[1]) / 1000 if found else None


def read_logind(output: str, monotonic_s: float | None = None) -> float | None:
    """Seconds by `b true` and, in the next line, `t MICROSECONDS` since when; `b false` is in use
    now."""
    found = re.fullmatch(r"b (true|false)\s+t (\d+)", output.strip())
    if found is None:
        return None
    if found[1] == "false":
        return 0.0
    now_s = time.clock_gettime(time.CLOCK_MONOTONIC) if monotonic_s is None else monotonic_s
    return max(0.0, now_s - int(found[2]) / 1e6)


WINDOWS = tuple(
    InputSource(
        "Windows",
        (program, "-NoProfile", "-NonInteractive", "-Command", WINDOWS_IDLE),
        read_milliseconds,
    )
    for program in ("powershell.exe", WINDOWS_POWERSHELL)
)
GNOME = tuple(
    InputSource("GNOME", command, read_dbus_milliseconds)
    for command in (
        (
            *("gdbus", "call", "--session", "--dest", MUTTER),
            *("--object-path", MUTTER_OBJECT, "--method", MUTTER_METHOD),
        ),
        ("dbus-send", "--print-reply", f"--dest={MUTTER}", MUTTER_OBJECT, MUTTER_METHOD),
    )
)
X11 = tuple(
    InputSource("X11", command, read_milliseconds)
    for command in (("xprintidle",), (sys.executable, "-m", "molink_agent.probe.x11_idle"))
)
LOGIND = InputSource(
    "logind",
    (
        *("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1"),
        *("org.freedesktop.login1.Manager", "IdleHint", "IdleSinceHintMonotonic"),
    ),
    read_logind,
)


def input_sources(environment: Mapping[str, str], *, wsl: bool) -> tuple[InputSource, ...]:
    """The sources that may know, best first, judged by the session's environment variables."""
    if wsl:
        return WINDOWS
    gnome = GNOME if "DBUS_SESSION_BUS_ADDRESS" in environment else ()
    wayland = "WAYLAND_DISPLAY" in environment or environment.get("XDG_SESSION_TYPE") == "wayland"
    x11 = X11 if environment.get("DISPLAY") and not wayland else ()
    return (*gnome, *x11, LOGIND)
