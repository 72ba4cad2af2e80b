"""Prints the milliseconds since the last input on an X11 desktop.

Run as `python -m molink_agent.probe.x11_idle`. A process of its own, since the X libraries end
theirs when the desktop goes away. It stands in for `xprintidle`, which few have installed; the
libraries are on every X11 desktop.
"""

import ctypes
import sys


class ScreenSaverInfo(ctypes.Structure):
    """C structure `XScreenSaverInfo` of X11/extensions/scrnsaver.h."""

    _fields_ = (
        ("window", ctypes.c_ulong),
        ("state", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("til_or_since", ctypes.c_ulong),
        ("idle", ctypes.c_ulong),
        ("event_mask", ctypes.c_ulong),
    )


def idle_ms() -> int | None:
    """Milliseconds since the last input; None without the libraries, a display or the extension."""
    try:
        x11, saver = ctypes.CDLL("libX11.so.6"), ctypes.CDLL("libXss.so.1")
    except OSError:
        return None
    x11.XOpenDisplay.restype = ctypes.c_void_p
    display = x11.XOpenDisplay(None)
    if not display:
        return None
    x11.XDefaultRootWindow.argtypes = (ctypes.c_void_p,)
    x11.XDefaultRootWindow.restype = ctypes.c_ulong
    info = ScreenSaverInfo()
    saver.XScreenSaverQueryInfo.argtypes = (ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p)
    known = saver.XScreenSaverQueryInfo(
        display, x11.XDefaultRootWindow(display), ctypes.byref(info)
    )
    return int(info.idle) if known else None


def main() -> None:
    """Print the number, or end with 1."""
    idle = idle_ms()
    if idle is None:
        sys.exit(1)
    print(idle)


if __name__ == "__main__":
    main()
