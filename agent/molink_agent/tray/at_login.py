"""Whether a desktop shows the icon from each login on: a file in its folder of autostarts."""

import re
import sys
from pathlib import Path

from molink.systemd.user_service import xdg_folder

FILE = "molink-agent-tray.desktop"

ENTRY = """\
[Desktop Entry]
Type=Application
Name=MoLink
Comment=What this PC lends, and a pause button
Exec={command}
Terminal=false
"""


def start_at_login(data_dir: Path) -> Path:
    """Have the icon shown from the next login on; the file that says so. Raises OSError."""
    words = (sys.executable, "-m", "molink.cli.main", "agent", "tray", "--data-dir", str(data_dir))
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(ENTRY.format(command=" ".join(map(_quoted, words))))
    return file


def not_at_login() -> bool:
    """Take that back; whether there was anything to take back."""
    file = _file()
    was_there = file.exists()
    file.unlink(missing_ok=True)
    return was_there


def _quoted(word: str) -> str:
    """A word as the Desktop Entry Specification wants it in `Exec`."""
    quoted = re.sub(r'(["`$\\])', r"\\\1", word).replace("%", "%%")
    return '"' + quoted.replace("\\", "\\\\") + '"'


def _file() -> Path:
    return xdg_folder("XDG_CONFIG_HOME", ".config") / "autostart" / FILE
