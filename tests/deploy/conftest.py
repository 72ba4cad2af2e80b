"""A home directory of its own for a script, on a PATH that holds only what a test puts there."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "deploy" / "install.sh"

TOOLS = [
    *("awk", "basename", "cat", "cp", "dirname", "env", "grep", "id", "ln", "mkdir", "mktemp"),
    *("mv", "readlink", "rm", "rmdir", "sed", "sh", "sort", "tail", "tr"),
]
"""What every Linux has; Python, nvidia-smi, uname and the package managers are each test's own."""

SCRIPT_S_MAX = 300
"""Only a script that hangs reaches this, also on a machine that is busy."""

PYTHON = """
case "$*" in
  *ensurepip*) exit {without_venv} ;;
  *platform*) echo {version} ;;
  *version_info*print* | *print*version_info*) echo python3.12-venv ;;
  *) exit {too_old} ;;
esac
"""


@dataclass
class Sandbox:
    """Where a script runs; nothing outside of `home` may change."""

    home: Path
    bin: Path

    def fake(self, name: str, script: str) -> None:
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def fake_python(self, version="3.12.3", without_venv=0, too_old=0, name="python3") -> None:
        self.fake(name, PYTHON.format(version=version, without_venv=without_venv, too_old=too_old))

    def fake_disk(self, free_mib: int) -> None:
        self.fake("df", f"echo header; echo /dev/x 1 1 {free_mib * 1024} 1% /home")

    def fake_uname(self, release: str, machine: str = "x86_64") -> None:
        self.fake("uname", f'[ "$1" = -m ] && echo {machine} || echo {release}')

    def fake_gpu(self, *lines: str) -> None:
        self.fake("nvidia-smi", "\n".join(f"echo '{line}'" for line in lines))

    def run(self, *arguments: object, script: Path = INSTALL, **environment: str):
        return subprocess.run(
            ["/bin/sh", str(script), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=SCRIPT_S_MAX,
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": str(self.bin), "LANG": "C", **environment},
        )

    def made(self) -> set[str]:
        """Files and directories in the home, as they are called there."""
        return {str(path.relative_to(self.home)) for path in self.home.rglob("*")}


@pytest.fixture
def sandbox(tmp_path):
    home, bin_directory = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    bin_directory.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool, path="/usr/bin:/bin")
        assert found, tool
        (bin_directory / tool).symlink_to(found)
    place = Sandbox(home, bin_directory)
    place.fake_disk(free_mib=100_000)
    place.fake_uname("6.1.0-18-amd64")
    return place
