"""Pins everything that MoLink runs with, by hash: `make lock`.

    molink/requirements.lock    all libraries but torch, and what builds MoLink from a checkout
    molink/extras.lock          what a coordinator's installation has beside them
    molink/torch.lock           PyPI's torch, and what only that needs

Versions are those that the tests run on (constraints.txt). Builds of torch from its own index (for
CPUs, for CUDA 12) are other files with other hashes: of these only the version is pinned.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "molink"
LOCK, TORCH_LOCK = LOCKS / "requirements.lock", LOCKS / "torch.lock"
EXTRAS_LOCK = LOCKS / "extras.lock"

TORCH = "torch==2.13.0"
BUILD = "hatchling>=1.27"
"""As in pyproject.toml."""

EXTRAS = ("dashboard", "import")
"""Extras of a coordinator's installation; the simulator brings no library."""

PYTHON = "3.11"
"""The oldest; entries that only other versions or systems need carry their condition."""

OF_TORCH = re.compile(r"(torch|triton|cuda-.*|nvidia-(?!ml-py).*)==")
HEAD = "# Made by `make lock`; do not edit.\n"


def entries(*options: str) -> list[str]:
    """Every pinned package with its hashes, as pip reads it; `options` are more of uv's."""
    command = [
        *(sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "-"),
        *("--generate-hashes", "--universal", "--python-version", PYTHON),
        *("--no-header", "--no-annotate", "--no-config", "--quiet"),
        *("--default-index", "https://pypi.org/simple", "-c", "constraints.txt"),
        *options,
    ]
    wanted = f"{TORCH}\n{BUILD}\n"
    done = subprocess.run(
        command, input=wanted, capture_output=True, text=True, check=True, cwd=ROOT
    )
    return re.split(r"\n(?=\S)", done.stdout.strip())


def write(path: Path, found: Iterable[str]) -> None:
    """Write a list of pinned packages."""
    path.write_text(HEAD + "\n".join(found) + "\n", encoding="utf-8")


def main() -> None:
    """Write the three files; the extras' has what the others lack, in versions that fit them."""
    base = entries()
    write(LOCK, (entry for entry in base if not OF_TORCH.match(entry)))
    write(TORCH_LOCK, (entry for entry in base if OF_TORCH.match(entry)))
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    fitting = [word for path in (LOCK, TORCH_LOCK) for word in ("-c", str(path))]
    write(EXTRAS_LOCK, (entry for entry in entries(*extras, *fitting) if entry not in base))


if __name__ == "__main__":
    main()
