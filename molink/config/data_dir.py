"""Where a user's programs keep what must not be lost."""

import os
from pathlib import Path

from molink.errors import UserError

__all__ = ["data_dir"]


def data_dir(name: str, given: str | None = None) -> Path:
    """The folder that was `given`, else the one called `name` where this user's data lies.

    Raises UserError for a user without a home.
    """
    if given is not None:
        return Path(given)
    try:
        root = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    except RuntimeError:
        raise UserError("This user has no home folder: give --data-dir.") from None
    return Path(root) / name
