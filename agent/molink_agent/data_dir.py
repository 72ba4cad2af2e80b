"""Where an agent keeps what it must not forget: one directory for each agent on a PC."""

import os
from pathlib import Path

__all__ = ["default_data_dir"]


def default_data_dir() -> Path:
    """`molink-agent` among the user's data (the XDG convention)."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "molink-agent"
