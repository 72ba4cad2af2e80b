"""A home with a systemctl of the tests' own, which keeps a log."""

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Desk:
    """A home, and programs that answer as told."""

    home: Path
    bin: Path
    service: str
    folder: str

    def program(self, name: str, script: str) -> None:
        file = self.bin / name
        file.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>"{self.home}/{name}.log"\n{script}\n')
        file.chmod(0o755)

    def asked(self, name: str = "systemctl") -> list[str]:
        lines = (self.home / f"{name}.log").read_text().splitlines()
        return [line.removeprefix("--user --no-pager ") for line in lines]

    @property
    def data_dir(self) -> Path:
        return self.home / ".local/share" / self.folder

    @property
    def unit(self) -> Path:
        return self.home / ".config/systemd/user" / f"{self.service}.service"


def made_desk(tmp_path: Path, monkeypatch, service: str, folder: str | None = None) -> Desk:
    home, bin_directory = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    bin_directory.mkdir()
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{bin_directory}:/bin:/usr/bin")
    desk = Desk(home, bin_directory, service, folder or service)
    desk.program("systemctl", "exit 0")
    desk.program("loginctl", "echo Linger=no")
    desk.program("systemd-run", "exit 0")
    return desk
