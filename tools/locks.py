"""Pins everything that MoLink runs with, by hash: `make lock`.

    molink/requirements.lock    all libraries but torch, and what builds MoLink from a checkout
    molink/torch.lock           PyPI's torch, and what only that needs

Versions are those that the tests run on (constraints.txt). Builds of torch from its own index (for
CPUs, for CUDA 12) are other files with other hashes: of these only the version is pinned.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK, TORCH_LOCK = ROOT / "molink" / "requirements.lock", ROOT / "molink" / "torch.lock"

TORCH = "torch==2.13.0"
BUILD = "hatchling>=1.27"
"""As in pyproject.toml."""

PYTHON = "3.11"
"""The oldest; entries that only other versions or systems need carry their condition."""

OF_TORCH = re.compile(r"(torch|triton|cuda-.*|nvidia-(?!ml-py).*)==")
HEAD = "# Made by `make lock`; do not edit.\n"


def entries() -> list[str]:
    """Every pinned package with its hashes, as pip reads it."""
    command = [
        *(sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "-"),
        *("--generate-hashes", "--universal", "--python-version", PYTHON),
        *("--no-header", "--no-annotate", "--no-config", "--quiet"),
        *("--default-index", "https://pypi.org/simple", "-c", "constraints.txt"),
    ]
    wanted = f"{TORCH}\n{BUILD}\n"
    done = subprocess.run(
        command, input=wanted, capture_output=True, text=True, check=True, cwd=ROOT
    )
    return re.split(r"\n(?=\S)", done.stdout.strip())


def main() -> None:
    """Write both files."""
    found = entries()
    for path, of_torch in ((LOCK, False), (TORCH_LOCK, True)):
        lines = [entry for entry in found if bool(OF_TORCH.match(entry)) == of_torch]
        path.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
