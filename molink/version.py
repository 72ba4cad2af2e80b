"""Version of this build: its release, and in a checkout the commit.

A checkout is asked each time, by `git describe`, since its commits change without an installation;
whatever is installed otherwise has kept what it was built from.
"""

import os
import re
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

from molink import __version__

ROOT = Path(__file__).resolve().parents[1]

GIT_WITHIN_S = 5.0
"""It answers in milliseconds, from a disk that sleeps in seconds."""

DESCRIBED = re.compile(r"(?:v(\d[\w.]*)-(\d+)-g)?([0-9a-f]{7,40})(-dirty)?")
"""Tag, commits since, commit, and whether files were changed."""


@cache
def version() -> str:
    """The version of this build, for people: `0.2.0`, or `0.2.0+3.g1a2b3c4` three commits later."""
    if (ROOT / ".git").exists():
        return build_version()
    try:
        return metadata.version("molink")
    except metadata.PackageNotFoundError:
        return __version__


def build_version() -> str:
    """The same as tags and commit of the checkout have it; without a checkout its release."""
    command = ("git", "describe", "--tags", "--match", "v[0-9]*", "--long", "--always", "--dirty")
    try:
        described = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=GIT_WITHIN_S,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return __version__
    return version_of(described)


def version_of(described: str) -> str:
    """What `git describe` has said, as Python packages write it. Before the first tag the release
    is the one that the tree is to become."""
    match = DESCRIBED.fullmatch(described)
    if match is None:
        return __version__
    tag, since, commit, dirty = match.groups()
    if tag and since == "0" and not dirty:
        return tag
    local = [since, f"g{commit}", dirty and "dirty"]
    return f"{tag or __version__}+{'.'.join(part for part in local if part)}"
