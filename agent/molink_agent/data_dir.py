"""Where an agent keeps what it must not forget: one directory for each agent on a PC."""

from pathlib import Path

from molink.config.data_dir import data_dir

__all__ = ["MEMBERSHIP_FILE", "default_data_dir"]

MEMBERSHIP_FILE = "membership.json"
"""There while the agent is a member of a cluster."""


def default_data_dir() -> Path:
    """`molink-agent` among the user's data (the XDG convention)."""
    return data_dir("molink-agent")
